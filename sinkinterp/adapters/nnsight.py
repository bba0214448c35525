"""nnsight models as subjects: the same reads, evaluated inside a trace, in forward order, in callback style."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.call import call_of_interface
from ..errors import InputError
from .huggingface import HuggingFaceSubject, Pass
from .subject import CallRead, ResidualRead, Tokens
from .watching import blocks_of, evaluating, unfinite

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

    def _pass(
        self, tokens: Tokens, calls: Mapping[str, CallRead], residuals: Mapping[str, ResidualRead], **positions: Tensor
    ) -> Pass:
        import nnsight

        tokens = tokens.to(self.device)
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        reads = {**residuals, "finite": _finite}
        with torch.no_grad(), evaluating(self.model), self._envoy.trace(tokens, **inputs):
            answers = nnsight.save(_watch(self._envoy, self._paths, calls, reads, self._base))
            logits = nnsight.save(self._envoy.output.logits)
        rows, streams = answers
        for i, stream in enumerate(streams):
            if not stream.pop("finite"):
                raise unfinite(i)
        return rows, streams, logits


def _watch(
    envoy: Any,
    paths: Sequence[tuple[str, str | None]],
    calls: Mapping[str, CallRead],
    residuals: Mapping[str, ResidualRead],
    base: str,
) -> tuple[dict[int, dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Answers by attention layer and by block, gathered inside a trace."""
    rows, streams = {}, []
    for layer, (block, attention) in enumerate(paths):
        x = envoy.get(block).input
        streams.append({name: read(x) for name, read in residuals.items()})
        if attention is not None:
            rows[layer] = _attend(envoy.get(attention), layer, calls, base)
    output = envoy.get(paths[-1][0]).output
    x = output[0] if isinstance(output, tuple) else output
    streams.append({name: read(x) for name, read in residuals.items()})
    return rows, streams


def _attend(envoy: Any, layer: int, calls: Mapping[str, CallRead], base: str) -> dict[str, Tensor]:
    operation = getattr(envoy.source, [op for op in envoy.source.names if op.startswith(_OPERATION)][-1])
    (_, q, k, v, mask), extra = operation.inputs
    call = call_of_interface(layer, q, k, v, mask, **{"scale": extra.get("scaling"), **extra})
    answers = {name: read(call) for name, read in calls.items()}
    if call.is_fused and (base == "sdpa" or "kernel" in extra):
        operation.skip((call.output().transpose(1, 2).contiguous(), None))
    return answers


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


def _finite(x: Tensor) -> Tensor:
    return x.sum(dtype=torch.float32).isfinite()
