"""The story is told by the numbers of the book, and by nothing else."""

import json
import re
from dataclasses import replace

from pages.shipped import BOOK, by_stem, chapters
from plotly.offline import get_plotlyjs
from refusals import refused
from sinkinterp._experiments.book.story import FINDINGS, TOLD_BY, passages, story_page

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
    assert (
        len(html.encode()) < 6e6
        and html.count("plotly.js v") == 1
        and "<a href" not in html.replace(get_plotlyjs(), "")
    )
    assert len(story_page(chapters(), "plotly.min.js", "index.html")) < 1e6
