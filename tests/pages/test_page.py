"""Pages hold text as text, run their own scripts alone, and put the verdict of a measurement first."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from backends.zoo import model_of
from hypothesis import given, settings, strategies as st
from markupsafe import Markup
from pages.atlases import small_atlas
from pages.test_book import chapter
from plotly.offline import get_plotlyjs
from report.test_tables import REPORT, WITH
from sinkinterp._experiments.book.story import front_page, write_chapter

from sinkinterp.backends.load import load
from sinkinterp.pages.atlas_page import atlas_page
from sinkinterp.pages.live import Session, live_page
from sinkinterp.pages.page import Section, document, page, untitled
from sinkinterp.pages.report import measurement_page
from sinkinterp.report.summary import sink_verdict
from sinkinterp.runs.experiment import Outcome
from sinkinterp.table import LONG_NAME, Table

PLOTLY = get_plotlyjs()
NASTY = (
    "<script>alert(1)</script>", "</script>", "</script><img src=x onerror=alert(1)>", "<!--<script>", "]]>", '"&<>',
    "' onmouseover='x", "</title><h1>", "</style>", "&lt;b&gt;&amp;#60;", "\u2028\\u003c/script\\", "{}", "${x}`",
)  # fmt: skip
WORDS = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("<>&'\"/"))


class Reader(HTMLParser):
    """The tags of a page in order, and the text inside each kind of tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *attrs))
        self.texts.append([tag, ""])

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")
        self.texts.append([None, ""])

    def handle_comment(self, data):
        self.tags.append("comment")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1][1] += data

    def inside(self, tag):
        return [text for kind, text in self.texts if kind == tag]


def figure(word: str) -> go.Figure:
    drawn = go.Figure(go.Bar(x=[word, "b"], y=[1, 2], name=word, hovertemplate=word, customdata=[word, word]))
    drawn.add_heatmap(z=[[1, 2]], x=[word, "c"], colorbar={"title": word})
    drawn.add_annotation(text=word)
    return drawn.update_layout(title=word, xaxis={"title": word, "ticktext": [word], "tickvals": [0]})


def made(words: dict[str, str]) -> str:
    """A page that shows each word in its place, without plotly's own code."""
    table = Table.of(words["table title"], words["note"], ({f"c{words['column']}": words["cell"], "n": 0.5},))
    section = Section(words["heading"], words["caption"], [figure(words["figure"])], [table])
    return page(words["title"], words["lead"], [section]).replace(PLOTLY, "")


PLACES = ("title", "lead", "heading", "caption", "figure", "table title", "note", "column", "cell")


@cache
def plain(*, long: bool = False):
    return made(dict.fromkeys(PLACES, "word") | {"column": "word" * (8 if long else 1)})


def drawn_figure(html: str) -> dict:
    """The data and the layout of the only figure of a page, from its script."""
    (script,) = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', html, re.S)
    return json.loads(script)


@settings(max_examples=10, deadline=None, database=None)
@given(st.fixed_dictionaries(dict.fromkeys(PLACES, WORDS)))
def test_whatever_the_words_the_tags_are_the_same_and_the_words_are_text(words):
    html = made(words)
    read = Reader(html)
    assert read.tags == Reader(plain(long=len(words["column"]) >= LONG_NAME)).tags  # its header has one letter more
    assert read.inside("title") == [words["title"]]
    assert read.inside("h1") == [words["title"]]
    assert read.inside("h2") == [words["heading"]]
    assert read.inside("p") == [words["lead"]]
    assert "; ".join(filter(None, read.inside("span")[-2:])) == words["caption"]  # the rest is folded
    assert read.inside("th") == [f"c{words['column']}", "n"]
    assert read.inside("td") == [words["cell"], "0.500"]


@pytest.mark.parametrize(("letters", "kind"), [(LONG_NAME, "word"), (LONG_NAME + 1, "word long")])
def test_a_long_name_of_a_column_marks_its_header_and_words_stand_to_the_left(letters, kind):
    tags = Reader(Table.of("", "", ({"c" * letters: "text", "x": 0.5},)).to_html()).tags
    assert ("th", ("class", kind)) in tags
    assert [tag for tag in tags if tag[0] == "td"] == [("td", ("class", "word")), ("td",)]


@pytest.mark.parametrize("word", NASTY)
def test_no_word_of_a_figure_leaves_its_script(word):
    html = made(dict.fromkeys(PLACES, "word") | {"figure": word})
    assert Reader(html).tags == Reader(plain()).tags
    drawn = drawn_figure(html)
    (bar, heat), layout = drawn["data"], drawn["layout"]
    assert bar["name"] == bar["x"][0] == bar["hovertemplate"] == heat["x"][0] == word
    assert layout["xaxis"]["title"]["text"] == layout["annotations"][0]["text"] == word
    script = html[html.index('class="figure">') : html.index('</script><div class="tools">')]
    assert "</" not in script
    assert "<!--" not in script


def test_plotly_is_inlined_once_however_many_figures_there_are_and_each_has_its_own_place():
    html = page("t", "l", [Section("a", "", [figure("x"), figure("y")]), Section("b", "", [figure("z")])])
    read = Reader(html.replace(PLOTLY, "plotly's own code"))
    assert "</script" not in PLOTLY.lower()  # or its own script would end early
    assert html.count(PLOTLY) == read.inside("script").count("plotly's own code") == 1
    assert len(read.inside("script")) == 2 + 1 + 1 + 3  # plotly, drawing, words, settings, figures
    divs = [dict(attrs) for tag, *attrs in read.tags if tag == "div"]
    assert len({div["id"] for div in divs if "id" in div}) == 3


def test_a_figure_keeps_its_title_though_the_page_shows_it_without():
    drawn = figure("its title")
    assert untitled(drawn).layout.title.text is None
    assert drawn.layout.title.text == "its title"
    assert len(untitled(drawn).data) == len(drawn.data)
    drawn.update_yaxes(scaleanchor="x").update_layout(height=400, margin={"t": 110})
    assert untitled(drawn).layout.height == 400 - 110 + untitled(drawn).layout.margin.t  # of a map, no more room


HOSTILE = "</script><img src=x onerror=alert(1)>"


NUMBERS = "Is there a sink on the first token?"
BARE = replace(REPORT, extras={})


@cache
def read(name):
    report = {"whole": REPORT, "bare": BARE, "with residuals": WITH}[name]
    return Reader(measurement_page(report, 0.3).replace(PLOTLY, ""))


def headings(name):
    return read(name).inside("h2")


def test_the_order_is_sentence_figure_numbers_and_the_protocol_once():
    assert read("whole").inside("p")[0] == sink_verdict(REPORT, 0.3)
    assert headings("whole")[:2] == ["Heads", NUMBERS] and headings("whole")[-1] == "Protocol"
    html = measurement_page(REPORT, 0.3).replace(PLOTLY, "")
    assert html.count("queries that can see the key") == html.count(REPORT.protocol.source) == 1


def test_only_what_was_measured_is_shown():
    norms = ["Norms by kind of token", "Norm of the first token's residual"]
    always = ["Heads", NUMBERS, "Positions", "Thresholds", *norms]
    assert headings("bare")[:6] == always
    measured = ["What heads write", "Angle or length?", "Massive activations", "Largest residual entries"]
    assert not {*measured} & {*headings("bare")}
    assert headings("whole")[:10] == [*always, *measured]


def test_every_figure_says_n_t_epsilon_and_bos():
    html = measurement_page(REPORT, 0.25).replace(PLOTLY, "")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, re.S)
    assert len(captions) >= 6
    for caption in captions:
        assert all(part in caption for part in ("n=3", "T=11", "BOS none")), caption
    assert sum("epsilon=0.25" in caption for caption in captions) >= len(captions) - 1  # norm ratios have no threshold


TABLE = Table.of("a table", "", ({"x": 1.5},))
FIXED = {
    "default-src": "'none'",
    "style-src": "'unsafe-inline'",
    "img-src": "data: blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
}


def chapter_of(folder):
    made = chapter("table1", Outcome.HOLDS)
    write_chapter(folder, made, made.table, go.Figure().add_scatter(y=[1]))
    return (folder / "table1.html").read_text()


WRITERS = {
    "view": lambda folder: atlas_page(small_atlas()[0]),
    "measure": lambda folder: measurement_page(REPORT, 0.3),
    "demo": lambda folder: page("t", "l", [Section("s", "", [go.Figure()])]),
    "a page without figures": lambda folder: page("t", "l", [Section("s", "", tables=[TABLE])]),
    "chapter": chapter_of,
    "front page": lambda folder: front_page([chapter("table1", Outcome.HOLDS)]),
    "live page": lambda folder: live_page(Session(load(model_of("gpt2")))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_page_lets_only_its_scripts_run_and_has_nothing_to_fetch(name, tmp_path):
    html = WRITERS[name](tmp_path)
    head = html[: html.index("<title>")]
    policy = dict(part.split(" ", 1) for part in re.search(r'Policy" content="([^"]*)"', head)[1].split("; "))
    allowed = policy.pop("script-src").split()
    # the live page alone may ask its server, and chapters alone load a file
    assert policy.pop("connect-src", None) == ("'self'" if name == "live page" else None) and policy == FIXED
    assert ("'strict-dynamic'" in allowed) == (name == "chapter")
    run = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert {f"'sha256-{sha(script)}'" for script in run} <= set(allowed)
    assert len(allowed) <= len(run) + 1 and not {"'unsafe-inline'", "'unsafe-eval'", "'self'"} & set(allowed)
    tags = [tag for tag in Reader(html).tags if isinstance(tag, tuple)]
    attributes = [name for _, *attributes in tags for name, _ in attributes]
    assert not [name for name in attributes if name.startswith("on") or name == "src"]
    assert not [tag for tag, *_ in tags if tag in ("link", "img", "iframe", "object", "embed", "base")]
    assert html.count('<details class="glossary"') == 1  # every page explains its words and fits a phone
    assert "width=device-width" in html and ">proxy score</dt>" in html and ">k*</dt>" in html


def test_a_page_without_scripts_of_its_own_runs_only_the_one_that_explains_words():
    assert re.search(r"script-src 'sha256-[^' ]*';", document("t", Markup("")))


def sha(script):
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
