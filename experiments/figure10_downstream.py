"""Figure 10: the sink against accuracy on a downstream task."""

from collections.abc import Sequence

import plotly.graph_objects as go

from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.metrics.estimates import Estimate, estimate_cells
from sinkinterp.report.readings import protocol_note
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.table import MODEL, SINK_1, Cell, Table, high_of, low_of

from .shared.cases import Case, Model, on_models
from .shared.downstream import CHOICES, ENDINGS, HELLASWAG, accuracy
from .shared.figures import beside_published
from .shared.genuine import Has, models_with
from .shared.papers_models import GPT2, LLAMA2_7B, LLAMA2_13B, LLAMA3, OPT, PYTHIA
from .shared.rules import above, setup
from .shared.sizes import families

CLAIM = (
    "In one family, larger models have more of a sink and are more accurate; across families a weaker sink does not "
    "mean a worse model."
)
REPORTED = {"Gu et al. 2025, Figure 10": "curves only, on HellaSwag"}
PAPERS = (*GPT2, *PYTHIA, *OPT, LLAMA2_7B, LLAMA2_13B, LLAMA3)  # base models, as in the figure
TWINS: list[Model] = [f"sinkinterp/text-{name}" for name in ("softmax", "sigmoid", "k_bias")]
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/text-softmax"],
    Scale.REAL: [*models_with(Has.TEXT), *TWINS],
    Scale.PAPER: [*PAPERS],
}
EPSILON, DOCUMENTS = 0.3, 200
QUESTIONS = 4  # for each sequence, to a model that is measured on few sequences
ALL = 10_042  # what the paper asks its models: the questions of the validation split
ACC, NORMALISED, CHANCE = "accuracy", "accuracy by length", "chance"


def measure(case: Case, progress: Progress) -> Table:
    """The row of one model: Sink_1 on natural text without BOS (ours: with it), and its accuracy on the task."""
    on_part = progress(f"measuring {case.subject.name}")
    on_part(0, 2)
    token_set = case.tokens(case.size(), progress, case.start)
    report = measure_model(case.subject, token_set, positions=(0,))
    on_part(1, 2)
    few = DOCUMENTS if case.most is None else QUESTIONS * case.most
    task, documents = (HELLASWAG, ALL) if case.source in PAPERS else (ENDINGS, few)
    numbers = accuracy(case.source, task, documents)
    on_part(2, 2)
    row: dict[str, Cell] = {
        **case.names,
        **estimate_cells(SINK_1, report.sink_rate(0, EPSILON)),
        **_interval(ACC, numbers, "acc"),
        **_interval(NORMALISED, numbers, "acc_norm"),
        CHANCE: 1 / CHOICES,
        "questions": documents,
    }
    asked = f"task: {task}, {CHOICES} choices, no examples; its intervals: 1.96 standard errors"
    return Table.of(CLAIM, f"{protocol_note(report, EPSILON)}; {asked}", (row,))


def _interval(column: str, numbers: dict[str, float], name: str) -> dict[str, Cell]:
    """The cells of an accuracy, with 1.96 standard errors on both sides."""
    value, error = numbers[name], 1.96 * numbers[f"{name}_stderr"]
    return estimate_cells(column, Estimate(value, max(0.0, value - error), min(1.0, value + error)))


def draw(table: Table) -> go.Figure:
    """Accuracy of every model, with its Sink_1 as a hollow mark."""
    return beside_published(Table("Accuracy and Sink_1", table.note, table.frame), MODEL, ACC, (SINK_1,))


def _is_as_accurate(table: Table, twin: str) -> tuple[bool | None, str]:
    """Whether the interval of the twin's accuracy reaches that of the model with a sink."""
    rows = [table.where(**{MODEL: str(name)}).records() for name in (TWINS[0], twin)]
    if not all(rows):
        return None, "the twins were not measured"
    (sink,), (without,) = rows
    words = (
        f"accuracy {without[ACC]:.1%} at Sink_1 {without[SINK_1]:.1%}, with softmax {sink[ACC]:.1%} at "
        f"{sink[SINK_1]:.1%}; chance 25%"
    )
    above_chance = float(sink[low_of(ACC)] or 0) > 1 / CHOICES
    as_good = float(without[high_of(ACC)] or 0) >= float(sink[ACC] or 0)
    return (as_good if above_chance else None), words


def _is_above_chance(runs: Table) -> Decision:
    """Every model with a sink, Sink_1 of at least 10%, is above chance; our twins are judged by rules of their own."""
    rows = [row for row in runs.records() if row[MODEL] not in TWINS and float(row[low_of(SINK_1)] or 0) >= 0.1]
    return above("", ACC, {}, {}, other_column=CHANCE).decide(Table.of("", "", tuple(rows)))


def _grow_together(runs: Table) -> Decision:
    """The largest model of each family has more of a sink than the smallest, and is more accurate."""
    ends = [(rows[-1], rows[0]) for rows in families(runs).values()]
    if not ends:
        return Outcome.NOT_ASKED, "needs two sizes of a family: --scale paper, or --model for each"
    pairs = tuple(
        {PAIR: i, END: end, VALUE: row[q], low_of(VALUE): row[low_of(q)], high_of(VALUE): row[high_of(q)]}
        for i, (q, pair) in enumerate((q, pair) for pair in ends for q in (SINK_1, ACC))
        for end, row in zip(("largest", "smallest"), pair, strict=True)
    )
    return above("", VALUE, {END: "largest"}, {END: "smallest"}, by=(PAIR,)).decide(Table.of("", "", pairs))


PAIR, END, VALUE = "pair", "end", "value"
RULES: Sequence[Rule] = (
    setup(Rule("a model with a sink is above chance", _is_above_chance)),
    Rule(
        "the sigmoid twin, without a sink, is as accurate as the softmax twin",
        lambda table: _is_as_accurate(table, "sinkinterp/text-sigmoid"),
    ),
    Rule(
        "the twin with K biases is as accurate as the softmax twin",
        lambda table: _is_as_accurate(table, "sinkinterp/text-k_bias"),
    ),
    Rule("in one family, larger models have more of a sink and are more accurate", _grow_together),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
