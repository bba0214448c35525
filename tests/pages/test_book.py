import json
import re
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from pages.shipped import BOOK, by_stem, chapters
from plotly.offline import get_plotlyjs
from refusals import refused
from sinkinterp._experiments.book.chapter import (
    NO_VERDICT,
    Chapter,
    chapter_page,
    chapters_in,
    stem_of,
    why_ours_differs,
)
from sinkinterp._experiments.book.story import FINDINGS, TOLD_BY, front_page, passages, story_page, write_chapter

from sinkinterp.runs.experiment import Outcome, Verdict
from sinkinterp.table import Table

HOSTILE = "<script>alert(1)</script>"


def chapter(name="table99_x", *outcomes):
    verdicts = [Verdict(f"claim {HOSTILE}", outcome, f"because {HOSTILE}") for outcome in outcomes]
    table = Table.of(f"what the paper says {HOSTILE}", "n=3", ({"model": HOSTILE, "x": 0.5},))
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


def test_trainings_on_text_stand_beside_those_of_toys(tmp_path):
    toys = chapter("table04_attention_biases", Outcome.HOLDS)
    text = replace(toys, verdicts=[Verdict("claim", Outcome.FAILS, "why")], provenance={"scale": "text"})
    for made in (toys, text):
        write_chapter(tmp_path, made, made.table, go.Figure())
    assert [made.stem for made in chapters_in(tmp_path)] == [toys.name, f"{toys.name}_text"]
    front = (tmp_path / "index.html").read_text()
    assert front.count(f'href="{toys.name}.html"') == front.count(f'href="{toys.name}_text.html"') == 1
    assert stem_of("text_twins", "text") == "text_twins" and stem_of("gpt2_circuit", "real") == "gpt2_circuit"
    (tmp_path / f"{toys.name}_text.json").rename(tmp_path / "figure06_windows.json")
    refused(lambda: chapters_in(tmp_path), f"would be {toys.name}_text.json")


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
    assert '<b class="badge mixed">On toys: in part (1 of 2 rules hold).</b>' in html
    assert '<b class="badge holds">On toys: yes.</b>' in html


def test_numbers_of_scale_smoke_have_no_verdict_and_say_so(tmp_path):
    made = replace(chapter("table2"), provenance={"scale": "smoke"})
    write_chapter(tmp_path, made, made.table, go.Figure())
    for page in ("table2", "index"):
        assert NO_VERDICT in (tmp_path / f"{page}.html").read_text()


def test_text_of_data_is_escaped_on_every_page(book):
    for page in book.glob("*.html"):
        assert HOSTILE not in page.read_text() and "&lt;script&gt;alert(1)" in page.read_text()


def test_t_of_a_chapter_counts_from_1_as_in_its_file_and_in_the_paper(tmp_path):
    table = Table.of("Table 7", "t counts from 1; more", ({"t": 1, "x": 0.5}, {"t": 5, "x": 0.25}))
    made = replace(chapter(), table=table)
    write_chapter(tmp_path, made, table, go.Figure())
    html = (tmp_path / "table99_x.html").read_text()
    assert "<td>1</td><td>0.500</td>" in html and "<td>5</td><td>0.250</td>" in html and "t counts from 1" in html
    assert chapters_in(tmp_path)[0].table == table


def test_pages_share_one_plotly_and_request_nothing_else(book):
    pages = [page.read_text() for page in book.glob("table*.html")]
    assert all('"plotly":"plotly.min.js"' in page and len(page) < 100_000 for page in pages)
    assert (book / "plotly.min.js").stat().st_size > 1e6
    assert not any("http://" in page or "https://" in page for page in [front_page(chapters_in(book)), *pages])


def test_no_heading_of_the_committed_book_shows_code_or_an_option_and_every_claim_has_a_result():
    for made in chapters():
        assert "`" not in made.heading and "--" not in made.heading and len(made.heading) > 20
        assert re.fullmatch(
            r"(On toys|On text|On text without BOS|In genuine models): .+\.|" + re.escape(NO_VERDICT), made.found
        )


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        ([Outcome.HOLDS, Outcome.NOT_ASKED], "On toys: yes."),
        ([Outcome.FAILS, Outcome.UNDECIDED], "On toys: no."),
        ([Outcome.CONFOUNDED], "On toys: undecided."),
        ([Outcome.NOT_ASKED], "On toys: not asked."),
        ([Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED], "On toys: in part (1 of 3 rules hold)."),
        ([Outcome.SINK, Outcome.NO_SINK, Outcome.SINK], "On toys: 2 sink, 1 no sink."),
    ],
)
def test_a_result_is_yes_if_all_rules_hold_no_if_none_holds_and_one_fails_and_else_in_part(outcomes, found):
    assert chapter("table1", *outcomes).found == found


def test_the_front_page_counts_rules_of_claims_and_not_what_the_atlas_observes():
    html = front_page([chapter("table1", Outcome.HOLDS), chapter("atlas", Outcome.SINK, Outcome.NO_SINK)])
    assert "1 claims, judged by 1 rules" in html and "all (1)" in html and "holds (1)" in html
    assert 'data-show="no sink"' not in html and html.count('data-outcome="no sink"') == 1


def test_claims_stand_by_what_they_are_about_and_the_others_last():
    names = ["zebra", "table06_x", "table01_x"]
    html = front_page([chapter(name, Outcome.HOLDS) for name in names])
    order = [
        html.index(text) for text in ("What a sink is", "table01_x", "What prevents it", "table06_x", "Other", "zebra")
    ]
    assert order == sorted(order) and "Where it is" not in html


@pytest.mark.parametrize("ours, scale, says", [(0.98, "demo", True), (0.25, "demo", False), (0.98, "smoke", False)])
def test_a_sentence_says_why_ours_is_not_the_papers_where_it_is_not(ours, scale, says):
    table = Table.of("t", "", ({"model": "softmax", "Sink_1": ours, "paper Sink_1": 0.18},))
    made = replace(chapter(), table=table, provenance={"scale": scale})
    assert bool(why_ours_differs(made)) == says


@pytest.mark.parametrize(("scale", "says"), [("text", "with BOS first"), ("demo", "16 tokens")])
def test_a_page_with_the_papers_numbers_says_what_is_unlike_in_their_protocol(scale, says):
    rows = {True: {"Sink_1": 0.2, "paper Sink_1": 0.18}, False: {"Sink_1": 0.2}}
    for has_paper, numbers in rows.items():
        table = Table.of("t", "", ({"model": "softmax", **numbers},))
        made = replace(chapter("x", Outcome.HOLDS), table=table, provenance={"scale": scale})
        assert (says in chapter_page(made, table, go.Figure())) is has_paper


def test_no_line_of_a_reason_ends_inside_a_number_and_an_apostrophe_is_not_one():
    verdict = Verdict("c", Outcome.HOLDS, "the paper's: 1.33e-15 [1.33e-15, 2]; Sink_1 53.7% to 81.1%")
    html = front_page([replace(chapter(), verdicts=[verdict])])
    assert "the paper's: <span>1.33e-15 [1.33e-15, 2]</span>; Sink_1 <span>53.7% to 81.1%</span>" in html


PLACES = ("t", "block", "layer", "head", "sinks", "seed", "dimension", "epsilon", "T")  # columns that say where
FIXED = {"0.3", "0", "4", "1", "2", "511", "512", "135"}  # epsilon, positions, names, lengths of the cache
COUNTS = {270}  # heads of a model; they are counted, and so do not grow


def test_all_passages_and_all_five_findings_are_told_from_the_committed_numbers():
    assert [told.name for told in passages(chapters())] == list(TOLD_BY)
    assert [told.name for told in passages(chapters(), FINDINGS)] == list(FINDINGS) and len(FINDINGS) == 5
    assert all(told.figure.data and told.chapter.name == TOLD_BY[told.name] for told in passages(chapters()))


def test_sentences_quote_what_the_json_says():
    rows = {name: json.loads((BOOK / f"{name}.json").read_text())["rows"] for name in TOLD_BY.values()}
    text = {told.name: told.text for told in passages(chapters())}
    natural = next(r for r in rows["table01_inputs"] if r["input"] == "natural" and r["BOS"] == "none")
    assert f"{natural['alpha_1']:.1%}" in text["sink"] and f"{natural['Sink_1']:.1%}" in text["sink"]
    before, zero, _, _, mean = (r["loss"] for r in rows["removing_massive"][:5])
    assert f"from {before:.2f} to {zero:.2f} nats" in text["removal"] and f"({mean:.2f} nats)" in text["removal"]
    largest = rows["massive_activations"][0]
    assert f"one entry of {largest['first token']:,.0f}, in dimension {largest['dimension']}" in text["massive"]
    forgets = next(r["perplexity after"] for r in rows["streaming"] if r["sinks"] == 0)
    assert f"the perplexity is {forgets:.1f};" in text["streaming"]


def moved(chapter):
    """The chapter with every number that is measured a tenth larger."""

    def larger(column, cell):
        return cell * 1.1 if isinstance(cell, float) and column not in PLACES else cell

    rows = [{column: larger(column, cell) for column, cell in row.items()} for row in chapter.table.records()]
    return replace(chapter, table=chapter.table.with_rows(rows))


def test_no_number_of_a_sentence_is_typed():
    after = {told.name: told.text for told in passages(list(map(moved, chapters())))}
    for told in passages(chapters()):
        quoted, again = (re.findall(r"\d[\d,.]*\d|\d", text) for text in (told.text, after[told.name]))
        same = {number for number, other in zip(quoted, again, strict=True) if number == other}
        zero_or_ratio = {
            number for number in same if float(number.replace(",", "")) in (0, 507, 11, 12, 24, 164, *COUNTS)
        }
        assert same - zero_or_ratio <= FIXED, told.name


def test_a_passage_whose_numbers_say_otherwise_is_left_out():
    chapter = by_stem()["removing_massive"]
    flat = chapter.table.with_rows({**row, "loss": 3.85} for row in chapter.table.records())
    assert "removal" in [told.name for told in passages([chapter])]
    assert not passages([replace(chapter, table=flat)])
    refused(lambda: story_page([replace(chapter, table=flat)]))


def test_the_story_is_one_file_below_six_megabytes_that_holds_plotly_once():
    html = story_page(chapters())
    assert len(html.encode()) < 6e6 and html.count("plotly.js v") == 1
    assert "<a href" not in html.replace(get_plotlyjs(), "")
    assert len(story_page(chapters(), "plotly.min.js", "index.html")) < 1e6
