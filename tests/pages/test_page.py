import json
import re
from functools import cache
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings, strategies as st
from plotly.offline import get_plotlyjs

from sinkinterp.pages.page import Section, page, untitled
from sinkinterp.table import Table

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
    table = Table(words["table title"], words["note"], ({f"c{words['column']}": words["cell"], "n": 0.5},))
    section = Section(words["heading"], words["caption"], [figure(words["figure"])], [table])
    return page(words["title"], words["lead"], [section]).replace(PLOTLY, "")


PLACES = ("title", "lead", "heading", "caption", "figure", "table title", "note", "column", "cell")


@cache
def plain():
    return made(dict.fromkeys(PLACES, "word"))


def drawn_figure(html: str) -> dict:
    """The data and the layout of the only figure of a page, from its script."""
    (script,) = re.findall(r'<script type="application/json" class="figure">(.*?)</script>', html, re.S)
    return json.loads(script)


@settings(max_examples=10, deadline=None, database=None)
@given(st.fixed_dictionaries(dict.fromkeys(PLACES, WORDS)))
def test_whatever_the_words_the_tags_are_the_same_and_the_words_are_text(words):
    html = made(words)
    read = Reader(html)
    assert read.tags == Reader(plain()).tags
    assert read.inside("title") == [words["title"]]
    assert read.inside("h1") == [words["title"]]
    assert read.inside("h2") == [words["heading"]]
    assert read.inside("p") == [words["lead"], words["caption"]]
    assert read.inside("th") == [f"c{words['column']}", "n"]
    assert read.inside("td") == [words["cell"], "0.500"]


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


def test_plotly_is_inlined_once_however_many_figures_there_are():
    html = page("t", "l", [Section("a", "", [figure("x"), figure("y")]), Section("b", "", [figure("z")])])
    assert html.count(PLOTLY) == 1 and "</script" not in PLOTLY.lower()  # or its own script would end early
    assert Reader(html.replace(PLOTLY, "plotly's own code")).inside("script").count("plotly's own code") == 1
    assert (
        len(Reader(html.replace(PLOTLY, "")).inside("script")) == 2 + 1 + 1 + 3
    )  # plotly, drawing, words, settings, figures


def test_every_figure_has_its_own_place():
    html = page("t", "l", [Section("a", "", [figure("x"), figure("y")]), Section("b", "", [figure("z")])])
    divs = [dict(attrs) for tag, *attrs in Reader(html.replace(PLOTLY, "")).tags if tag == "div"]
    names = [div["id"] for div in divs if "id" in div]
    assert len(names) == len(set(names)) == 3


def test_a_table_shows_an_interval_in_its_quantitys_cell_and_words_to_the_left():
    table = Table("", "", ({"model": "a", "x": 0.5, "x low": 0.25, "x high": 0.75},))
    read = Reader(page("t", "l", [Section("h", "c", tables=[table])]).replace(PLOTLY, ""))
    assert read.inside("th") == ["model", "x"]
    assert read.inside("td") == ["a", "0.500 [0.250, 0.750]"]
    assert [tag for tag in read.tags if tag[0] == "td"] == [("td", ("class", "word")), ("td",)]


def test_a_figure_keeps_its_title_though_the_page_shows_it_without():
    drawn = figure("its title")
    assert untitled(drawn).layout.title.text is None
    assert drawn.layout.title.text == "its title"
    assert len(untitled(drawn).data) == len(drawn.data)
