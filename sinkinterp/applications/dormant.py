"""Dormant heads: which heads only look at the sink and write little, and how many a model does without.

found = dormant_heads("gpt2", texts, other=more_texts)
found.heads  # pairs (layer, head): si.measure("gpt2", texts, edits=ChangeOutputs(Zero(), heads=found.heads))
found.answer(), found.table(), found.cuts, found.plot()

Sources: Guo et al. 2024, arXiv:2410.13835 (active and dormant heads); Sandoval-Segura et al. 2025, arXiv:2504.03889
(heads of small output norm); Michel et al. 2019, arXiv:1905.10650 (importance of heads by gradients).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

from ..backends.frozen import FrozenRun, freezable, frozen
from ..backends.subject import Subject
from ..checks import LARGEST, check_count, finite_number, whole_number
from ..data.progress import OnProgress, progress_of
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import ChangeOutputs, Zero
from ..measurement.measure import ModelLike, equal_inputs_of, run_note
from ..measurement.patching import attribution
from ..measurement.quantities import TokenLosses, token_losses
from ..metrics.estimates import SHARES, SIZES, intervals, mean_cells
from ..metrics.importance import check_epsilon, first_importance, slot_importance
from ..metrics.metric import PerSequence, next_token_loss
from ..plots.theme import colour, sweep_figure, themed
from ..table import ADDED, ALPHA_1, HEAD, INPUT, LAYER, SINK_RATE, Cell, Table

CHOSEN_BY, HEADS, AS_MANY = "chosen by", "heads", "added loss, as many heads"
WRITE, LARGEST_WRITE, IS_DORMANT = "write / stream", "largest write / stream", "dormant"
DORMANT, BY_ALPHA, BY_WRITE = "sink and least write", "most attention to the sink", "least write"
BY_ATTRIBUTION, AT_RANDOM = "least attribution", "random"
CHOSEN, HELD_OUT, OTHER = "texts of the choice", "other texts", "another source"
DRAWS, CHUNK = 3, 512  # random orders; tokens whose writes are held at once
Head = tuple[int, int]
Row = dict[str, Cell]
PerTextAndHead = Float[Tensor, "sequence head"]  # heads of all layers, in order


@dataclass(frozen=True, repr=False)
class DormantHeads:
    """Heads that only look at the sink, and what a model loses without them.

    heads: the most dormant heads that can be zeroed together, as (layer, head). readings: a row for every head.
    cuts: how many heads each way of choosing allows, and their cost on each kind of text. budget: in nats.
    """

    heads: tuple[Head, ...]
    readings: Table
    cuts: Table
    budget: float

    def __repr__(self) -> str:
        return f"<DormantHeads: {len(self.heads)} of {len(self.readings.frame)} heads at +{self.budget:g} nats>"

    def answer(self) -> str:
        """Returns which heads can be left out, and what that costs, in three sentences."""
        if not self.heads:
            return f"No head that looks at the sink can be left out at +{self.budget:g} nats."
        names = ", ".join(f"{layer}.{head}" for layer, head in self.heads[:8])
        more = f" and {len(self.heads) - 8} more" if len(self.heads) > 8 else ""
        last = self.cuts.records()[-1][INPUT]
        rows = self.cuts.where(**{INPUT: last})
        costs = dict(zip(rows.frame[CHOSEN_BY], rows.numbers(AS_MANY), strict=True))
        others = ", ".join(f"{name} {cost:.3f}" for name, cost in costs.items() if name != DORMANT)
        return (
            f"{len(self.heads)} of {len(self.readings.frame)} heads look at the sink and can be left out together at "
            f"+{self.budget:g} nats: {names}{more}. On {last} they cost {costs[DORMANT]:.3f} nats. "
            f"As many heads chosen in other ways cost: {others}."
        )

    def table(self) -> Table:
        """Attention to the sink and relative write of every head, on the texts of the choice."""
        return self.readings

    def to_dict(self) -> dict[str, Any]:
        """JSON for pruners: the heads as [layer, head], and the budget in nats."""
        return {"heads": [list(head) for head in self.heads], "budget": self.budget, "note": self.cuts.note}

    def plot(self) -> go.Figure:
        """The figure of `cuts`."""
        return self.cuts.plot()


def dormant_heads(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    other: TokensLike | Any = None,
    *,
    budget: float = 0.01,
    epsilon: float = 0.3,
    seed: int = 0,
    progress: bool | OnProgress = True,
) -> DormantHeads:
    """Which heads only look at the sink, and how many of them can be zeroed together at +`budget` nats.

    A head is a candidate if it gives the sink (the first token, or a slot) more than `epsilon` of its attention, mean
    over texts. Candidates are zeroed in the order of what they write: the norm behind the output projection over that
    of the stream, mean over tokens but the first. The heads are chosen on every other text. They are judged on the
    rest, and on `other` texts where these are given. Takes models and tokens as `measure` does, of one length. Raises
    InputError for fewer than two texts, and for models whose heads' writes cannot be read.
    """
    finite_number(budget, "budget, an added loss in nats such as 0.01,", above=0)
    check_epsilon(epsilon)
    subject, given = equal_inputs_of(model, tokens)
    freezable(subject)
    check_count(given, "texts, one half to choose heads on and one to judge them on", 2)
    texts = {CHOSEN: given[::2], HELD_OUT: given[1::2]}
    if other is not None:
        texts[OTHER] = equal_inputs_of(subject, other)[1]
    heads = [(layer, head) for layer in subject.shape.attention_layers for head in range(subject.shape.n_heads)]
    generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0, LARGEST))
    with progress_of(progress, f"leaving out heads of {subject.name}") as show:
        alpha, write = _readings(subject, texts[CHOSEN])
        orders = _orders(subject, texts[CHOSEN], alpha.mean(0), write.mean(0), epsilon, generator)
        whole = {name: token_losses(subject, some) for name, some in texts.items()}
        cut = _Cut(subject, heads, texts, whole, show)
        sizes = {name: [cut.most(order, budget) for order in some] for name, some in orders.items()}
        chosen = orders[DORMANT][0][: sizes[DORMANT][0]]
        ways = product(orders, texts)
        rows = tuple(cut.row(name, text, orders[name], sizes[name], len(chosen)) for name, text in ways)
    found = tuple(sorted(heads[i] for i in chosen))
    note = run_note(subject, given)
    figure = partial(sweep_figure, x=CHOSEN_BY, quantities=(HEADS, ADDED, AS_MANY), by=INPUT)
    readings = tuple(_reading_rows(heads, found, alpha, write, epsilon))
    read = Table.of("Which heads only look at the sink?", f"{note}; {_READ}; {intervals(len(alpha))}", readings, _map)
    cuts = Table.of("How many heads can be left out?", f"{note}; {_note(texts, budget, epsilon)}", rows, figure)
    return DormantHeads(found, read, cuts, budget)


_READ = (
    "sink: the first token, or a slot; write: norm behind the output projection over that of the stream, mean over "
    "tokens but the first"
)


def _note(texts: Mapping[str, Tokens], budget: float, epsilon: float) -> str:
    counts = ", ".join(f"{name} n={len(some)}" for name, some in texts.items())
    return (
        f"{counts}; heads: the largest number that adds at most {budget:g} nats on {CHOSEN}, by bisection; {DORMANT}: "
        f"of heads with {ALPHA_1} above {epsilon:g}; as many heads: as {DORMANT} allows; attribution: gradient times "
        f"output; {AT_RANDOM}: mean of {DRAWS} orders; null: 0, no head left out; in nats; 95% intervals over texts"
    )


@dataclass(frozen=True)
class _Cut:
    """The loss that a model adds without some of its heads. whole: the loss with all of them, by kind of text."""

    subject: Subject
    heads: Sequence[Head]
    texts: Mapping[str, Tokens]
    whole: Mapping[str, TokenLosses]
    show: OnProgress
    known: dict[tuple[str, frozenset[int]], PerSequence] = field(default_factory=dict)

    def added(self, text: str, chosen: Sequence[int]) -> PerSequence:
        """The mean added loss of every text in nats, with these heads set to zero at all positions."""
        key = text, frozenset(chosen)
        if key not in self.known:
            self.show(len(self.known), 0)
            edits = [ChangeOutputs(Zero(), heads=[self.heads[i] for i in chosen])] if chosen else []
            self.known[key] = (token_losses(self.subject, self.texts[text], edits) - self.whole[text]).mean(1)
        return self.known[key]

    def most(self, order: Sequence[int], budget: float) -> int:
        """How many heads of an order fit the budget on the texts of the choice, as if each added loss."""
        sizes = range(1, len(order) + 1)
        return bisect_right(sizes, budget, key=lambda size: self.added(CHOSEN, order[:size]).mean().item())

    def row(self, name: str, text: str, orders: Sequence[Sequence[int]], sizes: Sequence[int], many: int) -> Row:
        """What heads chosen in one way cost on one kind of text, mean over orders: each size, and `many` of them."""
        own = [self.added(text, order[:size]) for order, size in zip(orders, sizes, strict=True)]
        same = [self.added(text, order[:many]) for order in orders]
        added, as_many = (torch.stack(costs).mean(0) for costs in (own, same))
        cells = mean_cells(ADDED, added) | mean_cells(AS_MANY, as_many)
        return {CHOSEN_BY: name, INPUT: text, HEADS: fmean(sizes), **cells}


def _readings(subject: Subject, tokens: Tokens) -> tuple[PerTextAndHead, PerTextAndHead]:
    """The attention of every head to the sink, and its write over the stream."""
    parts = []
    for batch in tokens.split(max(1, CHUNK // tokens.shape[1])):
        with frozen(subject, batch) as run:
            parts.append(torch.cat([_of_layer(run, layer) for layer in sorted(run.calls)], -1).cpu())
    alpha, write = torch.cat(parts, 1)
    return alpha, write


def _of_layer(run: FrozenRun, layer: int) -> Float[Tensor, "2 sequence head"]:
    call, x = run.calls[layer], run.trace["x"][:, layer, 1:]
    to_sink = first_importance(call) + slot_importance(call)
    write = run.writes(layer)[:, :, 1:].float().norm(dim=-1) / x.float().norm(dim=-1)
    return torch.stack((to_sink.float(), write.mean(-1).T))


def _orders(
    subject: Subject, tokens: Tokens, alpha: Tensor, write: Tensor, epsilon: float, generator: torch.Generator
) -> dict[str, list[list[int]]]:
    """The orders in which each way of choosing leaves out heads; several where they are drawn."""
    by_write = write.argsort().tolist()
    return {
        DORMANT: [[i for i in by_write if alpha[i] > epsilon]],
        BY_ALPHA: [alpha.argsort(descending=True).tolist()],
        BY_WRITE: [by_write],
        BY_ATTRIBUTION: [_attributions(subject, tokens).argsort().tolist()],
        AT_RANDOM: [torch.randperm(len(alpha), generator=generator).tolist() for _ in range(DRAWS)],
    }


def _attributions(subject: Subject, tokens: Tokens) -> Float[Tensor, " head"]:
    """The size of what zeroing each head adds to the loss to first order, mean over texts."""
    shape = subject.shape
    width = (len(tokens), shape.n_heads, tokens.shape[1], shape.d_value or shape.d_head)
    nothing = {layer: torch.zeros(width) for layer in shape.attention_layers}
    found = attribution(ChangeOutputs(), subject, tokens, nothing, lambda *given: next_token_loss(*given).mean(1))
    return torch.cat([x.sum(-1).abs().mean(0) for x in found.values()]).float().cpu()


def _reading_rows(
    heads: Sequence[Head], dormant: Sequence[Head], alpha: PerTextAndHead, write: PerTextAndHead, epsilon: float
) -> Iterator[Row]:
    for i, (layer, head) in enumerate(heads):
        yield {
            LAYER: layer,
            HEAD: head,
            IS_DORMANT: "yes" if (layer, head) in dormant else "no",
            **mean_cells(ALPHA_1, alpha[:, i], SHARES),
            SINK_RATE: (alpha[:, i] > epsilon).float().mean().item(),
            **mean_cells(WRITE, write[:, i], SIZES),
            LARGEST_WRITE: write[:, i].max().item(),
        }


def _map(table: Table) -> go.Figure:
    """Every head: its write over its attention to the sink."""
    figure = go.Figure()
    for i, name in enumerate(("no", "yes")):
        rows = table.where(**{IS_DORMANT: name})
        points = {"x": rows.numbers(ALPHA_1), "y": rows.numbers(WRITE), "marker": {"color": colour(i), "size": 8}}
        names = [f"layer {row[LAYER]}, head {row[HEAD]}" for row in rows.records()]
        figure.add_scatter(**points, text=names, mode="markers", name=f"dormant: {name}")
    figure.update_xaxes(title=ALPHA_1, range=[-0.03, 1.03]).update_yaxes(title=WRITE, type="log")
    return themed(figure, table.title, 480, table.note)
