"""Figure 4 (left) and Table 8: sinks in small and large models of several families."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import SHARES, estimate_cells, mean_cells
from sinkinterp.report.readings import protocol_note
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import ALPHA_1, MODEL, NULL, SINK_1, Table, published

from .shared.cases import Case, Model, on_models
from .shared.figures import beside_published
from .shared.genuine import Has, models_with
from .shared.papers_models import SINK_OF, TABLE_8
from .shared.rules import MARGIN, above, plus
from .shared.sizes import families

CLAIM = "Attention sinks emerge in small models, too, down to 14 million parameters; in Pythia larger models have more."
REPORTED = SINK_OF  # Figure 4 has curves alone; numbers of some of its models stand in Table 1
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/text-softmax", "sinkinterp/text-softmax-48k"],
    Scale.REAL: models_with(Has.TEXT),
    Scale.PAPER: [*TABLE_8],
}
EPSILON = 0.3


def measure(case: Case, progress: Progress) -> Table:
    """The row of one model: its size, Sink_1 and alpha_1 on natural text; Gemma 3 alone is read with BOS."""
    token_set = case.tokens(case.size(), progress, case.start)
    report = measure_model(case.subject, token_set, positions=(0,), progress=progress(f"measuring {case.subject.name}"))
    shape = case.subject.shape
    row = {
        **case.names,
        "layers x heads": f"{shape.n_layers} x {shape.n_heads}",
        **estimate_cells(SINK_1, report.sink_rate(0, EPSILON)),
        **mean_cells(ALPHA_1, report.alpha().mean((1, 2)), SHARES),
        NULL: report.null_alpha().mean().item(),
        published(SINK_1): REPORTED.get(case.source),
    }
    return Table.of(CLAIM, f"{protocol_note(report, EPSILON)}; null of alpha_1: uniform attention", (row,))


def draw(table: Table) -> go.Figure:
    """Sink_1 of every model."""
    return beside_published(Table("Sink_1 by model", table.note, table.frame), MODEL, SINK_1, (published(SINK_1),))


def _grows(runs: Table) -> Decision:
    """Sink_1 of the largest Pythia is above that of the smallest, interval from interval."""
    sizes = families(runs).get("pythia", ())
    if not sizes:
        return Outcome.NOT_ASKED, "needs Pythias of two sizes: --scale paper, or --model for each"
    largest, smallest = ({MODEL: row[MODEL]} for row in (sizes[-1], sizes[0]))
    return above("", SINK_1, largest, smallest, by=()).decide(runs)


def _small_ones_have_it(runs: Table) -> Decision:
    """Every size of a family has a sink; single models of several families do not tell what size does."""
    rows = [row for family in families(runs).values() for row in family]
    if not rows:
        return Outcome.NOT_ASKED, "needs several sizes of one family: --scale paper, or --model for each"
    of_families = runs.with_rows(rows)
    return above("", ALPHA_1, {}, {}, other_column=NULL, bound=plus(MARGIN)).decide(of_families)


RULES: Sequence[Rule] = (
    Rule(f"every size of a family has a sink: alpha_1 is above its null by {MARGIN:g}", _small_ones_have_it),
    Rule("larger Pythia models have more obvious sinks", _grows),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
