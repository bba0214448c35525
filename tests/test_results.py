"""RESULTS.md, README's table and pages with cells are what the stored rows say, digit by digit."""

import random
import re
from functools import cache
from pathlib import Path

import plotly.graph_objects as go
import pytest
from pages.shipped import by_stem
from refusals import refused
from sinkinterp._experiments.book.chapter import chapter_page

from experiments.book import cells
from experiments.book.__main__ import FINDINGS
from experiments.book.cells import FILES, HERE, Number, cell, change, interval, percent, share, typed, whole
from sinkinterp.table import MODEL, Table

ROOT = Path(__file__).parents[1]
BETWEEN_WORDS = re.compile(r"(?<=[a-z]) (?=[a-z]+ [a-z]+\b)")


@cache
def texts():
    return dict(cells.texts())


@pytest.mark.parametrize("file", FILES.values(), ids=lambda file: file.name)
def test_a_text_with_cells_is_what_its_template_makes_of_the_stored_rows(file):
    assert file.read_text() == texts()[file]


@pytest.mark.parametrize("name", FILES)
def test_no_number_of_a_template_is_typed(name):
    assert typed((HERE / name).read_text()) == []


@pytest.mark.parametrize("name", ["explain_a_head", "patch_activations", "leave_out_outliers"])
def test_a_how_to_that_tells_results_has_no_number_outside_its_cells(name):
    assert typed(cells.PART.sub("", (ROOT / "docs" / "how_to" / f"{name}.md").read_text())) == []


GUIDES = ["README.md", "docs/start.md", "docs/overview.md", "docs/traps.md", "docs/concepts/key_biases.md"]
GUIDES += [str(file.relative_to(ROOT)) for file in sorted((ROOT / "docs" / "how_to").glob("*.md"))]
NOT_MEASURED = {  # versions, tolerances and thresholds, what follows from a formula, and the paper's numbers
    *("3.11", "3.13", "4.3", "4.36", "5.2", "5.2.0", "5.3", "5.9", "5.17", "5.23", "6.54", "0.5.5"),
    *("1e-5", "0.3", "0.01", "2%"),
    *(".52", "0.074", "0.66"),
    *(".623", ".002", ".014", ".576"),
}


@pytest.mark.parametrize("name", GUIDES)
def test_no_guide_tells_a_share_or_a_fraction_that_is_not_a_cell(name):
    numbers = {number.strip("()[],:;").rstrip(".") for number in typed(cells.PART.sub("", (ROOT / name).read_text()))}
    assert {number for number in numbers if re.search(r"\.\d|%|\de-\d", number)} <= NOT_MEASURED


@pytest.mark.parametrize("name", FILES)
def test_digits_replaced_at_random_are_noticed_all_of_them(name):
    drawn, template = random.Random(0), (HERE / name).read_text()
    made = texts()[FILES[name]]
    wrong = re.sub(r"\d", lambda digit: drawn.choice([d for d in "0123456789" if d != digit[0]]), made)
    lines = zip(made.splitlines(), wrong.splitlines(), strict=True)
    assert all(line != other for line, other in lines if re.search(r"\d", line))
    for _ in range(20):  # a number that somebody types into the prose of a template
        place = drawn.choice(
            [found.start() for found in re.finditer(r"(?<=[a-z]) (?=[a-z]+ [a-z]+\b)", prose(template))]
        )
        number = f"{drawn.random() * 10 ** drawn.randrange(4):.{drawn.randrange(3)}f}"
        assert typed(f"{template[:place]} {number}{template[place:]}"), number


def prose(template):
    """The template with blanks where cells, code, links and comments are."""
    return re.sub(r"\{\{.*?\}\}|\{%.*?%\}|`[^`]*`|\]\([^)]*\)|<!--.*?-->", lambda part: "#" * len(part[0]), template)


def test_results_is_short_and_shows_its_figures():
    text = (ROOT / "RESULTS.md").read_text()
    assert text.count("\n") <= 180
    findings = re.split(r"(?m)^#{2,3} ", text)[1:]
    with_figure = [part for part in findings if re.match(r".*\n\n!\[", part)]
    assert len(with_figure) >= 8
    for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text):
        assert (ROOT / picture).is_file(), picture


def test_a_cell_is_of_one_row_and_is_refused_where_rows_are_none_or_several():
    natural = cell("table01_inputs", "Sink_1", model="smollm2", input="natural", BOS="none")
    (row,) = (
        by_stem()["table01_inputs"]
        .table.where(model="local/smollm2-135m-instruct", input="natural", BOS="none")
        .records()
    )
    assert (natural.value, natural.low, natural.high) == (row["Sink_1"], row["Sink_1 low"], row["Sink_1 high"])
    refused(lambda: cell("table01_inputs", "Sink_1", model="smollm2"))
    refused(lambda: cell("table01_inputs", "Sink_9", model="smollm2", input="natural", BOS="none"))
    refused(lambda: cell("table99", "Sink_1"))
    ends = [cell("table01_inputs", "Sink_1", over=over, input="natural") for over in ("lowest", "highest")]
    assert float(ends[0]) < float(ends[1])


@pytest.mark.parametrize(
    ("value", "write", "text"),
    [
        (0.2646, percent, "26.5%"),
        (0.0, percent, "0%"),
        (0.4521, share, ".452"),
        (-0.0004, lambda number: change(number, 2), ".00"),
        (0.331, change, "+.33"),
        (23_217.0, whole, "23,200"),
        (8.0, whole, "8"),
    ],
)
def test_numbers_are_rounded_as_filters_say(value, write, text):
    assert write(Number(value)) == text


def test_an_interval_stands_behind_its_number_in_the_same_unit():
    assert percent(interval(Number(0.5, 0.4, 0.6))) == "50.0% [40.0, 60.0]"
    assert percent(Number(0.5, 0.4, 0.6)) == "50.0%" == percent(interval(Number(0.5)))


def test_every_chapter_has_a_written_head_without_numbers_and_none_is_of_another():
    assert FINDINGS.keys() == by_stem().keys()
    assert all(sentence.endswith(".") and not typed(sentence) for sentence in FINDINGS.values())


def test_a_page_begins_with_its_head_and_its_question_and_with_nothing_from_rules():
    chapter = by_stem()["remedies_text"]
    page = chapter_page(chapter, chapter.table, go.Figure(), FINDINGS[chapter.stem])
    assert f"{FINDINGS[chapter.stem]} {chapter.heading}" in page and "It fails that" not in page


def test_no_rate_of_the_book_has_an_interval_that_is_a_point():
    points = {
        (stem, name)
        for stem, chapter in by_stem().items()
        for row in chapter.table.records()
        for name in row
        if name.startswith("Sink_") and row.get(f"{name} low") is not None and row[f"{name} low"] == row[f"{name} high"]
    }
    assert not points


def test_figures_of_the_book_call_models_as_sentences_do():
    name = next(iter(cells.NAMES))
    table = Table.of("title", "note", [{MODEL: name, "value": 1.0}, {MODEL: "softmax", "value": 2.0}])
    assert [*cells.with_names(table).frame[MODEL]] == [cells.NAMES[name], "softmax"]
