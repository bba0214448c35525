"""What commands print unless --full is given: a sentence, the numbers that matter, and how they were measured."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from ..table import Table

if TYPE_CHECKING:
    from ..report.readings import TokenText
    from ..report.report import Report

LINES, SHADES, STRONGEST, ROWS = 14, " ░▒▓█", 5, 8
ELSEWHERE = "All tables: --full. A page: --html FILE. Every number: --save FILE.safetensors, .csv or .json."


def brief(sentence: str, table: Table, elsewhere: str, note: str | None = None) -> tuple[Text | Table | str, ...]:
    """A sentence, the first rows of one table and how many it has, its note or another one, and where the rest is."""
    said = table.note if note is None else note
    count = f" ({ROWS} of {len(table)} rows, the rest with --full)" if len(table) > ROWS else ""
    first = replace(table.head(ROWS), title=table.title + count, note="")
    return Text(sentence), first, Text(said, style="table.caption"), elsewhere


def overview(report: "Report", epsilon: float, word: "TokenText") -> Iterator[Table | Text | str]:
    """The parts of the overview, at most 40 lines on 100 columns."""
    from ..report.readings import protocol_note
    from ..report.summary import sink_summary, sink_verdict

    yield Text(sink_verdict(report, epsilon, word))
    yield replace(sink_summary(report, epsilon), note="")
    yield head_blocks(report)
    yield Text(strongest_heads(report))
    yield Text(protocol_note(report, epsilon), style="table.caption")
    yield ELSEWHERE


def head_blocks(report: "Report") -> Text:
    """A block for each head, darker and redder with its alpha_1, a line for each layer or for as many as needed."""
    alpha, layers = report.alpha().nanmean(0), report.attention_layers
    together, wide = -(-len(layers) // LINES), 2 if alpha.shape[1] <= LINES * 2 else 1
    line, several = ("a layer", "") if together == 1 else (f"{together} layers", ", the largest of the layers")
    blocks = Text(f"alpha_1 of every head: a line is {line}, a column a head{several}; blank 0, full 1\n")
    for start in range(0, len(layers), together):
        chosen = layers[start : start + together]
        name = f"{chosen[0]}" if len(chosen) == 1 else f"{chosen[0]}-{chosen[-1]}"
        blocks.append(f"{name:>7} ")
        for value in alpha[start : start + together].amax(0).tolist():
            share = min(max(value, 0.0), 1.0)
            blocks.append(
                SHADES[round(share * (len(SHADES) - 1))] * wide,
                f"rgb({int(90 + 165 * share)},{90 - int(60 * share)},90)",
            )
        blocks.append("\n")
    blocks.rstrip()
    return blocks


def strongest_heads(report: "Report") -> str:
    """The heads with the largest alpha_1, as layer.head."""
    alpha = report.alpha().nanmean(0)
    order = alpha.flatten().argsort(descending=True)[:STRONGEST].tolist()
    places = [divmod(i, alpha.shape[1]) for i in order]
    named = (f"{report.attention_layers[i]}.{head} {alpha[i, head]:.2f}" for i, head in places)
    return f"Strongest heads (layer.head alpha_1): {', '.join(named)}"
