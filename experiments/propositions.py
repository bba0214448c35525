"""Propositions 1 to 4: what attention makes of one token repeated."""

from collections.abc import Callable

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.attention.call import AttentionCall
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.token_sources import repeated_token
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.plots.series import beside_published
from sinkinterp.runs.experiment import Experiment, Scope
from sinkinterp.runs.rules import Within
from sinkinterp.table import Cell, Table

LENGTH, SEQUENCES = 16, 8
CASE, DISTANCE = "proposition, positions", "largest distance"


def _uniform(call: AttentionCall) -> Tensor:
    """Distance of the pattern from uniform attention over the past."""
    uniform = torch.ones(LENGTH, LENGTH).tril()
    return (call.pattern() - uniform / uniform.sum(-1, keepdim=True)).abs().amax((-1, -2))


def _from_bias(call: AttentionCall) -> Tensor:
    """Distance of the pattern from the softmax of the position bias alone."""
    assert call.bias is not None
    future = torch.ones(LENGTH, LENGTH).triu(1).bool()
    return (call.pattern() - call.bias.masked_fill(future, -torch.inf).softmax(-1)).abs().amax((-1, -2))


def _above_bound(call: AttentionCall) -> Tensor:
    """How far the largest weight of a query exceeds the bound of equation 28; 0 where it does not."""
    size = (call.q.norm(dim=-1) * call.k.norm(dim=-1)).amax(-1) * call.scale
    factor = (2 * size).exp()[..., None]
    bound = factor / (factor + torch.arange(LENGTH))
    return (call.pattern().amax(-1) - bound).clamp(min=0).amax(-1)


PROPOSITIONS: dict[str, tuple[str, str, Callable[[AttentionCall], Tensor]]] = {
    "1": ("no_position", "without positions, attention is uniform over the past", _uniform),
    "2": ("t5", "with relative positions, their bias alone makes the pattern", _from_bias),
    "3": ("alibi", "with ALiBi, its bias alone makes the pattern", _from_bias),
    "4": ("llama", "with rotary positions, no weight exceeds a bound by the norms of query and key", _above_bound),
}


def rows(scope: Scope) -> Table:
    """A row per proposition and seed: the largest distance in any layer, head and sequence."""
    made: list[dict[str, Cell]] = []
    for number, (variant, _, distance) in PROPOSITIONS.items():
        spec = VARIANTS[variant]
        tokens = repeated_token(spec.vocab, LENGTH, SEQUENCES).tokens
        for seed in range(scope.seeds):
            subject = HuggingFaceSubject(build(spec, seed))
            largest = subject.run(tokens, calls={"distance": distance}).calls["distance"].max().item()
            made.append({CASE: f"{number}, {variant}", "proposition": number, "seed": seed, DISTANCE: largest})
    note = (
        f"one token repeated, n={SEQUENCES}, T={LENGTH}, fp32, random weights of 1 layer x 1 head, {scope.seeds} seeds"
    )
    return Table("", note, tuple(made))


def draw(table: Table) -> go.Figure:
    """The distance for every proposition."""
    figure = beside_published(Table("Distance from the proposition", table.note, table.rows), CASE, DISTANCE, ())
    return figure.update_yaxes(tickformat=".0e")


EXPERIMENT = Experiment(
    claim="If all tokens are the same, models without learned positions cannot tell the first from the others.",
    rows=rows,
    draw=draw,
    rules=tuple(
        Within(f"proposition {number}: {claim}", DISTANCE, {"proposition": number}, high=1e-5)
        for number, (_, claim, _) in PROPOSITIONS.items()
    ),
)
