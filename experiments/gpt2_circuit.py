"""The sink circuit of GPT-2: how much attention to the first token survives when one part of it is cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.attention.shapes import Residual
from sinkinterp.backends.subject import Subject
from sinkinterp.data.tokens import TokenSet, random_tokens
from sinkinterp.errors import InputError
from sinkinterp.interventions import (
    BlindKeys,
    ChangeMLP,
    ChangeTokenEmbedding,
    Edit,
    RemovePosition,
    Zero,
    ZeroKeyBias,
    ZeroQueryBias,
)  # fmt: skip
from sinkinterp.measurement.instruments import Instrument
from sinkinterp.measurement.measure import measure as measured
from sinkinterp.measurement.patching import swap_effective_position, swap_raw_position
from sinkinterp.measurement.report import Report
from sinkinterp.measurement.sweep import SEEDS, importance
from sinkinterp.metrics.bootstrap import BY_SEQUENCE, cells, estimate, ratio
from sinkinterp.plots import bars
from sinkinterp.runs.experiment import Case, Model, Tell
from sinkinterp.table import Cell, Table

CLAIM = (
    "In GPT-2 the sink needs p1 as the first feed-forward layer transforms it, a query bias that asks for it, and a "
    "few columns of W_K that answer; the token itself does not matter."
)
PUBLISHED = ("gpt2", "gpt2-medium", "gpt2-large")
REPORTED: dict[str, tuple[float, float, float]] = {
    # arXiv:2604.14722: share of mean attention to BOS that survives, of .5637, .5753 and .5015 in the three models.
    # Second-hand: copied from notes on the paper; its texts, its T and what p1 is swapped with are not known. T is
    # long: uniform attention leaves 13% of .56 at T=64, 2.4% at T=512
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
MODELS: dict[str, list[Model]] = {
    "smoke": ["sinkinterp/demo-softmax"],
    "full": ["openai-community/gpt2", "openai-community/gpt2-medium", "openai-community/gpt2-large"],
}
UNIFORM = "null: uniform attention"
OTHER = 9  # the position that p1 is swapped with: t = 10
TOP = 3  # columns of W_K
EXTENT = (25, 512)  # sequences and their length


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


def _in_second(edit: Callable[[Circuit], Edit]) -> Callable[[Circuit], list[Edit]]:
    """The edit, of models where a later block sees what it does to the first."""

    def plan(circuit: Circuit) -> list[Edit]:
        circuit.check_depth()
        return [edit(circuit)]

    return plan


def _random_columns(circuit: Circuit) -> list[Edit]:
    generators = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
    return [BlindKeys(circuit.dims).control(circuit.subject.shape, circuit.length, g) for g in generators]


CUTS: dict[str, Callable[[Circuit], Sequence[Edit]]] = {  # each edit is a run of its own; the mean over them counts
    "b_Q = 0": lambda circuit: [ZeroQueryBias()],
    "control: b_K = 0": lambda circuit: [ZeroKeyBias()],
    "drop p1": lambda circuit: [RemovePosition([0])],
    "swap p1's EPE": _in_second(lambda c: swap_effective_position(c.subject, 0, OTHER, c.length)),
    "control: swap raw p1": _in_second(lambda c: swap_raw_position(c.subject, 0, OTHER, c.length)),
    "control: no first token": lambda circuit: [ChangeTokenEmbedding(Zero(), positions=[0])],
    "no first MLP": _in_second(lambda circuit: ChangeMLP(Zero(), layers=[0])),
    "no positions": lambda circuit: [RemovePosition()],
    "zero 3 columns of W_K": lambda circuit: [BlindKeys(circuit.dims)],
    "control: zero 3 random": _random_columns,
}


def measure(case: Case, tell: Tell) -> Table:
    """A row per cut: mean alpha_1 over layers and heads, and its share of the untouched model's."""
    case.check_positions()
    subject, (sequences, length) = case.subject, case.extent(*EXTENT)
    natural = case.natural((sequences, length), case.bos, tell("reading docstrings"))
    token_set = natural or random_tokens(subject.shape.vocab, length, sequences)
    on_run = tell(f"measuring {subject.name}")
    whole = measured(subject, token_set, positions=(0,), instruments=(Instrument(residuals={"first": _first}),))
    block, dims = _largest(whole)
    circuit, before = Circuit(subject, length, dims), importance(whole)
    uniform = whole.null_alpha(0).mean((1, 2))
    rows = [
        {**_row(name, alpha, before), "empty because": ""} for name, alpha in (("none", before), (UNIFORM, uniform))
    ]
    for done, (name, plan) in enumerate(CUTS.items()):
        on_run(done, len(CUTS))
        rows.append(_cut(name, plan, circuit, token_set, before))
    on_run(len(CUTS), len(CUTS))
    note = (
        f"{subject.name}: {whole.protocol.line()}; {BY_SEQUENCE}; "
        f"columns of W_K: {', '.join(map(str, dims))}, in which the first token is largest before any layer that "
        f"attends (block {block}); random: {SEEDS} seeds; "
        f"swaps: with t={OTHER + 1}; EPE: p and what the first MLP makes of it; gpt2...: arXiv:2604.14722, second-hand"
    )
    return Table(CLAIM, note, tuple({"model": subject.name, "seed": case.seed, **row} for row in rows))


def draw(table: Table) -> go.Figure:
    """What survives every cut in the first model, published values as hollow marks."""
    first = table.rows[0]
    return bars.beside_published(table.where(model=first["model"]), "cut", "left", PUBLISHED)


def _first(x: Residual) -> Tensor:
    return x[:, 0]


def _largest(report: Report) -> tuple[int, tuple[int, ...]]:
    """The block before which an entry of the first token is largest, and the `TOP` largest dimensions there."""
    layers = list(report.attention_layers)
    size = report.extra("first")[:, layers].abs().mean(0)
    block = int(size.amax(1).argmax())
    return layers[block], tuple(size[block].topk(TOP).indices.tolist())


def _cut(
    name: str, plan: Callable[[Circuit], Sequence[Edit]], circuit: Circuit, token_set: TokenSet, before: Tensor
) -> dict[str, Cell]:
    """The row of one cut, empty with a reason where the model lacks what it cuts."""
    try:
        after = [
            importance(measured(circuit.subject, token_set, edits=[edit], positions=(0,))) for edit in plan(circuit)
        ]
    except InputError as error:
        return {**dict.fromkeys(_row(name, before, before)), **_published(name), "empty because": _reason(error)}
    return {**_row(name, torch.stack(after).mean(0), before), "empty because": ""}


def _row(name: str, after: Tensor, before: Tensor) -> dict[str, Cell]:
    numbers = cells("alpha_1", estimate(after)) | cells("left", ratio(after, before))
    return {"cut": name, **numbers, **_published(name)}


def _published(name: str) -> dict[str, Cell]:
    return {"cut": name, **dict(zip(PUBLISHED, REPORTED.get(name, (None,) * len(PUBLISHED)), strict=True))}


def _reason(error: InputError) -> str:
    return str(error).partition(";")[0]
