"""The front page of the book: five findings, then every claim by what it is about, its verdict beside its title."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from ..errors import InputError
from ..report.columns import ALPHA_1, MODEL, SINK_1
from ..runs.arm_figures import importances
from ..runs.catalogue import Scale, experiment_names
from ..runs.experiment import load_experiment
from ..runs.rules import Outcome, Verdict, standing
from ..table import published
from .chapters import NO_VERDICT, Chapter
from .document import asset
from .page import thumbnail_of, with_figures
from .passages import FINDINGS, passages

TITLE = "What is true of attention sinks"
LEAD = (
    "Language models pour attention onto their first token. We repeated the experiments of a paper (Gu et al. 2025, "
    "arXiv:2410.10781) and asked some more: on SmolLM2, Whisper, and small models that we trained."
)
GROUPS: Mapping[str, Sequence[str]] = {  # beginnings of the chapters' names
    "What a sink is": ("table01", "figure19", "figure04_scale", "figure03", "figure09", "figure10", "atlas_of_models"),
    "What carries it": ("figure02", "massive", "removing", "patching", "figure07", "gpt2_circuit", "what_biases"),
    "Where it stands": (
        "table07", "table03", "table10_fixed", "marked", "figure05_prefix", "figure06", "windows_and", "propositions",
    ),
    "What takes its place": ("twins", "text_twins", "table04", "table05", "table13", "table12"),
    "What prevents it": ("table06", "table14", "figure29", "normalisation", "equation32", "streaming", "figure30"),
    "When it comes in training": (
        "figure04_dynamics", "table09", "table02", "figure05_data", "table10_batch", "table11", "section7",
    ),
}  # fmt: skip
OTHERS = "Other experiments"
THEIRS = "that of the paper's models, of 60 million parameters, counts many heads, and most of them have no sink"
WHY = {
    Scale.DEMO: f"Why ours is not the paper's: a single head decides Sink_1 of our toys; {THEIRS}.",
    Scale.TEXT: f"Why ours is not the paper's: three to five heads decide Sink_1 of our small models; {THEIRS}.",
    Scale.REAL: "Why ours is not the paper's: it is another model, and a smaller one.",
}
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d.,]*(?:e[+-]?\d+)?%?(?: \[[^\]]{1,40}\])?(?: (?:of|to) [+-]?\d[\d.,]*%?)?")


def front_page(chapters: Sequence[Chapter], plotly: str | None = None, story: str | None = None) -> str:
    """Findings and claims as a page that filters the claims. All text from data is escaped.

    plotly: the path of a file with plotly.js, from the page on. story: the path of the page that tells the findings.
    """
    judged = [chapter for chapter in chapters if not observes(chapter)]
    counts = Counter(verdict.outcome for chapter in judged for verdict in chapter.verdicts)
    buttons = "".join(
        f'<button data-show="{outcome}" class="{_style(outcome)}">{outcome} ({counts[outcome]})</button>'
        for outcome in Outcome
        if counts[outcome]
    )
    claims = sum(bool(chapter.verdicts) for chapter in judged)
    more = f' <a href="{escape(story)}">Read them as a story, with live figures.</a>' if story else ""
    body = (
        f'<h1>{TITLE}</h1><p class="lead">{LEAD}</p>\n{_findings(chapters, more)}'
        f"<h2>Every claim, and what our runs say</h2>"
        f"<p>{claims} claims, judged by {sum(counts.values())} rules that were written down in code. A rule says which "
        "numbers support its claim. Click a title for the numbers.</p>"
        f'<nav class="filter" aria-label="rules by verdict"><button data-show="">all ({sum(counts.values())})</button>'
        f"{buttons}</nav>\n<main>{''.join(_group(*group) for group in _grouped(chapters))}</main>"
    )
    return with_figures(TITLE, body, plotly, asset("book.css"), asset("book.js"))


def observes(chapter: Chapter) -> bool:
    """Whether a chapter says what models have where the paper claims nothing, as the atlas does."""
    return any(verdict.outcome in (Outcome.SINK, Outcome.NO_SINK) for verdict in chapter.verdicts)


def why_ours_differs(chapter: Chapter, by: float = 0.1) -> str:
    """A sentence that says why our Sink_1 is not the paper's; empty where all are within `by`, or not compared."""
    table, paper = chapter.table, published(SINK_1)
    if paper not in table.columns or SINK_1 not in table.columns or chapter.scale not in WHY:
        return ""
    pairs = zip(table.numbers(SINK_1), table.numbers(paper), strict=True)
    return WHY[Scale(chapter.scale)] if any(abs(ours - theirs) > by for ours, theirs in pairs) else ""


def _findings(chapters: Sequence[Chapter], more: str) -> str:
    cards = "".join(
        f'<article class="finding"><h3><a href="{escape(told.chapter.stem)}.html">{escape(told.title)}</a></h3>'
        f"{thumbnail_of(told.figure, f'finding-{told.name}')}<p>{_with_whole_numbers(told.text)}</p></article>"
        for told in passages(chapters, FINDINGS)
    )
    words = {5: "Five findings", 0: ""}.get(cards.count("<article"), "Findings")
    return f'<h2>{words}</h2><p>In short, with our numbers.{more}</p><div class="cards">{cards}</div>' if cards else ""


def _grouped(chapters: Sequence[Chapter]) -> list[tuple[str, list[Chapter]]]:
    """The chapters by what they are about, in the order of `GROUPS`; those of no group stand last."""
    waiting, grouped = list(chapters), []
    for title, beginnings in GROUPS.items():
        inside = [c for beginning in beginnings for c in waiting if c.name.startswith(beginning)]
        waiting = [chapter for chapter in waiting if chapter not in inside]
        grouped.append((title, inside))
    return [(title, inside) for title, inside in (*grouped, (OTHERS, waiting)) if inside]


def _group(title: str, chapters: Sequence[Chapter]) -> str:
    return f'<section><h3>{title}</h3><div class="cards">{"".join(map(_card, chapters))}</div></section>'


def _card(chapter: Chapter) -> str:
    name, held = escape(chapter.stem), _badge(chapter)
    figure = small_figure(chapter)
    picture = thumbnail_of(figure, f"figure-{name}") if figure is not None else ""
    rules = "".join(map(_rule, chapter.verdicts))
    count = len(chapter.verdicts)
    folded = f"<details><summary>{count} rule{'s' * (count != 1)}</summary><ul>{rules}</ul></details>" if count else ""
    why = why_ours_differs(chapter, by=0.5)
    note = f"<p><small>{escape(why)}</small></p>" if why else ""
    return (
        f'<article><h4><a href="{name}.html">{escape(chapter.heading)}</a></h4>{held}{picture}'
        f"<p>{escape(chapter.table.title)}</p>{note}{folded}<footer>scale: {escape(chapter.scale)}</footer></article>"
    )


def _badge(chapter: Chapter) -> str:
    """The verdict in a few words, in the colour of what most rules say."""
    if not chapter.verdicts:
        return f'<b class="badge">{NO_VERDICT}</b>'
    if observes(chapter):
        counts = Counter(str(verdict.outcome) for verdict in chapter.verdicts)
        return f'<b class="badge">{", ".join(f"{n} {name}" for name, n in counts.most_common(2))}</b>'
    outcomes = {verdict.outcome for verdict in chapter.verdicts if verdict.outcome is not Outcome.NOT_ASKED}
    tone = _style(next(iter(outcomes))) if len(outcomes) == 1 else "mixed"
    return f'<b class="badge {tone}">{escape(standing(chapter.verdicts) or "not asked")}</b>'


def small_figure(chapter: Chapter) -> go.Figure | None:
    """The figure that a card shows a small copy of: importances of trained models, or the experiment's own.

    None where there is no such experiment, or its numbers are older than its module and cannot be drawn.
    """
    table = chapter.table
    is_study = "state" in table.columns or ("paper loss" in table.columns and MODEL in table.columns)
    if is_study and ALPHA_1 in table.columns and not observes(chapter):
        return importances(table)
    try:
        return load_experiment(chapter.name).draw(table) if chapter.name in experiment_names() else None
    except InputError:
        return None


def _rule(verdict: Verdict) -> str:
    outcome = verdict.outcome
    return (
        f'<li data-outcome="{outcome}"><b class="{_style(outcome)}">{outcome}</b> {escape(verdict.claim)}'
        f"<small>{_with_whole_numbers(verdict.reason)}</small></li>"
    )


def _with_whole_numbers(text: str) -> str:
    """The text as HTML in which no line ends inside a number or its interval."""
    return _NUMBER.sub(lambda found: f"<span>{found[0]}</span>", escape(text))


def _style(outcome: Outcome) -> str:
    return outcome.value.replace(" ", "-")
