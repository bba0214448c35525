"""nnsight models as subjects: the same reads and edits, made inside a trace, in forward order."""

import inspect
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.sites import CALL, OUTPUT, RESIDUAL
from ..checks import InputError, check_installed
from ..data.tokens import Tokens
from .attached import eval_mode, recorded_by
from .hooks import places_of, shown_call, with_first
from .huggingface import HuggingFaceSubject
from .own_attention import family_of
from .recorder import Recorder
from .subject import Logits

_OPERATION = "attention_interface_"  # as transformers' own models call it; the last such operation is the call itself


class NNsightSubject(HuggingFaceSubject):
    """A transformers model inside nnsight's `NNsight` or `TransformersModel`.

    Raises InputError where the wrapped model has no weights yet, or fails the contract.
    """

    libraries: tuple[str, ...] = ("nnsight",)

    def __init__(self, model: Any, name: str | None = None) -> None:
        check_installed("nnsight", "pip install nnsight, or leave backend='nnsight' out")
        from nnsight import NNsight

        self._envoy = NNsight(model) if isinstance(model, PreTrainedModel) else model
        if any(parameter.is_meta for parameter in self._envoy._module.parameters()):
            raise InputError(f"{type(self._envoy._module).__name__} has no weights yet; wrap it with dispatch=True")
        if any(type(part).__module__.startswith("transformer_lens.") for part in self._envoy._module.modules()):
            raise InputError("this model is in a TransformerLens bridge; give the bridge, which is subject.bridge")
        super().__init__(self._envoy._module, name)

    @cached_property
    def envoy(self) -> Any:
        """nnsight's model, with the tokenizer of the subject: `subject.envoy.trace(text)`.

        Edits that it keeps are not those of the subject.
        """
        from nnsight import TransformersModel

        if isinstance(self._envoy, TransformersModel) or self.tokenizer is None:
            return self._envoy
        return TransformersModel(self._envoy._module, tokenizer=self.tokenizer, task="text-generation")

    def _check_contract(self, bare: Logits) -> None:
        if any(map(family_of, self.modules.blocks)):
            fix = "read it with the Hugging Face backend, backend='huggingface'"
            raise InputError(f"{type(self.model).__name__} attends in code of its own; {fix}")
        super()._check_contract(bare)

    def _pass(self, tokens: Tokens, recorder: Recorder, **inputs: Any) -> Logits:
        import nnsight

        tokens = tokens.to(self.device)
        inputs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        recorded = recorded_by(recorder, n_kv_heads=self.modules.n_kv_heads)
        with recorded, torch.set_grad_enabled(recorder.gradients), eval_mode(self.model):
            with self._envoy.trace(tokens, **inputs):
                self._visit(recorder)
                logits = nnsight.save(self._envoy.output.logits)
            return logits  # noqa: RET504  # nnsight runs the source of the block above, which must not return

    def _visit(self, recorder: Recorder) -> None:
        """Shows the recorder all sites in forward order, and writes the changes. Call it in a trace."""
        names = {module: name for name, module in self._envoy._module.named_modules()}
        for site, module, record, is_input in places_of(self.modules, recorder):
            if site is CALL:
                parts = (part for part in module.modules() if _calls_interface(type(part).forward))
                if (attention := next(parts, None)) is not None:
                    layer = self.modules.layers[attention]
                    _attend(self._envoy.get(names[attention]), layer, recorder, self.implementation)
            elif site is RESIDUAL or recorder.uses(site):
                _replace("input" if is_input else "output", self._envoy.get(names[module]), record)


def _replace(place: str, module: Any, record: Callable[[Tensor], Tensor]) -> None:
    """The tensor at a module's input or output, the first of several, becomes what `record` makes of it."""
    shown = getattr(module, place)
    edited = with_first(shown, record)
    if edited is not shown:
        setattr(module, place, edited)


def _attend(envoy: Any, layer: int, recorder: Recorder, base: str) -> None:
    """Shows the recorder a layer's call and the output of its heads, and writes the changes."""
    operation = getattr(envoy.source, [op for op in envoy.source.names if op.startswith(_OPERATION)][-1])
    (module, q, k, v, mask), extra = operation.inputs
    call = shown_call(recorder, layer, module, (q, k, v), mask, extra)
    edited = recorder.edited_call(call)
    if edited is not call or (call.q is q and edited.is_fused and (base == "sdpa" or "kernel" in extra)):
        operation.skip((recorder.output(edited, edited.output()).transpose(1, 2).contiguous(), None))
    elif recorder.uses(OUTPUT):
        z, *others = operation.output
        shown = z.transpose(1, 2)
        if (new := recorder.output(edited, shown)) is not shown:
            operation.output = (new.transpose(1, 2).contiguous(), *others)


@cache
def _calls_interface(forward: Callable[..., Any]) -> bool:
    try:
        return "attention_interface(" in inspect.getsource(forward)
    except (OSError, TypeError):
        return False


make_subject = NNsightSubject  # of a model of transformers or nnsight, and its name
