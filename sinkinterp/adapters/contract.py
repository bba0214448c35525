"""What a subject must keep, whichever library runs it: checked when it is made, so that nothing is wrong silently."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.fixed import FixedPattern
from ..errors import InputError
from ..interventions.edit import Edit
from .subject import Subject, Tokens

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of logits and row sums; 0.1 in half precision


def tokens_for(vocab: int) -> Tokens:
    """The few random tokens that the contract is checked on."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


def check(subject: Subject, bare: Tensor) -> None:
    """Raises InputError, naming the check, unless on `tokens_for` the subject

    - gives the logits of the bare model (`bare`, batch pos vocab);
    - lets no later token change an earlier logit;
    - attends in the layers that its shape names;
    - has rows that sum to one, slots counted, wherever its kernel says so;
    - gives other logits wherever an edit changes a residual, a call, or what heads return.
    """
    tokens = tokens_for(subject.shape.vocab)
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % subject.shape.vocab
    trace, trace_later = (subject.run(t, calls={"excess": _excess}) for t in (tokens, later))
    excess = max(t.calls["excess"].max().item() for t in (trace, trace_later))
    tolerance = TOLERANCE.get(subject.dtype, 0.1)
    checks = {
        "its logits are not the bare model's": _distance(trace.logits, bare) <= tolerance,
        "a later token changes earlier logits, so it is not causal": (
            _distance(trace.logits[:, :-1], trace_later.logits[:, :-1]) <= tolerance
        ),
        "its attention rows do not sum to one": excess <= tolerance,
    }
    for failure, passed in checks.items():
        if not passed:
            raise InputError(f"{subject.name} cannot be measured: {failure}")
    _check_edits(subject)


def _check_edits(subject: Subject) -> None:
    """One pass per site: of many equal sequences, sequence i is edited at block i only, the last two nowhere."""
    blocks, layers = range(subject.shape.n_layers + 1), subject.shape.attention_layers
    tokens = tokens_for(subject.shape.vocab)[:1, :3].expand(len(blocks) + 2, -1)
    for edit, where in ((_NudgeResidual(), blocks), (_NudgeCall(), layers), (_NudgeOutput(), layers)):
        logits = subject.run(tokens, edits=[edit]).logits.float()
        noise = _distance(logits[-1], logits[-2])
        deaf = [i for i in where if not _distance(logits[i], logits[-1]) > 10 * noise]
        if deaf:
            raise InputError(f"{subject.name} cannot be edited: {edit.site} of block {deaf[0]} changes no logit")


@dataclass(frozen=True)
class _NudgeResidual(Edit):
    """Turns the residual of sequence i around in block i."""

    site = "the residual"

    def residual(self, block: int, x: Tensor) -> Tensor:
        return _nudged(x, block)


@dataclass(frozen=True)
class _NudgeCall(Edit):
    """Turns the values of sequence i around in layer i, and looks at all of them: a slot may have taken all weight."""

    site = "the attention call"

    def call(self, call: AttentionCall) -> AttentionCall:
        weights = call.pattern()
        weights[call.layer] = 1 / weights.shape[-1]
        return FixedPattern.of(replace(call, v=_nudged(call.v, call.layer)), weights)


@dataclass(frozen=True)
class _NudgeOutput(Edit):
    """Turns the heads' outputs of sequence i around in layer i."""

    site = "the attention output"

    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        return _nudged(z, call.layer)


def _nudged(x: Tensor, sequence: int) -> Tensor:
    x = x.clone()
    x[sequence] = x[sequence].flip(-1) + 1
    return x


def _excess(call: AttentionCall) -> Tensor:
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
