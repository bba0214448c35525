"""The blocks of a model as linear maps of parts of their input: norms keep the scales that they have in one pass.

A residual is a sum: embedding, position, what every head and feed-forward layer wrote, biases. With the scale of every
norm frozen, queries and keys are linear in it, rotation included, so that each part has its own query and key:

    with frozen(subject, tokens) as run:
        call = run.call(layer, part)

Blocks run as they are, so this holds for every family whose blocks pass on one residual stream. Source: Elhage et al.
2021, A Mathematical Framework for Transformer Circuits.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import CALL, MLP, RESIDUAL, AttentionCall, HeadOutput, Residual
from ..checks import InputError
from ..data.tokens import Tokens
from .anatomy import cross_attention, removed_after
from .attached import computed_by, eval_mode, recorded_by, used_alone
from .hooks import attention_set_to, with_first
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
    def of(module: nn.Module, x: Tensor, y: Tensor) -> "FrozenNorm":
        """The norm that made `y` of `x`. Raises InputError for one of another kind."""
        signs = 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2).to(x)
        probe = _PROBE * signs.expand(*(1,) * min(2, x.ndim - 1), *x.shape[2:-1], x.shape[-1])
        plus, minus, moved = (module.forward(v) for v in (probe, -probe, probe + _PROBE))
        gain, shift = signs * (plus - minus) / 2, (plus + minus) / 2
        is_centred = torch.allclose(moved, plus, rtol=TOLERANCE, atol=TOLERANCE * float(plus.abs().max()))
        unscaled = gain * _centred(x, is_centred)
        tiny = torch.finfo(x.dtype).tiny
        squares = unscaled.square().sum(-1, keepdim=True)
        norm = FrozenNorm(gain, shift, is_centred, (unscaled * (y - shift)).sum(-1, keepdim=True) / (squares + tiny))
        if (norm(x) - y).abs().max() > TOLERANCE * y.abs().max():
            fix = "" if x.dtype.itemsize >= 4 else f"; {x.dtype} rounds too much: load it in float32"
            raise InputError(f"{type(module).__name__} is not a norm whose scale can be frozen{fix}")
        return norm


def _centred(v: Tensor, is_centred: bool) -> Tensor:
    return v - v.mean(-1, keepdim=True) if is_centred else v


class _Attends(Exception):
    """Ends the pass of a block whose call alone is asked for."""


@dataclass
class _OneBlock(Recorder):
    """Keeps the call of a block, whose heads return `z`; without one, the pass ends there."""

    z: HeadOutput | None = None
    call: AttentionCall | None = None

    def edited_call(self, call: AttentionCall) -> AttentionCall:
        self.call = call
        if self.z is None:
            raise _Attends
        return call

    def output(self, call: Any, z: HeadOutput) -> HeadOutput:
        return z if self.z is None else self.z


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
    _given: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]

    def call(self, layer: int, part: Residual) -> AttentionCall:
        """The call of a layer whose block is given this residual; biases count as in the model."""
        recorder = _OneBlock()
        with suppress(_Attends):
            self._output(layer, part, recorder)
        if recorder.call is None:
            raise InputError(f"{self.subject.name}: the attention of layer {layer} is not reached")
        return recorder.call

    def writes(self, layer: int) -> Float[Tensor, "head batch pos d_model"]:
        """Returns what every head of a layer adds to the residual stream, without the output bias."""
        z, x = self.calls[layer].output(), self.trace["x"][:, layer]  # gates of heads read the residual
        chosen = torch.eye(z.shape[1]).to(z)[:, :, None, None]
        nothing = self._output(layer, x, _OneBlock(z=0 * z))
        return torch.stack([self._output(layer, x, _OneBlock(z=z * only)) - nothing for only in chosen])

    def _output(self, layer: int, x: Residual, recorder: _OneBlock) -> Residual:
        (args, kwargs), modules = self._given[layer], self.subject.modules
        inputs = (x, *args[1:]) if args else ()
        with torch.no_grad(), recorded_by(recorder, modules.layers, modules.n_kv_heads):
            output = modules.blocks[layer](*inputs, **kwargs if args else kwargs | {"hidden_states": x})
        return output[0] if isinstance(output, tuple | list) else output


@contextmanager
def frozen(subject: Subject, tokens: Tokens, logits: bool = False) -> Iterator[FrozenRun]:
    """In the block, the norms of the model's blocks keep the scales that they have while it reads `tokens`.

    Feed-forward layers and cross-attention then add nothing. The trace has all logits only with `logits`. Raises
    InputError for a model of another library, for one whose feed-forward updates are not found, and for norms that are
    not linear at a fixed scale.
    """
    hf, calls, seen = freezable(subject), {}, {}
    blocks, tables = list(hf.modules.blocks), list(hf.modules.tables)
    updates = [module for tap in hf.modules.taps[MLP] if tap is not None for module in (tap.module, tap.beside)]
    silent = {module for module in updates if module is not None} | {m for b in blocks for m in cross_attention(b)}
    norms = {m for b in blocks for m in b.modules() if "norm" in type(m).__name__.lower() and not list(m.children())}
    norms -= {inner for module in silent for inner in module.modules()}

    def keep(call: AttentionCall) -> Tensor:
        calls[call.layer] = call
        return call.q.new_zeros(len(call.q), 1)

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if module in seen:
            raise InputError(f"a {type(module).__name__} runs twice in one pass")
        seen[module] = (args, kwargs, output)

    with used_alone(hf.model), torch.no_grad(), eval_mode(hf.model):
        watched = {*blocks, *tables, *silent, *norms}
        with removed_after([module.register_forward_hook(see, with_kwargs=True) for module in watched]):
            reads = {"calls": CALL.read(keep), "x": RESIDUAL.read(lambda x: x), "mlp": MLP.read(lambda x: x)}
            trace = hf.run(tokens, reads=reads, logits=logits)
        linear: dict[nn.Module, Any] = {m: partial(_nothing_like, seen[m][2]) for m in silent & seen.keys()}
        for module in norms & seen.keys():
            args, _, y = seen[module]
            if len(args) == 1 and isinstance(y, Tensor):  # where others are not linear, parts do not add up
                linear[module] = FrozenNorm.of(module, args[0], y)
        position = sum(seen[table][2] for table in tables) if tables else None
        with computed_by(linear), attention_set_to(hf.model, hf.recorded_attention):
            yield FrozenRun(hf, trace, calls, position, [seen[block][:2] for block in blocks])


def cross_attention_kept(subject: Subject, tokens: Tokens) -> AbstractContextManager[None]:
    """In the block, cross-attention returns for any tokens the same as while the model read `tokens`."""
    kept: dict[nn.Module, Any] = {}
    modules: set[nn.Module] = set()
    if isinstance(subject, HuggingFaceSubject) and not subject.modules.is_cross:  # which is read itself
        modules = {module for block in subject.modules.blocks for module in cross_attention(block)}

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        kept[module] = output

    if modules:
        with removed_after([module.register_forward_hook(keep) for module in modules]):
            subject.run(tokens, logits=False)
    return removed_after([module.register_forward_hook(lambda m, args, output: kept[m]) for module in modules])


def freezable(subject: Subject) -> HuggingFaceSubject:
    """The subject, where `frozen` can run it. Raises InputError, as there, for one whose parts are not found."""
    if isinstance(subject, HuggingFaceSubject) and isinstance(subject.model, PreTrainedModel) and subject.reads_caches:
        shows_all = set(subject.shape.mlp_layers) == set(range(subject.shape.n_layers))
        if shows_all and not subject.modules.is_cross:
            return subject
    what = "a decoder of transformers on backend='huggingface', whose blocks all show what feed-forward layers add"
    raise InputError(f"{subject.name} is not {what}")


def _nothing_like(output: Any, *_: Any, **__: Any) -> Any:
    """A module's output with zeros in place of its numbers."""
    return with_first(output, torch.zeros_like)
