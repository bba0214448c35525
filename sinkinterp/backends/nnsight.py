"""nnsight models as subjects: the same reads, evaluated inside a trace, in forward order, in callback style."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.interface import call_of_interface
from ..errors import InputError
from .hooks import Sites, evaluating
from .huggingface import Fetch, HuggingFaceSubject
from .recorder import Recorder
from .subject import Tokens

Rows = dict[int, dict[str, Tensor]]
Answers = tuple[Rows, list[dict[str, Tensor]], Rows, list[Tensor]]
_OPERATION = "attention_interface_"  # as transformers' own models call it; the last such operation is the call itself


@dataclass(frozen=True)
class Paths:
    """Where in a model its sites are.

    table: of learned positions; empty without one. blocks: of each, its own path, that of the module in it that calls
    the attention interface, if any, and that of what writes last in its feed-forward branch, if that is known.
    """

    embedding: str
    table: str
    blocks: tuple[tuple[str, str | None, str | None], ...]


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
        super().__init__(module, name)

    @cached_property
    def _paths(self) -> Paths:
        return paths_of(self.model, self.sites)

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Fetch:
        import nnsight

        tokens = tokens.to(self.device)
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        paths, asked = self._paths, asked_of(recorder)
        with torch.set_grad_enabled(recorder.gradients), evaluating(self.model), self._envoy.trace(tokens, **inputs):
            answers = nnsight.save(visit(self._envoy, paths, asked, self._base))
            logits = nnsight.save(self._envoy.output.logits)
        recorder.rows, recorder.streams, recorder.updates, recorder.finite = answers
        return lambda: logits


def asked_of(recorder: Recorder) -> tuple[Any, ...]:
    """What a recorder is made of again inside a trace."""
    return (
        dict(recorder.calls),
        dict(recorder.residuals),
        dict(recorder.mlps),
        tuple(recorder.edits),
        recorder.gradients,
    )


def visit(envoy: Any, paths: Paths, asked: tuple[Any, ...], base: str) -> Answers:
    """Shows a recorder all sites of a model inside a trace, in forward order, and writes back what it changed."""
    recorder = Recorder(*asked)
    if recorder.edits_at("token_embedding"):
        _change(envoy.get(paths.embedding), recorder.token_embedding)
    if recorder.edits_at("position_embedding"):
        _change(envoy.get(paths.table), recorder.position_embedding)
    for layer, (block, attention, mlp) in enumerate(paths.blocks):
        inside = envoy.get(block)
        x = inside.input
        changed = recorder.residual(x)
        if changed is not x:
            inside.input = changed
        if attention is not None:
            _attend(envoy.get(attention), layer, recorder, base)
        if mlp is not None and (recorder.mlps or recorder.edits_at("mlp")):
            _change(envoy.get(mlp), partial(recorder.mlp, layer))
    _change(envoy.get(paths.blocks[-1][0]), recorder.residual)
    return recorder.rows, recorder.streams, recorder.updates, recorder.finite


def _change(module: Any, show: Callable[[Tensor], Tensor]) -> None:
    output = module.output
    x, *rest = output if isinstance(output, tuple) else (output,)
    changed = show(x)
    if changed is not x:
        module.output = (changed, *rest) if isinstance(output, tuple) else changed


def _attend(envoy: Any, layer: int, recorder: Recorder, base: str) -> None:
    operation = getattr(envoy.source, [op for op in envoy.source.names if op.startswith(_OPERATION)][-1])
    (_, q, k, v, mask), extra = operation.inputs
    call = call_of_interface(layer, q, k, v, mask, **{"scale": extra.get("scaling"), **extra})
    seen = recorder.attend(call)
    if seen is not call or (seen.is_fused and (base == "sdpa" or "kernel" in extra)):
        operation.skip((recorder.output(seen, seen.output()).transpose(1, 2).contiguous(), None))
    elif recorder.edits_at("output"):
        z, *rest = operation.output
        operation.output = (recorder.output(seen, z.transpose(1, 2)).transpose(1, 2).contiguous(), *rest)


def paths_of(model: PreTrainedModel, sites: Sites) -> Paths:
    """Where the sites of a transformers model are."""
    names = {id(module): name for name, module in model.named_modules()}
    attending = [[module for module in block.modules() if _calls_interface(module)] for block in sites.blocks]
    blocks = [
        (names[id(block)], names[id(attention[0])] if attention else None, None if mlp is None else names[id(mlp)])
        for block, attention, mlp in zip(sites.blocks, attending, sites.mlps, strict=True)
    ]
    return Paths(names[id(sites.embedding)], names[id(sites.tables[0])] if sites.tables else "", tuple(blocks))


def _calls_interface(module: nn.Module) -> bool:
    try:
        return "attention_interface(" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False
