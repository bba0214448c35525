"""What every subject guarantees, whichever library runs it; checked when the subject is made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..attention.shapes import Residual
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.edit import Edit
from . import abilities, perturbations
from .abilities import Abilities
from .subject import CallRead, Logits, ResidualRead

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # relative to the largest logit; else 0.1
Verdict = TypeVar("Verdict", covariant=True)


def weight_tolerance(dtype: torch.dtype) -> float:
    """How far attention weights, and sums of them, may be off: they are fp32 in a model of any dtype."""
    return max(TOLERANCE.get(dtype, 0.1), TOLERANCE[torch.float32])


@dataclass(frozen=True)
class Check(Generic[Verdict]):
    """One forward pass, and what must be true of it.

    summary: what is kept of its logits. verify: what the answers of all reads and the summary show; raises InputError,
    naming the failure. position_ids: those of every sequence, for a model that takes some; None for its own.
    """

    tokens: Tokens
    summary: Callable[[Logits], Tensor]
    verify: Callable[[Mapping[str, Tensor], Tensor], Verdict]
    calls: Mapping[str, CallRead] = field(default_factory=dict)
    residuals: Mapping[str, ResidualRead] = field(default_factory=dict)
    mlps: Mapping[str, ResidualRead] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    position_ids: Int[Tensor, "sequence pos"] | None = None


def sample_tokens(vocab: int) -> Tokens:
    """A few random tokens, always the same for a vocabulary of this size."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


def logits_check(name: str, bare: Logits, vocab: int) -> Check[None]:
    """A pass on `sample_tokens`, and on the same tokens with another last one. It verifies that the subject

    - returns the logits of the bare model, which are `bare` for `sample_tokens`;
    - changes no logit of a position when a later token changes;
    - has attention rows that sum to one, slots included, where its kernel is normalised.

    It also reads the sizes of heads and residuals.
    """
    tokens = sample_tokens(vocab)
    other_ending = tokens.clone()
    other_ending[:, -1] = torch.where(tokens[:, -1] > 0, tokens[:, -1] - 1, 1)

    def verify(answers: Mapping[str, Tensor], logits: Tensor) -> None:
        tolerance = TOLERANCE.get(logits.dtype, 0.1) * bare.abs().max().clamp(min=1).item()
        first, second = logits.split(len(bare))
        passed = {
            "its logits are not the bare model's": _distance(first, bare) <= tolerance,
            "a later token changes earlier logits, so it is not causal": (
                _distance(first[:, :-1], second[:, :-1]) <= tolerance
            ),
            "its attention rows do not sum to one": answers["excess"].max().item() <= weight_tolerance(logits.dtype),
        }
        for failure, has_passed in passed.items():
            if not has_passed:
                raise InputError(f"{name} cannot be measured: {failure}")

    reads: Mapping[str, CallRead] = {"excess": row_excess, "sizes": head_sizes}
    tokens = torch.cat((tokens, other_ending))
    return Check(tokens, all_logits, verify, calls=reads, residuals={"width": width})


def edits_check(name: str, shape: ModelShape, bare: Logits, length: int, gives_positions: bool) -> Check[Abilities]:
    """One pass of equal sequences. It verifies that an edit at any site of any block changes what the block returns.

    The last sequences find the abilities of the subject. Feed-forward updates that are not what their block adds to the
    residual stream count as not found. Where the model counts positions itself (`gives_positions` false), it also
    verifies that the weights and values of calls make up the logits. length: how much of `sample_tokens` is taken.
    """
    n = perturbations.N_SEQUENCES + abilities.N_SEQUENCES
    tokens = sample_tokens(shape.vocab)[:1, :length].expand(n, -1).contiguous()

    def verify(answers: Mapping[str, Tensor], summary: Tensor) -> Abilities:
        changes = abilities.Changes(summary, n)
        is_plain = _is_close(changes.plain, bare[0, length - 1])
        if not (is_plain or gives_positions):
            raise InputError(f"{name} cannot be measured: its queries, keys and values do not give its logits")
        able = abilities.of(answers, changes, shape.mlp_layers, is_plain)
        readable = replace(shape, mlp_layers=able.mlp_layers)
        for site, block in perturbations.lost(answers["changes"], changes.of_sequences, readable):
            raise InputError(f"{name} cannot be edited: a change of the {site.label} of block {block} is lost")
        return able

    return Check(
        tokens,
        abilities.changes,
        verify,
        residuals={**perturbations.RECORDS, **abilities.STREAM},
        mlps=abilities.UPDATES if shape.mlp_layers else {},
        edits=(*perturbations.EDITS, *abilities.EDITS),
        position_ids=abilities.position_ids(tokens) if gives_positions else None,
    )


def all_logits(logits: Logits) -> Logits:
    """The logits themselves."""
    return logits


def row_excess(call: AttentionCall) -> Float[Tensor, " sequence"]:
    """How far the sum of a row is from one, at most, by sequence; 0 where the kernel is not normalised."""
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def head_sizes(call: AttentionCall) -> Int[Tensor, " 4"]:
    """How many query heads and kv heads a call has, and the sizes of their queries and values."""
    return torch.tensor([call.q.shape[1], call.k.shape[1], call.q.shape[3], call.v.shape[3]])


def width(x: Residual) -> Int[Tensor, " 1"]:
    """How many dimensions a residual has."""
    return torch.tensor([x.shape[-1]])


def _is_close(logits: Tensor, bare: Tensor) -> bool:
    return _distance(logits, bare) <= weight_tolerance(bare.dtype) * bare.abs().max().clamp(min=1).item()


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
