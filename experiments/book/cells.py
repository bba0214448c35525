"""Numbers in prose are cells of the stored rows: a template names the cell, and nobody types it.

    {{ cell("table01_inputs", model="smollm2", input="natural", BOS="none", column="Sink_1") | interval | percent }}

Several rows, such as those of seeds, need `over`: "mean", "lowest" or "highest". Cells can be added, subtracted and
divided; the result has no interval.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from sinkinterp.checks import InputError
from sinkinterp.table import MODEL, Table, high_of, low_of

from .verdicts import claims

ROOT = Path(__file__).parents[2]
BOOK, HERE = ROOT / "figures" / "book", Path(__file__).parent / "templates"
MODELS = {
    "smollm2": "local/smollm2-135m-instruct",
    "gemma": "local/gemma3-270m",
    "qwen": "local/qwen2.5-coder-0.5b",
    "whisper": "local/whisper-tiny.en, encoder silence",
}
NAMES = dict(zip(MODELS.values(), ("SmolLM2", "Gemma 3", "Qwen2.5-Coder", "Whisper"), strict=True))


def with_names(table: Table) -> Table:
    """The table with the models called as sentences call them, for a figure."""
    return replace(table, frame=table.frame.replace({MODEL: NAMES}))


OVER: Mapping[str, Callable[[list[float]], float]] = {"mean": fmean, "lowest": min, "highest": max}
FILES = {  # by the template
    "RESULTS.md": ROOT / "RESULTS.md",
    "README.md": ROOT / "README.md",
    "field_measures.md": BOOK / "field_measures.md",
    "massive_activations.md": BOOK / "massive_activations.md",
    "moved_sink.md": BOOK / "moved_sink.md",
    "place_or_token.md": BOOK / "place_or_token.md",
    "over_mixing.md": BOOK / "over_mixing.md",
    "slot_or_prefix.md": BOOK / "slot_or_prefix.md",
    "normalisation_patch.md": BOOK / "normalisation_patch.md",
    "what_biases_do.md": BOOK / "what_biases_do.md",
    "key_biases.md": ROOT / "docs" / "concepts" / "key_biases.md",
    "explain_a_head.md": ROOT / "docs" / "how_to" / "explain_a_head.md",
    "patch_activations.md": ROOT / "docs" / "how_to" / "patch_activations.md",
}
BEGIN, END = "<!-- cells of figures/book: python -m experiments.book -->\n", "<!-- end of cells -->\n"  # of a part
PART = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


@dataclass(frozen=True)
class Number:
    """A cell and its interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    shows_interval: bool = False

    def __float__(self) -> float:
        return self.value

    def __add__(self, other: "Number") -> "Number":
        return Number(self.value + float(other))

    def __sub__(self, other: "Number") -> "Number":
        return Number(self.value - float(other))

    def __truediv__(self, other: "Number") -> "Number":
        return Number(self.value / float(other))

    def written(self, write: Callable[[float], str]) -> str:
        """The number in words, with its interval if it was asked for."""
        ends = [end for end in (self.low, self.high) if end is not None]
        if not self.shows_interval or len(ends) < 2:
            return write(self.value)
        return f"{write(self.value)} [{', '.join(write(end).removesuffix('%') for end in ends)}]"


@cache
def rows_of(stem: str, folder: Path = BOOK) -> list[dict[str, Any]]:
    """The stored rows of a chapter. Raises InputError where there is none."""
    file = folder / f"{stem}.json"
    if not file.is_file():
        raise InputError(f"{file} is not there, so no cell can be read; see figures/book")
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
    return rows


def cell(stem: str, column: str, over: str | None = None, **where: Any) -> Number:
    """The number in a column of the one row that `where` chooses, or over several.

    Raises InputError for no such row, several without `over`, or no number.
    """
    where = {name: MODELS.get(value, value) if name == "model" else value for name, value in where.items()}
    rows = [row for row in rows_of(stem) if all(row.get(name, "") == value for name, value in where.items())]
    rows = [row for row in rows if row.get(column) is not None]
    if over is not None and rows:
        return Number(OVER[over]([float(row[column]) for row in rows]))
    if len(rows) != 1:
        raise InputError(f"{len(rows)} rows of {stem} have {column!r} where {where}; a cell is of one row")
    (row,) = rows
    low, high = (row.get(end(column)) for end in (low_of, high_of))
    return Number(float(row[column]), low, high)


def word(stem: str, column: str, **where: Any) -> str:
    """The text in a column of the one row that `where` chooses."""
    where = {name: MODELS.get(value, value) if name == "model" else value for name, value in where.items()}
    rows = [row for row in rows_of(stem) if all(row.get(name, "") == value for name, value in where.items())]
    if len(rows) != 1:
        raise InputError(f"{len(rows)} rows of {stem} where {where}; a word is of one row")
    return str(rows[0][column])


def grid(stem: str, columns: list[list[str]], **where: Any) -> str:
    """A table in Markdown of the rows that `where` chooses: of each column its head, its name and how it is written."""
    chosen = {name: MODELS.get(value, value) if name == "model" else value for name, value in where.items()}
    rows = [row for row in rows_of(stem) if all(row.get(name, "") == value for name, value in chosen.items())]
    if not rows:
        raise InputError(f"no row of {stem} where {where}; a table needs one")
    lines = [[head for head, *_ in columns], ["---"] * len(columns)]
    lines += [[_written(row, name, *how) for _, name, *how in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _written(row: Mapping[str, Any], name: str, how: str = "") -> str:
    value = row.get(name)
    if value is None or not how:
        return "" if value is None else NAMES.get(str(value), str(value))
    return FILTERS[how](interval(Number(float(value), row.get(low_of(name)), row.get(high_of(name)))))


def interval(number: Number) -> Number:
    """The number, to be written with its interval."""
    return replace(number, shows_interval=True)


def percent(number: Number, digits: int = 1) -> str:
    """A share in percent, such as 74.3%, or 0%."""
    return number.written(lambda x: f"{100 * x:.{digits}f}%" if abs(100 * x) >= 0.5 / 10**digits else "0%")


def points(number: Number, digits: int = 1) -> str:
    """A difference of shares, in percentage points."""
    return number.written(lambda x: f"{100 * x:.{digits}f}")


def share(number: Number, digits: int = 3) -> str:
    """A number without a zero before the point, such as .452 or 1.25."""
    return number.written(lambda x: _bare(f"{x:.{digits}f}"))


def change(number: Number, digits: int = 2) -> str:
    """A number with its sign, such as +.33."""
    return number.written(lambda x: _bare(f"{x:+.{digits}f}"))


def whole(number: Number, digits: int = 3) -> str:
    """A large number with so many digits that count, such as 23,200."""

    def write(x: float) -> str:
        step = 10 ** max(0, len(f"{abs(x):.0f}") - digits)
        return f"{round(x / step) * step:,.0f}"

    return number.written(write)


def _bare(text: str) -> str:
    if not any(digit in "123456789" for digit in text):
        text = text.lstrip("+-")
    return re.sub(r"^([+-]?)0\.", r"\1.", text)


FILTERS: Mapping[str, Callable[..., str]] = {f.__name__: f for f in (percent, points, share, change, whole)}
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=False,  # what is written is Markdown of this repository
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {"interval": interval, **FILTERS}
TEMPLATES.globals |= {"cell": cell, "word": word, "grid": grid, **FILTERS}


def texts() -> Iterator[tuple[Path, str]]:
    """Every file with cells, and what it should hold. A template that begins with BEGIN has the parts of its file."""
    counts, table = claims()
    for name, file in FILES.items():
        made = TEMPLATES.get_template(name).render(counts=counts.rstrip(), claims=table.rstrip())
        if made.startswith(BEGIN):
            old = file.read_text(encoding="utf-8")
            before, parts = PART.split(old), PART.findall(made)
            if len(before) != len(parts) + 1:
                raise InputError(f"{file} has {len(before) - 1} parts with cells, and its template {len(parts)}")
            made = "".join(text for pair in zip(before, (*parts, ""), strict=True) for text in pair)
        yield file, made


# What a template may say in digits outside its cells

SETTINGS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b[nT]=(?:4|6|8|10|12|16|24|32|64|100|256|512|2,048)\b",  # texts, and tokens of a text
        r"\b95%",  # intervals
        r"(?:epsilon|above|than|most|margin of) \.(?:05|3)\b",  # epsilon and margins of rules
        r"\b132,448 parameters\b|\b(?:50M and 100M|39\.6M) unique tokens\b|\bless than 1%",  # of trained models
        r"\b(?:above|passes) 100\b|\b1,000 times\b|\bposition 0\b|\bb_[QKV] = 0",  # what is massive, and edits
        r"\blayers 0 to(?: [d2]\b|\s{2})|\blayers 3 to the last\b",  # of masks; a cell has become a second space
        r"\bdimension (?:400|163)\b|\b(?:from|before)\sblock 1\b|\blayer 2 alone\b",  # as notes of chapters name them
        r"\b(?:40|300|6,000|800) steps\b|\bcache of 512 tokens\b",
        r"\b(?:135M|270M|0\.5B|494M)\b|\bint8\b|\bfp32\b|\bfloat16\b|\bH100\b",  # names and precisions
    )
)
REFERENCES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}",  # cells
        r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->",  # code and the targets of links
        r"\b(?:Tables?|Figures?|Sections?|Equations?|Propositions?|Appendix) [\d.]+(?:(?:,| and| to) [\d.]+)*",
        r"(?:arXiv:)?\b\d{4}\.\d{5}\b|\(20\d\d\)",  # papers
        r"(?<![\d.])[A-Za-z_][\w.]*\d[\w.*+-]*|\b(?:Gemma|GPT|LLaMA)[ -]?\d[\w.]*",  # names, such as Sink_1 and p5
        r"\b\d+(?:th|st|nd|rd)\b",  # places
    )
)


def typed(template: str) -> list[str]:
    """The numbers of a template that are neither cells, settings of the list, nor references."""
    for pattern in (REFERENCES[0], REFERENCES[1], *SETTINGS, *REFERENCES[2:]):
        template = re.sub(pattern.pattern, " ", template, flags=re.DOTALL)
    return re.findall(r"\S*\d\S*", template)
