"""Every page that we write has the same content security policy, which names its scripts and nothing else."""

import base64
import hashlib
import re

import plotly.graph_objects as go
import pytest
from backends.zoo import model_of
from markupsafe import Markup
from pages.atlases import small_atlas
from pages.test_book import chapter
from pages.test_page import Reader
from report.test_tables import REPORT

from sinkinterp.backends.load import load
from sinkinterp.pages.atlas.encode import atlas_page
from sinkinterp.pages.book import front_page, write_chapter
from sinkinterp.pages.live.page import Session, live_page
from sinkinterp.pages.page import Section, document, page
from sinkinterp.pages.report import measurement_page
from sinkinterp.runs.experiment import Outcome
from sinkinterp.table import Table

TABLE = Table("a table", "", ({"x": 1.5},))
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
    "gallery and demo": lambda folder: page("t", "l", [Section("s", "", [go.Figure()])]),
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
