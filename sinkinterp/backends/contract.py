"""What every subject guarantees, whichever library runs it; checked when the subject is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import HeadOutput, Residual
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.edit import CALL, MLP, OUTPUT, RESIDUAL, Edit, Site
from .subject import CallRead, Logits, Subject

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of row sums, and relative to the largest logit; else 0.1


@dataclass(frozen=True)
class Check:
    """One forward pass, and what must be true of it.

    summary: what is kept of its logits. verify: raises InputError, naming the failure, for the answers of `calls` and
    the summary that a subject gave.
    """

    tokens: Tokens
    summary: Callable[[Logits], Tensor]
    verify: Callable[[Mapping[str, Tensor], Tensor], None]
    calls: Mapping[str, CallRead] = field(default_factory=dict)
    edits: Sequence[Edit] = ()


def check(subject: Subject, bare: Logits) -> None:
    """Raises InputError, naming the failure, where a subject fails `logits_check` or `edits_check`.

    bare: the logits of the bare model for `sample_tokens`.
    """
    for part in (logits_check(subject.name, bare, subject.shape.vocab), edits_check(subject.name, subject.shape)):
        trace = subject.run(part.tokens, calls=part.calls, edits=part.edits)
        part.verify(trace.calls, part.summary(trace.logits))


def sample_tokens(vocab: int) -> Tokens:
    """A few random tokens, always the same for a vocabulary of this size."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


def logits_check(name: str, bare: Logits, vocab: int) -> Check:
    """A pass on `sample_tokens`, and on the same tokens with another last one. It verifies that the subject

    - returns the logits of the bare model;
    - changes no logit of a position when a later token changes;
    - has attention rows that sum to one, slots included, where its kernel is normalised.
    """
    tokens = sample_tokens(vocab)
    other_ending = tokens.clone()
    other_ending[:, -1] = torch.where(tokens[:, -1] > 0, tokens[:, -1] - 1, 1)

    def verify(calls: Mapping[str, Tensor], logits: Tensor) -> None:
        of_rows = TOLERANCE.get(logits.dtype, 0.1)
        tolerance = of_rows * bare.abs().max().clamp(min=1).item()
        first, second = logits.split(len(bare))
        passed = {
            "its logits are not the bare model's": _distance(first, bare) <= tolerance,
            "a later token changes earlier logits, so it is not causal": (
                _distance(first[:, :-1], second[:, :-1]) <= tolerance
            ),
            "its attention rows do not sum to one": calls["excess"].max().item() <= of_rows,
        }
        for failure, has_passed in passed.items():
            if not has_passed:
                raise InputError(f"{name} cannot be measured: {failure}")

    return Check(torch.cat((tokens, other_ending)), all_logits, verify, calls={"excess": row_excess})


def edits_check(name: str, shape: ModelShape) -> Check:
    """One pass of equal sequences. In each, an edit changes one site of one block: it must change the logits too."""
    rows = [(site, block) for site in _PERTURBATIONS for block in site.layers(shape)]
    tokens = sample_tokens(shape.vocab)[:1, :3].expand(len(rows) + 2, -1).contiguous()  # nothing edits the last two
    edits = [
        kind({block: row for row, (at, block) in enumerate(rows) if at is site})
        for site, kind in _PERTURBATIONS.items()
    ]

    def verify(calls: Mapping[str, Tensor], changes: Tensor) -> None:
        *edited, noise, _ = changes.tolist()
        for (site, block), change in zip(rows, edited, strict=True):
            if not change > 10 * noise:
                raise InputError(f"{name} cannot be edited: the {site.label} of block {block} changes no logit")

    return Check(tokens, changes_to_last, verify, edits=edits)


def all_logits(logits: Logits) -> Logits:
    """The logits themselves."""
    return logits


def changes_to_last(logits: Logits) -> Float[Tensor, " sequence"]:
    """The largest difference between the logits of each sequence and those of the last sequence."""
    return (logits.float() - logits[-1].float()).abs().amax((1, 2))


def row_excess(call: AttentionCall) -> Float[Tensor, " sequence"]:
    """How far the sum of a row is from one, at most, by sequence; 0 where the kernel is not normalised."""
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


@dataclass(frozen=True)
class _Perturbation(Edit):
    """Replaces x by 1 - x in one sequence of each block: `rows` has the sequence by block."""

    rows: dict[int, int]

    def _perturbed(self, block: int, x: Tensor) -> Tensor:
        x = x.clone()
        x[self.rows[block]] = 1 - x[self.rows[block]]
        return x


@dataclass(frozen=True)
class _PerturbResidual(_Perturbation):
    @override
    def residual(self, block: int, x: Residual) -> Residual:
        return self._perturbed(block, x)


@dataclass(frozen=True)
class _PerturbCall(_Perturbation):
    """Its sequence also attends to all values alike, since a slot may have taken all weight."""

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        weights = call.pattern()
        weights[self.rows[call.layer]] = 1 / weights.shape[-1]
        return replace(call, v=self._perturbed(call.layer, call.v)).with_pattern(weights)


@dataclass(frozen=True)
class _PerturbOutput(_Perturbation):
    @override
    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        return self._perturbed(call.layer, z)


@dataclass(frozen=True)
class _PerturbMLP(_Perturbation):
    @override
    def mlp(self, block: int, x: Residual) -> Residual:
        return self._perturbed(block, x) if block in self.rows else x


_PERTURBATIONS: dict[Site, type[_Perturbation]] = {
    RESIDUAL: _PerturbResidual,
    CALL: _PerturbCall,
    OUTPUT: _PerturbOutput,
    MLP: _PerturbMLP,
}


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
