"""Sets every trained model and rule of the paper's claims side by side, for docs/claims.md: paper, toys and text."""

from collections.abc import Mapping
from pathlib import Path

from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import Outcome, load_experiment
from sinkinterp.table import ALPHA_1, LOSS, MODEL, NULL, SINK_1, SLOT_RATE, Cell, published

from .chapter import Chapter, chapters_in

Row = Mapping[str, Cell]
Study = tuple[Chapter, dict[Cell, Row]]  # with its digest, by model
ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "claims.md"
SCALES = {Scale.DEMO: "toys", Scale.TEXT: "text", Scale.GPU: "text without BOS"}
HEAD = """# The paper's claims, model by model

`python -m experiments.book` makes these tables from the numbers in [figures/book](../figures/book/index.html).
Numbers are means over the seeds that ended well. If some did not, the cell says how many. Sink_1 and Sink_* are shares
of heads and sequences above epsilon .3. A cell of alpha_1 also has its range over seeds and its
null. Loss is in nats. The paper's models have 60 million parameters and are read at T=64 without BOS. Toys: one layer
of two heads, T=16, no BOS, n=512, fp32, five seeds. Text: five layers of one head, T=64, BOS first, n=256, fp32, three
or five seeds. Text without BOS: four layers of two heads, T=64, n=256, fp32, three seeds. Chapters give
intervals, [the list of verdicts](verdicts.md) explains their words, and [the results](../RESULTS.md) discuss them.
"""


def page() -> str:
    """The tables as Markdown, those of the paper's tables first."""
    studies: dict[str, dict[str, Study]] = {}
    for chapter in chapters_in(ROOT / "figures" / "book"):
        digest = load_experiment(chapter.name).digest(chapter.table).records()
        has_claim = not {verdict.outcome for verdict in chapter.verdicts} & {Outcome.SINK, Outcome.NO_SINK}
        if "trained" in digest[0] and has_claim:
            studies.setdefault(chapter.name, {})[chapter.scale] = chapter, {row[MODEL]: row for row in digest}
    names = sorted(studies, key=lambda name: (not name.startswith("table"), name))
    return HEAD + "".join(_section(name, studies[name]) for name in names)


def _section(name: str, by_scale: dict[str, Study]) -> str:
    """A claim: its models, and its rules."""
    digests = {word: by_scale[scale][1] if scale in by_scale else {} for scale, word in SCALES.items()}
    models: list[dict[str, str]] = []
    for model in dict.fromkeys(model for digest in digests.values() for model in digest):
        rows = {word: digest.get(model, {}) for word, digest in digests.items()}
        paper = next(row for row in rows.values() if row)
        cells = {f"paper: {column}": _share(paper.get(published(column))) for column in (SINK_1, SLOT_RATE)}
        cells |= {f"{word}: {column}": cell for word, row in rows.items() for column, cell in _cells(row).items()}
        models.append({"model": str(model), **cells})
    rules: dict[str, dict[str, str]] = {}
    for scale, (chapter, _) in by_scale.items():
        for verdict in chapter.verdicts:
            said = rules.setdefault(verdict.claim, {"rule": verdict.claim, **dict.fromkeys(SCALES.values(), "")})
            said[SCALES[Scale(scale)]] = f"{'set-up, ' * verdict.is_setup}**{verdict.outcome.value}**: {verdict.reason}"
    title = next(chapter.summary for chapter, _ in by_scale.values())
    tables = [*_table(models), "", *_table([*rules.values()])]
    return "\n".join(["", f"## {title}", "", f"`sinkinterp reproduce {name}`", "", *tables, ""])


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Lines of Markdown; columns without a cell are left out."""
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = [[*columns], ["---"] * len(columns), *([row[column] for column in columns] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cells(row: Row) -> dict[str, str]:
    """What is said of a model; nothing where it was not trained, or where no seed ended well."""
    done, _, of = str(row.get("trained", "")).partition(" of ")
    cells = {"seeds": "" if done == of else f"{done} of {of}"}
    if row.get(ALPHA_1) is None:
        return cells | dict.fromkeys((SINK_1, ALPHA_1, SLOT_RATE, LOSS), "")
    alpha = f"{_number(row[ALPHA_1])}, {row['its range']} ({_number(row[NULL])})"
    shares = {SINK_1: _share(row[SINK_1]), ALPHA_1: alpha, SLOT_RATE: _share(row.get(SLOT_RATE))}
    return cells | shares | {LOSS: _number(row[LOSS])}


def _share(cell: Cell) -> str:
    return "" if cell is None else f"{100 * float(cell):.1f}%"


def _number(cell: Cell) -> str:
    return "" if cell is None else f"{float(cell):.3f}"
