"""What a subject must keep, whichever library runs it: checked when it is made, so that nothing is wrong silently."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..errors import InputError
from ..interventions.edit import Edit
from .subject import Subject, Tokens

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of row sums, and relative to the largest logit; else 0.1


def tokens_for(vocab: int) -> Tokens:
    """The few random tokens that the contract is checked on."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


def check(subject: Subject, bare: Tensor) -> None:
    """Raises InputError, naming the check, unless on `tokens_for` the subject

    - gives the logits of the bare model (`bare`, batch pos vocab);
    - lets no later token change an earlier logit;
    - attends in the layers that its shape names;
    - has rows that sum to one, slots counted, wherever its kernel says so;
    - gives other logits wherever an edit changes a residual, a call, or what heads or feed-forward layers return.
    """
    tokens = tokens_for(subject.shape.vocab)
    trace = subject.run(torch.cat((tokens, later(tokens))), calls={"excess": excess})
    judge(subject.name, bare, trace.logits, trace.calls["excess"])
    trace = subject.run(nudged_tokens(subject.shape), edits=nudges(subject.shape))
    judge_edits(subject.name, subject.shape, reach(trace.logits))


def later(tokens: Tokens) -> Tokens:
    """The same tokens, but for the last of every sequence."""
    changed = tokens.clone()
    changed[:, -1] = torch.where(tokens[:, -1] > 0, tokens[:, -1] - 1, 1)
    return changed


def excess(call: AttentionCall) -> Tensor:
    """How far the rows of a call are from summing to one, at most, by sequence; 0 where its kernel need not."""
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def judge(name: str, bare: Tensor, logits: Tensor, excess: Tensor) -> None:
    """Raises InputError for `logits` of `tokens_for`, then of `later`, that break the contract, or for such excess."""
    tolerance = TOLERANCE.get(logits.dtype, 0.1) * bare.abs().max().clamp(min=1).item()
    first, second = logits.split(len(bare))
    checks = {
        "its logits are not the bare model's": _distance(first, bare) <= tolerance,
        "a later token changes earlier logits, so it is not causal": (
            _distance(first[:, :-1], second[:, :-1]) <= tolerance
        ),
        "its attention rows do not sum to one": excess.max().item() <= tolerance,
    }
    for failure, passed in checks.items():
        if not passed:
            raise InputError(f"{name} cannot be measured: {failure}")


def nudged_rows(shape: ModelShape) -> list[tuple[str, int]]:
    """Site and block of every sequence that `nudges` edit, in their order; all equal sequences of one pass."""
    sites = {
        "the residual": range(shape.n_layers + 1),
        "the attention call": shape.attention_layers,
        "the attention output": shape.attention_layers,
        "the feed-forward update": shape.mlp_layers,
    }
    return [(site, block) for site, blocks in sites.items() for block in blocks]


def nudges(shape: ModelShape) -> tuple[Edit, ...]:
    """Edits that, together, change every sequence of `nudged_rows` at its site in its block, and nothing else."""
    rows = {row: i for i, row in enumerate(nudged_rows(shape))}
    kinds = {
        "the residual": _NudgeResidual,
        "the attention call": _NudgeCall,
        "the attention output": _NudgeOutput,
        "the feed-forward update": _NudgeMLP,
    }
    return tuple(
        kind({block: i for (where, block), i in rows.items() if where == site}) for site, kind in kinds.items()
    )


def nudged_tokens(shape: ModelShape) -> Tokens:
    """As many equal sequences as there are nudged rows, and two that nothing edits."""
    return tokens_for(shape.vocab)[:1, :3].expand(len(nudged_rows(shape)) + 2, -1)


def reach(logits: Tensor) -> Tensor:
    """How far the logits of every sequence are from those of the last one."""
    return (logits.float() - logits[-1].float()).abs().amax((1, 2))


def judge_edits(name: str, shape: ModelShape, reached: Tensor) -> None:
    """Raises InputError where an edit reached no logit, two unedited sequences being the noise."""
    *moved, noise, _ = reached.tolist()
    deaf = [row for row, distance in zip(nudged_rows(shape), moved, strict=True) if not distance > 10 * noise]
    if deaf:
        site, block = deaf[0]
        raise InputError(f"{name} cannot be edited: {site} of block {block} changes no logit")


@dataclass(frozen=True)
class _Nudge(Edit):
    """Turns around what one sequence gives a site in one block: by block, the sequence."""

    rows: dict[int, int]

    def _turned(self, block: int, x: Tensor) -> Tensor:
        x = x.clone()
        x[self.rows[block]] = 1 - x[self.rows[block]]
        return x


@dataclass(frozen=True)
class _NudgeResidual(_Nudge):
    def residual(self, block: int, x: Tensor) -> Tensor:
        return self._turned(block, x)


@dataclass(frozen=True)
class _NudgeCall(_Nudge):
    """Its sequence also looks at all values, since a slot may have taken all weight."""

    def call(self, call: AttentionCall) -> AttentionCall:
        weights = call.pattern()
        weights[self.rows[call.layer]] = 1 / weights.shape[-1]
        return replace(call, v=self._turned(call.layer, call.v)).with_pattern(weights)


@dataclass(frozen=True)
class _NudgeOutput(_Nudge):
    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        return self._turned(call.layer, z)


@dataclass(frozen=True)
class _NudgeMLP(_Nudge):
    def mlp(self, block: int, x: Tensor) -> Tensor:
        return self._turned(block, x) if block in self.rows else x


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
