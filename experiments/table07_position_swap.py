"""Table 7: in a model with learned positions, the sink goes where p1 goes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go

from sinkinterp.applications.position_swap import REPEATED, UNTOUCHED, paper_grid, paper_targets, swap_chart, swap_table
from sinkinterp.backends.encoder import NoEncoder
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.progress import Progress
from sinkinterp.report.readings import short_name
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import EDIT, INPUT, MODEL, SEED, SINK_1, SINK_T, TARGET, Cell, Table
from sinkinterp.train.recipe import RECIPES, demo_recipe, with_variant

from .shared.cases import Case, Model, Named, check_positions, on_models
from .shared.genuine import Has, models_with
from .shared.papers_models import GPT2_XL
from .shared.rules import above, setup, times

CLAIM = "Replacing p1 by p_t removes the sink; swapping p1 with p_t moves it to position t."
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/demo-softmax"],
    Scale.REAL: [*models_with(Has.TABLE), Named("local/whisper-tiny.en", NoEncoder())],
    Scale.DEMO: [demo_recipe("softmax", seed) for seed in range(5)],
    Scale.TEXT: [replace(with_variant(RECIPES["text-repeats"], "learned"), seed=seed) for seed in range(3)],
    Scale.PAPER: [GPT2_XL, "openai-community/gpt2", "facebook/opt-125m"],  # the first is the paper's
}


def measure(case: Case, progress: Progress) -> Table:
    """Sink_1 and Sink_t under every edit on natural (where known), random and repeated inputs.

    Without BOS, as in the paper, and with BOS first where the model has a tokenizer with one.
    """
    check_positions(case)
    size = case.size()
    token_sets = case.token_sets(size, Bos.NEVER, progress)
    if case.bos is Bos.ALWAYS:
        with_bos = case.token_sets(size, Bos.ALWAYS, progress)
        token_sets |= {f"{name}, id {case.bos_token} first": token_set for name, token_set in with_bos.items()}
    swaps = swap_table(
        case.subject, token_sets, paper_targets(size[1]), on_run=progress(f"measuring {case.subject.name}")
    )
    return Table.of(swaps.title, swaps.note, tuple({**case.names, **row} for row in swaps.records()))


def draw(table: Table) -> go.Figure:
    """The swap chart of the first model, and a panel for each other model or seed on the paper's input, which leads."""
    first = _run(table.records()[0])
    shown = [row for row in table.records() if _run(row) == first or row[INPUT] == REPEATED]
    shown.sort(key=lambda row: row[INPUT] != REPEATED)  # the rows of the paper's grid
    has_others = any(_run(row) != first for row in shown)
    named = ({**row, INPUT: ", ".join((str(row[INPUT]), *_run(row)))} for row in shown)
    return swap_chart(table.with_rows(named if has_others else shown))


def _run(row: Mapping[str, Cell]) -> tuple[str, ...]:
    """The model of a row, and its seed if it has one."""
    seeds = () if row.get(SEED) is None else (f"seed {row[SEED]}",)
    return (short_name(str(row[MODEL])), *seeds)


def _repeated(edit: str) -> dict[str, Cell]:
    return {INPUT: REPEATED, EDIT: edit}


BEFORE, REPLACED, SWAPPED, CONTROL = map(_repeated, (UNTOUCHED, "p1 <- p_t", "p1 <-> p_t", "p_t <-> p_t+1"))
BY_TARGET = (MODEL, SEED, TARGET)
MOVES = "the sink moves: after the swap Sink_t is at least half of Sink_1 before"
RULES: Sequence[Rule] = (
    above("replacing p1 by p_t halves Sink_1", SINK_1, BEFORE, REPLACED, bound=times(2.0)),
    above("swapping p1 and p_t halves Sink_1", SINK_1, BEFORE, SWAPPED, bound=times(2.0)),
    above(MOVES, SINK_T, SWAPPED, BEFORE, bound=times(0.5), other_column=SINK_1),
    above("after the swap Sink_t is above that after the control", SINK_T, SWAPPED, CONTROL, by=BY_TARGET),
    setup(above("the control leaves at least 90% of Sink_1", SINK_1, CONTROL, BEFORE, bound=times(0.9))),
)

EXPERIMENT = replace(on_models(CLAIM, MODELS, measure, draw, RULES), digest=paper_grid)
