"""nnsight models as subjects: the same reads, evaluated inside a trace, in forward order, in callback style."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.call import call_of_interface
from ..errors import InputError
from .huggingface import HuggingFaceSubject
from .subject import Tokens
from .watch import Watch
from .watching import blocks_of, evaluating

Answers = tuple[dict[int, dict[str, Tensor]], list[dict[str, Tensor]], list[Tensor]]
_OPERATION = "attention_interface_"  # as transformers' own models call it; the last such operation is the call itself


class NNsightSubject(HuggingFaceSubject):
    """A transformers model inside nnsight's `NNsight` or `TransformersModel`.

    Raises InputError where the wrapped model has no weights yet, or breaks the contract.
    """

    libraries: tuple[str, ...] = ("nnsight",)

    def __init__(self, model: Any, name: str | None = None) -> None:
        from nnsight import NNsight

        self._envoy = NNsight(model) if isinstance(model, PreTrainedModel) else model
        module = self._envoy._module
        if any(parameter.is_meta for parameter in module.parameters()):
            raise InputError(f"{type(module).__name__} has no weights yet; wrap it with dispatch=True")
        self._paths = _paths_of(module)
        super().__init__(module, name)

    def _pass(self, tokens: Tokens, watch: Watch, **positions: Tensor) -> Tensor:
        import nnsight

        tokens = tokens.to(self.device)
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        asked = (watch.calls, watch.residuals, watch.edits)
        with torch.no_grad(), evaluating(self.model), self._envoy.trace(tokens, **inputs):
            answers = nnsight.save(_visit(self._envoy, self._paths, asked, self._base))
            logits = nnsight.save(self._envoy.output.logits)
        watch.rows, watch.streams, watch.finite = answers
        return logits


def _visit(envoy: Any, paths: Sequence[tuple[str, str | None]], asked: tuple[Any, ...], base: str) -> Answers:
    """Shows a watch every residual and call inside a trace, in forward order, and writes back what it changed."""
    watch = Watch(*asked)
    for layer, (block, attention) in enumerate(paths):
        inside = envoy.get(block)
        x = inside.input
        changed = watch.residual(x)
        if changed is not x:
            inside.input = changed
        if attention is not None:
            _attend(envoy.get(attention), layer, watch, base)
    last = envoy.get(paths[-1][0])
    output = last.output
    x, *rest = output if isinstance(output, tuple) else (output,)
    changed = watch.residual(x)
    if changed is not x:
        last.output = (changed, *rest) if isinstance(output, tuple) else changed
    return watch.rows, watch.streams, watch.finite


def _attend(envoy: Any, layer: int, watch: Watch, base: str) -> None:
    operation = getattr(envoy.source, [op for op in envoy.source.names if op.startswith(_OPERATION)][-1])
    (_, q, k, v, mask), extra = operation.inputs
    call = call_of_interface(layer, q, k, v, mask, **{"scale": extra.get("scaling"), **extra})
    seen = watch.attend(call)
    if seen is not call or (seen.is_fused and (base == "sdpa" or "kernel" in extra)):
        operation.skip((watch.output(seen, seen.output()).transpose(1, 2).contiguous(), None))
    elif watch.edits_outputs:
        z, *rest = operation.output
        operation.output = (watch.output(seen, z.transpose(1, 2)).transpose(1, 2).contiguous(), *rest)


def _paths_of(model: PreTrainedModel) -> list[tuple[str, str | None]]:
    """Every block's path in the model, with that of the module in it that calls the attention interface, if any."""
    names = {id(module): name for name, module in model.named_modules()}
    paths = []
    for block in blocks_of(model):
        attention = [module for module in block.modules() if _calls_interface(module)]
        paths.append((names[id(block)], names[id(attention[0])] if attention else None))
    return paths


def _calls_interface(module: nn.Module) -> bool:
    try:
        return "attention_interface(" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False
