"""nnsight models as subjects: the same reads and edits, made inside a trace, in forward order."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.call import call_of_interface, is_causal_call
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.edit import MLP, OUTPUT, POSITION_EMBEDDING, TOKEN_EMBEDDING
from .anatomy.modules import StreamModules
from .hooks import eval_mode, recorded_sum
from .huggingface import HuggingFaceSubject
from .recorder import Recorder
from .subject import Logits

_OPERATION = "attention_interface_"  # as transformers' own models call it; the last such operation is the call itself


@dataclass(frozen=True)
class BlockPaths:
    """Names of a block and of two modules in it: the one that calls the attention interface, and the last of the MLP.

    None for a module that the block lacks, or that is not to be read. mlp_factor, beside: see `FeedForward`.
    """

    block: str
    attention: str | None
    mlp: str | None
    mlp_factor: float
    beside: str | None


@dataclass(frozen=True)
class Paths:
    """The names of the modules that are read and edited. table: of learned positions; empty without one."""

    embedding: str
    table: str
    blocks: tuple[BlockPaths, ...]


class NNsightSubject(HuggingFaceSubject):
    """A transformers model inside nnsight's `NNsight` or `TransformersModel`.

    Raises InputError where the wrapped model has no weights yet, or fails the contract.
    """

    libraries: tuple[str, ...] = ("nnsight",)

    def __init__(self, model: Any, name: str | None = None) -> None:
        from nnsight import NNsight

        self._envoy = NNsight(model) if isinstance(model, PreTrainedModel) else model
        self._fetch_weights()
        super().__init__(self._envoy._module, name)

    def _fetch_weights(self) -> None:
        """Gives a model by name its weights, which nnsight loads only when they are needed."""
        if self._lacks_weights() and hasattr(self._envoy, "dispatch"):
            self._envoy.dispatch()
        if self._lacks_weights():
            raise InputError(f"{type(self._envoy._module).__name__} has no weights yet; wrap it with dispatch=True")

    def _lacks_weights(self) -> bool:
        return any(parameter.is_meta for parameter in self._envoy._module.parameters())

    @property
    def _paths(self) -> Paths:
        return paths_of(self.model, self.modules)

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Logits:
        import nnsight

        tokens = tokens.to(self.device)
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        with torch.set_grad_enabled(recorder.gradients), eval_mode(self.model), self._envoy.trace(tokens, **inputs):
            visit(self._envoy, self._paths, recorder, self.attention)
            logits = nnsight.save(self._envoy.output.logits)
        return logits  # noqa: RET504  the trace writes it here


def visit(envoy: Any, paths: Paths, recorder: Recorder, base: str) -> None:
    """Inside a trace, shows a recorder all sites of a model in forward order, and writes what it changed.

    base: the model's attention implementation.
    """
    if recorder.edits_at(TOKEN_EMBEDDING):
        _replace_output(envoy.get(paths.embedding), recorder.token_embedding)
    if recorder.edits_at(POSITION_EMBEDDING):
        _replace_output(envoy.get(paths.table), recorder.position_embedding)
    for layer, names in enumerate(paths.blocks):
        block = envoy.get(names.block)
        x = block.input
        edited = recorder.residual(x)
        if edited is not x:
            block.input = edited
        if names.attention is not None:
            _attend(envoy.get(names.attention), layer, recorder, base)
        if names.mlp is not None and (recorder.mlps or recorder.edits_at(MLP)):
            record = partial(recorder.mlp, layer, factor=names.mlp_factor)
            if names.beside is not None:
                record = partial(recorded_sum, record, envoy.get(names.beside).output)
            _replace_output(envoy.get(names.mlp), record)
    _replace_output(envoy.get(paths.blocks[-1].block), recorder.residual)


def _replace_output(module: Any, record: Callable[[Tensor], Tensor]) -> None:
    """The tensor that a module returns, the first of several, becomes what `record` makes of it."""
    output = module.output
    has_others = isinstance(output, tuple | list)
    x, *others = output if has_others else (output,)
    edited = record(x)
    if edited is not x:
        module.output = (edited, *others) if has_others else edited


def _attend(envoy: Any, layer: int, recorder: Recorder, base: str) -> None:
    """Shows the recorder a layer's call and what its heads return, and writes what it changed."""
    operation = getattr(envoy.source, [op for op in envoy.source.names if op.startswith(_OPERATION)][-1])
    (module, q, k, v, mask), extra = operation.inputs
    about = {"scale": extra.get("scaling"), **extra, "is_causal": is_causal_call(module, extra)}
    call = call_of_interface(layer, q, k, v, mask, **about)
    edited = recorder.attend(call)
    if edited is not call or (edited.is_fused and (base == "sdpa" or "kernel" in extra)):
        operation.skip((recorder.output(edited, edited.output()).transpose(1, 2).contiguous(), None))
    elif recorder.edits_at(OUTPUT):
        z, *others = operation.output
        operation.output = (recorder.output(edited, z.transpose(1, 2)).transpose(1, 2).contiguous(), *others)


def paths_of(model: PreTrainedModel, modules: StreamModules) -> Paths:
    """The names, in a transformers model, of the modules that are read and edited."""
    names = {id(module): name for name, module in model.named_modules()}
    blocks = []
    for block, mlp in zip(modules.blocks, modules.mlps, strict=True):
        attention = next((module for module in block.modules() if _calls_interface(type(module).forward)), None)
        blocks.append(
            BlockPaths(
                names[id(block)],
                None if attention is None else names[id(attention)],
                None if mlp is None else names[id(mlp.module)],
                1.0 if mlp is None else mlp.factor,
                None if mlp is None or mlp.beside is None else names[id(mlp.beside)],
            )
        )
    table = names[id(modules.tables[0])] if modules.tables else ""
    return Paths(names[id(modules.embedding)], table, tuple(blocks))


@cache
def _calls_interface(forward: Callable[..., Any]) -> bool:
    try:
        return "attention_interface(" in inspect.getsource(forward)
    except (OSError, TypeError):
        return False
