"""The numbers of pages without cells stand in committed files: those that their section names."""

import re
from functools import cache
from pathlib import Path

import pytest
from pages.shipped import by_stem

from experiments.book.cells import FILES
from sinkinterp.runs.experiment import load_experiment

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w.`/])[-+−±]?(\d[\d,]*\.\d+|\.\d+|\d[\d,]*(?=%))(%?)(?![\w`])")
NO_RESULT = re.compile(
    r"(?:Python|torch|transformers|arXiv:|Sections?|build of \w+)[ :]?[\d.]+(?:(?: to| and|,) [\d.]+)*|\b3\.1\d\b"
    r"|(?:epsilon|at|above|rate x|by|than|pass|within|decay|alpha|the|margin of) \.?\d*\.?\d+(?![\d%])|95%|^\| \.\d \|"
)
READ = r"reproduce ([a-z0-9_]+)|(?:book/|measured/|\()([\w*]+)\.(?:json|html|md)"
ELSEWHERE = {  # pages and sections whose numbers a command prints and no file holds
    "text_models_streaming": "of an example, which tests/test_examples.py checks",
    "# Streaming perplexity": "the chapter `streaming`, and books, whose run is not kept",
    "## The same on random tokens": "sinkinterp explain, whose runs are not kept",
}
DERIVED = {  # sections -> phrases whose numbers are sums, settings, other people's, or of a run that is not kept
    "# How many first tokens must": ("1.085 without the first token, .113 with it, and 1.084 with",),
    "# Table 7 on Whisper's decoder": ("[46.7, 48.7]", "Sink_5 31.2% and", "65.0% [64.3, 65.5], 46.8% and 36.7%."),
    "# Figure 4: the sink comes": ("4.3% of", "asks for 2.5%"),
    "# Table 10: a fixed token": ("costs .085 nats",),
    "# SmolLM2, mended": ("costs .176 nats more",),
    "# Section 5": ("cost .45 and .94 nats",),
    "# Section 7.3": ("where tokens' are 8.0",),
    "# A model without a sink": ("(uniform: 6.24)",),
}
PAGES = [page for page in sorted((ROOT / "figures").glob("*/*.md")) if page not in FILES.values()]


def sections():
    """Every section with a number, by the page's name and its title."""
    found = {}
    for page in PAGES:
        for part in re.split(r"(?m)^(?=#{1,3} )", page.read_text()):
            title = part.partition("\n")[0]
            if NUMBER.search(part) and not {page.stem, title} & ELSEWHERE.keys():
                found[page.stem, title] = part
    return found


@cache
def numbers_of(name):
    """Every number of a chapter (its rows, their digest, the reasons of its verdicts), or of a measurement."""
    if name not in by_stem():
        text = (ROOT / "figures" / "measured" / f"{name}.json").read_text()
    else:
        chapter = by_stem()[name]
        rows = [*chapter.table.records(), *load_experiment(chapter.name).digest(chapter.table).records()]
        reasons = [verdict.reason for verdict in chapter.verdicts]
        text = " ".join([chapter.table.note, *reasons, *(str(cell) for row in rows for cell in row.values())])
    return {float(number) for number in re.findall(r"\d*\.?\d+(?:e[-+]?\d+)?", text)}


def sources(text):
    """The chapters whose commands, tables or figures a text names, and the files that it links to.

    Chapters of trainings on text count where a text links to them.
    """
    beginnings = {name for names in re.findall(READ, text) for name in names if name} - {"index"}
    for kind, numbers in re.findall(r"(Table|Figure|Equation|Section)s? ((?:[\d.]+(?:, | and | to )?)+)", text):
        width = 2 if kind in ("Table", "Figure") else 1
        beginnings |= {kind.lower() + number.zfill(width) for number in re.findall(r"\d+", numbers)}
    folder = ROOT / "figures" / "measured"
    measured = {file.stem for name in beginnings for file in folder.glob(f"{name}.json")}
    of_toys = {stem for stem, chapter in by_stem().items() if stem == chapter.name}
    begun = {name for name in of_toys if any(map(name.startswith, beginnings))}
    return measured | begun | (beginnings & by_stem().keys())


def strays(line, names):
    """The numbers of a line that no source has at their precision, as they are or as shares."""
    line = NO_RESULT.sub("", line)
    known = [number for name in names for number in numbers_of(name)]
    found = [(match[0].lstrip("+-−±"), match[1].replace(",", ""), match[2]) for match in NUMBER.finditer(line)]
    parts = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", line)]
    shares = [a / b for a in parts for b in parts if b > a]  # "1,060 (4.6%)" beside 23,200
    for whole, number, percent in found:
        value, width = float(number), 0.51 * 10.0 ** -len(number.partition(".")[2])
        of = known + shares if percent else known
        forms = [(value / 100, width / 100)] + ([] if percent else [(value, width)])
        if not any(abs(one - form) <= near for form, near in forms for one in of):
            yield whole


@pytest.mark.parametrize(("page", "title"), sections())
def test_the_numbers_of_a_section_stand_in_the_files_that_it_names(page, title):
    section = sections()[page, title]
    named = title + " ".join(match[0] for match in re.finditer(READ, section))
    whole = sources(f"{named} (book/{page}.json) (book/{page}_text.json) (measured/{page}*.json)")
    for phrase in next((phrases for start, phrases in DERIVED.items() if title.startswith(start)), ()):
        section, found = re.subn(r"\s+".join(map(re.escape, phrase.split())), "", section)
        assert found == 1, phrase
    found = {}
    for line in section.splitlines():
        names = whole | (sources(line.split("|")[1]) if line.startswith("|") else set())
        if wrong := list(strays(line, names)):
            found[line[:60]] = wrong
    assert not found
