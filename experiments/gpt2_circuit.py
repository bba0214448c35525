"""The sink circuit of GPT-2: how much attention to the first token survives when one part of the circuit is cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.attention import sites
from sinkinterp.attention.shapes import Residual
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import (
    Add,
    Change,
    ChangeMLP,
    ChangeOutputs,
    ChangeResidual,
    Edit,
    Zero,
    ZeroKeyBias,
    ZeroQueryBias,
)
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.interventions.changes import RemovePosition
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.sweep import SEEDS, importance
from sinkinterp.metrics.estimates import estimate, estimate_cells, intervals, ratio
from sinkinterp.metrics.metric import Metric
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import Cell, Table

from .shared.cases import Case, Model, check_positions, on_models
from .shared.figures import beside_published
from .shared.rules import within

CLAIM = (
    "In GPT-2 the sink needs p1 as the first feed-forward layer transforms it, a query bias that asks for it, and a "
    "few columns of W_K that answer; the token itself does not matter."
)
PUBLISHED = ("gpt2", "gpt2-medium", "gpt2-large")
REPORTED: dict[str, tuple[float, float, float]] = {
    # arXiv:2604.14722: the share that survives of mean attention to BOS, which is .5637, .5753 and .5015 in the three
    # models. Second-hand: copied from notes on the paper; its texts, its T and what p1 is swapped with are not known.
    # T must be long: uniform attention leaves 13% of .56 at T=64, 2.4% at T=512
    "none": (1.0, 1.0, 1.0),
    "b_Q = 0": (0.445, 0.704, 0.740),
    "drop p1": (0.030, 0.017, 0.039),
    "swap p1's EPE": (0.063, 0.083, 0.034),
    "control: swap raw p1": (0.989, 1.001, 1.000),
    "control: no first token": (0.997, 1.001, 1.005),
    "no first MLP": (0.501, 0.138, 0.206),
    "no positions": (0.180, 0.093, 0.032),
    "zero 3 columns of W_K": (0.652, 0.282, 0.421),
    "control: zero 3 random": (1.001, 1.002, 0.999),
}
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/demo-softmax"],
    Scale.PAPER: ["openai-community/gpt2", "openai-community/gpt2-medium", "openai-community/gpt2-large"],
}
UNIFORM = "null: uniform attention"
OTHER = 9  # the position, from 0, that p1 is swapped with
TOP = 3  # columns of W_K that are cut
SIZE = (25, 512)  # sequences and their length

Cut = Callable[["Circuit"], Sequence[Edit]]  # each of its edits is a run of its own; the mean over the runs counts


def _first(x: Residual) -> Tensor:
    return x[:, 0]


FIRST_RESIDUAL = Metric("first", RESIDUAL, _first)


@dataclass(frozen=True)
class Circuit:
    """A model, the length of its inputs, and the dimensions in which the first token's residual is largest."""

    subject: Subject
    length: int
    dims: tuple[int, ...]

    def check_depth(self) -> None:
        """Raises InputError where nothing attends after the first block."""
        if max(self.subject.shape.attention_layers) == 0:
            raise InputError("no block after the first attends")


def _with_depth(edit: Callable[[Circuit], Edit]) -> Cut:
    """The cut by an edit of the first block, for models in which a later block sees the change."""

    def cut(circuit: Circuit) -> list[Edit]:
        circuit.check_depth()
        return [edit(circuit)]

    return cut


def _random_columns(circuit: Circuit) -> list[Edit]:
    generators = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    return [BlindKeys(circuit.dims).control(circuit.subject.shape, circuit.length, g) for g in generators]


def swap_effective_position(subject: Subject, first: int, second: int, length: int) -> Edit:
    """Two tokens exchange their effective position embedding: p plus what the first feed-forward layer makes of it.

    They exchange it in the residual after block 0, as in the tests of the GPT-2 circuit of arXiv:2604.14722.
    """
    return _exchange(subject, first, second, length, block=1)


def swap_raw_position(subject: Subject, first: int, second: int, length: int) -> Edit:
    """The control of `swap_effective_position`: in the same place, the tokens exchange p alone."""
    return _exchange(subject, first, second, length, block=0)


def _exchange(subject: Subject, first: int, second: int, length: int, block: int) -> Edit:
    """Exchanges, before block 1, what is before `block` of positions alone: without tokens and without attention."""
    tokens = torch.zeros(1, length, dtype=torch.long)
    positions_alone = [Change(sites.TOKEN_EMBEDDING, Zero()), ChangeOutputs(Zero(), layers=[0])]
    x = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)}, edits=positions_alone)["x"][:, block]
    added = torch.zeros_like(x)
    added[:, first] = x[:, second] - x[:, first]
    added[:, second] = -added[:, first]
    return ChangeResidual(Add({1: added}), layers=[1], positions=[first, second])


CUTS: dict[str, Cut] = {
    "b_Q = 0": lambda circuit: [ZeroQueryBias()],
    "control: b_K = 0": lambda circuit: [ZeroKeyBias()],
    "drop p1": lambda circuit: [RemovePosition([0])],
    "swap p1's EPE": _with_depth(lambda c: swap_effective_position(c.subject, 0, OTHER, c.length)),
    "control: swap raw p1": _with_depth(lambda c: swap_raw_position(c.subject, 0, OTHER, c.length)),
    "control: no first token": lambda circuit: [Change(sites.TOKEN_EMBEDDING, Zero(), positions=[0])],
    "no first MLP": _with_depth(lambda circuit: ChangeMLP(Zero(), layers=[0])),
    "no positions": lambda circuit: [RemovePosition()],
    "zero 3 columns of W_K": lambda circuit: [BlindKeys(circuit.dims)],
    "control: zero 3 random": _random_columns,
}


def measure(case: Case, progress: Progress) -> Table:
    """A row per cut: mean alpha_1 over layers and heads, and its share of the untouched model's."""
    check_positions(case)
    subject, size = case.subject, case.size(*SIZE)
    token_set = case.tokens(size, progress)
    on_cut = progress(f"measuring {subject.name}")
    report = measure_model(subject, token_set, positions=(0,), instruments=[(FIRST_RESIDUAL,)])
    block, dims = _largest(report)
    circuit, untouched = Circuit(subject, size[1], dims), importance(report)
    uniform = report.null_alpha(0).mean((1, 2))
    rows = [_row("none", untouched, untouched), _row(UNIFORM, uniform, untouched)]
    for done, (name, cut) in enumerate(CUTS.items()):
        on_cut(done, len(CUTS))
        rows.append(_cut_row(name, cut, circuit, token_set, untouched))
    on_cut(len(CUTS), len(CUTS))
    note = (
        f"{subject.name}: {report.protocol.line()}; {intervals(report.protocol.sequences)}; "
        f"columns of W_K: {', '.join(map(str, dims))}, in which the first token is largest before any layer that "
        f"attends (block {block}); random: {SEEDS} seeds; "
        f"swaps: with t={OTHER + 1}; EPE: p and what the first MLP makes of it; gpt2...: arXiv:2604.14722, second-hand"
    )
    return Table.of(CLAIM, note, tuple({"model": subject.name, "seed": case.seed, **row} for row in rows))


def draw(table: Table) -> go.Figure:
    """Returns what survives every cut in the first model, the published values as hollow marks."""
    model = table.records()[0]["model"]
    return beside_published(table.where(model=model), "cut", "left", PUBLISHED)


def _largest(report: Report) -> tuple[int, tuple[int, ...]]:
    """The block before which an entry of the first token is largest, and the `TOP` largest dimensions there."""
    layers = list(report.attention_layers)
    size = report.extra(FIRST_RESIDUAL)[:, layers].abs().mean(0)
    block = int(size.amax(1).argmax())
    return layers[block], tuple(size[block].topk(TOP).indices.tolist())


def _cut_row(name: str, cut: Cut, circuit: Circuit, token_set: TokenSet, untouched: Tensor) -> dict[str, Cell]:
    """The row of one cut; empty, with a reason, where the model lacks what is cut."""
    try:
        runs = [measure_model(circuit.subject, token_set, edits=[edit], positions=(0,)) for edit in cut(circuit)]
    except InputError as error:
        empty = dict.fromkeys(_row(name, untouched, untouched))
        return empty | _published(name) | {"empty because": str(error).partition(";")[0]}
    return _row(name, torch.stack([importance(report) for report in runs]).mean(0), untouched)


def _row(name: str, alpha: Tensor, untouched: Tensor) -> dict[str, Cell]:
    measured = estimate_cells("alpha_1", estimate(alpha)) | estimate_cells("left", ratio(alpha, untouched))
    return {"cut": name, **measured, **_published(name), "empty because": ""}


def _published(name: str) -> dict[str, Cell]:
    return {"cut": name, **dict(zip(PUBLISHED, REPORTED.get(name, (None,) * len(PUBLISHED)), strict=True))}


_LEFT = "{} leaves less than 60% of the attention to the first token"
_CONTROL = "{} leaves at least 90% of it"
RULES: Sequence[Rule] = (
    *(within(_LEFT.format(cut), "left", {"cut": cut}, high=0.6) for cut in ("drop p1", "no positions")),
    *(
        within(_CONTROL.format(cut), "left", {"cut": cut}, low=0.9)
        for cut in ("control: b_K = 0", "control: no first token")
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
