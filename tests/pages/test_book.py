import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from sinkinterp.pages.book import (
    NO_VERDICT,
    Chapter,
    chapters_in,
    front_page,
    picture_of,
    write_chapter,
    write_front_page,
)
from sinkinterp.runs.rules import Outcome, Verdict
from sinkinterp.table import Table

HOSTILE = "<script>alert(1)</script>"


def chapter(name="table99_x", *outcomes):
    verdicts = [Verdict(f"claim {HOSTILE}", outcome, f"because {HOSTILE}") for outcome in outcomes]
    table = Table(f"what the paper says {HOSTILE}", "n=3", ({"model": HOSTILE, "x": 0.5},))
    return Chapter(name, f"Table 99: {HOSTILE}", table, verdicts, {"command": "sinkinterp", "scale": "demo"})


@pytest.fixture
def book(tmp_path):
    for i, outcomes in enumerate([(Outcome.HOLDS, Outcome.FAILS), (Outcome.HOLDS,)]):
        made = chapter(f"table{i}", *outcomes)
        write_chapter(tmp_path, made, made.table, go.Figure().add_scatter(y=[1]))
    return tmp_path


def test_a_chapter_survives_json(book):
    (first, second) = chapters_in(book)
    assert first == chapter("table0", Outcome.HOLDS, Outcome.FAILS) and second.name == "table1"


def test_other_json_files_are_no_chapters(book):
    (book / "numbers.json").write_text(json.dumps({"rows": []}))
    (book / "list.json").write_text("[1]")
    assert [made.name for made in chapters_in(book)] == ["table0", "table1"]


def test_the_front_page_counts_and_shows_every_verdict(book):
    html = (book / "index.html").read_text()
    assert "holds (2)" in html and "fails (1)" in html and "all (3)" in html and "undecided" not in html
    assert html.count('data-outcome="holds"') == 2 and 'href="table1.html"' in html


def test_page_and_card_count_the_rules_that_hold(book):
    assert "Verdicts: 1 of 2 rules hold" in (book / "table0.html").read_text()
    html = (book / "index.html").read_text()
    assert "1 of 2 rules hold; scale: demo" in html and "the rule holds; scale: demo" in html


def test_numbers_of_scale_smoke_have_no_verdict_and_say_so(tmp_path):
    made = replace(chapter("table2"), provenance={"scale": "smoke"})
    write_chapter(tmp_path, made, made.table, go.Figure())
    for page in ("table2", "index"):
        assert NO_VERDICT in (tmp_path / f"{page}.html").read_text()


def test_text_of_data_is_escaped_on_every_page(book):
    for page in book.glob("*.html"):
        assert HOSTILE not in page.read_text() and "&lt;script&gt;alert(1)" in page.read_text()


def test_positions_of_a_chapter_count_from_0_though_those_of_its_file_count_from_1(tmp_path):
    table = Table("Table 7", "t counts from 1; more", ({"t": 1, "x": 0.5}, {"t": 5, "x": 0.25}))
    made = replace(chapter(), table=table)
    write_chapter(tmp_path, made, table, go.Figure())
    html = (tmp_path / "table99_x.html").read_text()
    assert "<td>0</td><td>0.500</td>" in html and "<td>4</td><td>0.250</td>" in html and "t counts from 1" not in html
    assert chapters_in(tmp_path)[0].table == table


def test_pages_share_one_plotly_and_request_nothing_else(book):
    pages = [page.read_text() for page in book.glob("table*.html")]
    assert all('"plotly":"plotly.min.js"' in page and len(page) < 100_000 for page in pages)
    assert (book / "plotly.min.js").stat().st_size > 1e6
    assert not any("http://" in page or "https://" in page for page in [front_page(chapters_in(book)), *pages])


def test_the_front_page_shows_the_pictures_that_lie_beside_it_and_new_numbers_remove_theirs(book):
    for name in ("table0", "table1"):
        picture_of(book, name).write_bytes(b"a picture")
    write_front_page(book)
    assert 'src="table0.png"' in (book / "index.html").read_text()
    made = chapter("table1", Outcome.HOLDS)
    write_chapter(book, made, made.table, go.Figure())
    html = (book / "index.html").read_text()
    assert 'src="table0.png"' in html and "table1.png" not in html and not picture_of(book, "table1").exists()


def test_the_front_page_may_show_files_only_where_it_has_pictures(book):
    chapters = chapters_in(book)
    assert "img-src data: blob:;" in front_page(chapters)
    assert "img-src data: blob: 'self';" in front_page(chapters, ["table0"])
