"""The blocks of a model as linear maps of parts of their input: norms keep the scales that they have in one pass.

A residual is a sum: embedding, position, what every head and feed-forward layer wrote, biases. With the scale of every
norm frozen, queries and keys are linear in it, rotation included, so that each part has its own query and key:

    with frozen(subject, tokens) as run:
        call = run.call(layer, part)

Blocks run as they are, so this holds for every family whose blocks pass on one residual stream. Source: Elhage et al.
2021, A Mathematical Framework for Transformer Circuits.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..attention.shapes import HeadOutput, Residual
from ..data.tokens import Tokens
from ..errors import InputError
from .anatomy.modules import cross_attention, removed_after
from .exclusive import exclusive
from .hooks import RECORDING, Recording, attention_set_to, eval_mode
from .huggingface import HuggingFaceSubject
from .recorder import Recorder
from .subject import Subject, Trace

TOLERANCE = 1e-4  # of what a norm returns, for its frozen form to count as the norm
_PROBE = 1e3  # so large that the epsilon of a norm does not count


@dataclass(frozen=True)
class FrozenNorm:
    """A norm at the scales of one pass: v -> scale * gain * (v - mean of v, where it is centred) + shift."""

    gain: Tensor
    shift: Tensor
    is_centred: bool
    scale: Tensor

    def __call__(self, v: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.scale * self.gain * _centred(v, self.is_centred) + self.shift

    @staticmethod
    def of(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> "FrozenNorm":
        """The norm that made `y` of `x`. Raises InputError for one of another kind."""
        signs = 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2).to(x)
        probe = _PROBE * signs.expand(*(1,) * min(2, x.ndim - 1), *x.shape[2:-1], x.shape[-1])
        plus, minus, moved = (forward(v) for v in (probe, -probe, probe + _PROBE))
        gain, shift = signs * (plus - minus) / 2, (plus + minus) / 2
        is_centred = torch.allclose(moved, plus, rtol=TOLERANCE, atol=TOLERANCE * float(plus.abs().max()))
        unscaled = gain * _centred(x, is_centred)
        tiny = torch.finfo(x.dtype).tiny
        squares = unscaled.square().sum(-1, keepdim=True)
        norm = FrozenNorm(gain, shift, is_centred, (unscaled * (y - shift)).sum(-1, keepdim=True) / (squares + tiny))
        if (norm(x) - y).abs().max() > TOLERANCE * y.abs().max():
            raise InputError(f"{type(module).__name__} is not a norm whose scale can be frozen; take another family")
        return norm


def _centred(v: Tensor, is_centred: bool) -> Tensor:
    return v - v.mean(-1, keepdim=True) if is_centred else v


class _Reached(Exception):
    def __init__(self, call: AttentionCall) -> None:
        super().__init__()
        self.call = call


class _UntilCall(Recorder):
    def attend(self, call: AttentionCall) -> AttentionCall:
        raise _Reached(call)


@dataclass
class _OnlyHead(Recorder):
    """Heads return `z` of the head `only`, and nothing else."""

    z: Tensor = field(default_factory=lambda: torch.zeros(0))
    only: int | None = None

    def attend(self, call: AttentionCall) -> AttentionCall:
        return call

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        kept = torch.zeros_like(self.z)
        if self.only is not None:
            kept[:, self.only] = self.z[:, self.only]
        return kept


@dataclass(frozen=True)
class FrozenRun:
    """One pass whose norms keep their scales.

    trace: with the residuals "x" and the feed-forward updates "mlp". calls: of every attention layer. position: what
    the table of learned positions added to the first residual; None without one.
    """

    subject: HuggingFaceSubject
    trace: Trace
    calls: Mapping[int, AttentionCall]
    position: Residual | None
    _given: Mapping[int, tuple[tuple[Any, ...], dict[str, Any]]]

    def call(self, layer: int, part: Residual) -> AttentionCall:
        """The call of a layer whose block is given this residual; biases count as in the model."""
        try:
            self._block(layer, part, _UntilCall())
        except _Reached as reached:
            return reached.call
        raise InputError(f"{self.subject.name}: the attention of layer {layer} is not reached; take another family")

    def writes(self, layer: int) -> Float[Tensor, "head batch pos d_model"]:
        """What every head of a layer adds to the residual stream, without the output bias."""
        z = self.calls[layer].output()
        nothing = self._block(layer, torch.zeros_like(self.trace.residuals["x"][:, layer]), _OnlyHead(z=z))
        parts = [
            self._block(layer, torch.zeros_like(nothing), _OnlyHead(z=z, only=head)) - nothing
            for head in range(z.shape[1])
        ]
        return torch.stack(parts)

    def _block(self, layer: int, x: Residual, recorder: Recorder) -> Residual:
        args, kwargs = self._given[layer]
        token = RECORDING.set(Recording(recorder, self.subject.modules.layers))
        try:
            with torch.no_grad():
                if args:
                    output = self.subject.modules.blocks[layer](x, *args[1:], **kwargs)
                else:
                    output = self.subject.modules.blocks[layer](**kwargs | {"hidden_states": x})
        finally:
            RECORDING.reset(token)
        return output[0] if isinstance(output, tuple | list) else output


@contextmanager
def frozen(subject: Subject, tokens: Tokens) -> Iterator[FrozenRun]:
    """Inside, the norms of the model's blocks keep the scales that they have while it reads `tokens`.

    Feed-forward layers and cross-attention then add nothing. Raises InputError for a model of another library, for one
    whose feed-forward updates are not found, and for norms that are not linear at a fixed scale.
    """
    hf = _checked(subject)
    kept = _Kept()
    zeroed = {m.module for m in hf.modules.mlps if m is not None}
    zeroed |= {module for block in hf.modules.blocks for module in cross_attention(block)}
    with exclusive(hf.model), ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(eval_mode(hf.model))
        with removed_after(kept.hooks(hf, zeroed)):
            trace = hf.run(tokens, calls={"calls": kept.keep_call}, residuals={"x": _same}, mlps={"mlp": _same})
        norms = {module: FrozenNorm.of(module, module.forward, *kept.norms[module]) for module in kept.norms}
        for module, norm in norms.items():
            stack.enter_context(_forward_set_to(module, norm))
        for module in zeroed:
            stack.enter_context(_forward_set_to(module, _Nothing(kept.outputs[module])))
        stack.enter_context(attention_set_to(hf.model, hf.recorded_attention))
        position = torch.stack(kept.positions).sum(0) if kept.positions else None
        yield FrozenRun(hf, trace, kept.calls, position, kept.given)


def _checked(subject: Subject) -> HuggingFaceSubject:
    if not isinstance(subject, HuggingFaceSubject) or not subject.reads_caches:
        raise InputError(f"{subject.name} is read through another library; load it with backend='huggingface'")
    if not isinstance(subject.model, PreTrainedModel):
        raise InputError(
            f"{subject.name} is not a model of transformers, which this needs; give its twin, "
            "si.to_transformers(subject), where it has one"
        )
    if subject.modules.is_cross:
        raise InputError(
            f"{subject.name}: keys of cross-attention are no sum of the decoder's parts; explain the decoder"
        )
    if set(subject.shape.mlp_layers) != set(range(subject.shape.n_layers)):
        raise InputError(f"{subject.name}: what its feed-forward layers add is not found in every block; take another")
    return subject


def _same(x: Residual) -> Residual:
    return x


@dataclass(frozen=True)
class _Nothing:
    """A module's output with zeros in place of its numbers."""

    output: Any

    def __call__(self, *_: Any, **__: Any) -> Any:
        if isinstance(self.output, tuple | list):
            return type(self.output)([torch.zeros_like(self.output[0]), *self.output[1:]])
        return torch.zeros_like(self.output)


@contextmanager
def _forward_set_to(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@dataclass
class _Kept:
    """What hooks keep of one pass."""

    calls: dict[int, AttentionCall] = field(default_factory=dict)
    given: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    norms: dict[nn.Module, tuple[Tensor, Tensor]] = field(default_factory=dict)
    outputs: dict[nn.Module, Any] = field(default_factory=dict)
    positions: list[Tensor] = field(default_factory=list)

    def keep_call(self, call: AttentionCall) -> Tensor:
        """A read of calls."""
        self.calls[call.layer] = call
        return call.q.new_zeros(len(call.q), 1)

    def hooks(self, subject: HuggingFaceSubject, zeroed: set[nn.Module]) -> list[Any]:
        """Hooks that keep what blocks are given, what norms make of what, and what other modules return."""

        def before(layer: int) -> Callable[..., None]:
            def keep(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self.given[layer] = (args, kwargs)

            return keep

        def norm(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if len(args) != 1 or not isinstance(output, Tensor):
                return  # it norms several things; where that is not linear, the parts of a score do not add up
            if module in self.norms:
                raise InputError("a norm runs twice in one pass, so its scale cannot be frozen; take another family")
            self.norms[module] = (args[0], output)

        def output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.outputs[module] = output

        def position(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self.positions.append(output)

        blocks = subject.modules.blocks
        handles = [b.register_forward_pre_hook(before(i), with_kwargs=True) for i, b in enumerate(blocks)]
        handles += [module.register_forward_hook(output) for module in zeroed]
        handles += [table.register_forward_hook(position) for table in subject.modules.tables]
        inner = {module for whole in zeroed for module in whole.modules()} - zeroed
        inner |= {m for m in zeroed if _is_norm(m)}
        found = {module for block in blocks for module in block.modules() if _is_norm(module)} - inner
        return handles + [module.register_forward_hook(norm) for module in found]


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not list(module.children())
