"""The page of a measurement: the verdict first, the protocol last, and between them what was measured."""

import re
from dataclasses import replace
from functools import cache

from pages.test_page import PLOTLY, Reader
from report.test_massive_entries import PAIRED, WITH
from report.test_tables import REPORT

from sinkinterp.pages.report import measurement_page
from sinkinterp.report.summary import sink_verdict

NASTY = "</script><img src=x onerror=alert(1)>"


NUMBERS = "Is there a sink on the first token?"
BARE = replace(REPORT, extras={})


@cache
def read(name):
    report = {"whole": REPORT, "bare": BARE, "with residuals": WITH, "paired": PAIRED}[name]
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
    assert not {"Angle or length?", "Massive activations"} & set(headings("bare"))
    assert headings("whole")[:9] == [*always, "Angle or length?", "Massive activations", "Largest residual entries"]
    assert any(heading.startswith("Pairs of queries and keys") for heading in headings("paired"))


def test_a_first_position_alone_has_no_curve_over_positions():
    part = {name: getattr(REPORT, name)[..., :1] for name in ("importance", "raw_importance", "null", "bias_null")}
    html = measurement_page(replace(BARE, positions=(0,), **part), 0.3).replace(PLOTLY, "")
    assert Reader(html).inside("h2")[:4] == ["Heads", NUMBERS, "Thresholds", "Norms by kind of token"]


def test_every_figure_says_n_t_epsilon_and_bos():
    html = measurement_page(REPORT, 0.25).replace(PLOTLY, "")
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html)
    assert len(captions) >= 6
    for caption in captions:
        assert all(part in caption for part in ("n=3", "T=11", "BOS none")), caption
    assert sum("epsilon=0.25" in caption for caption in captions) >= len(captions) - 1  # norm ratios have no threshold


def test_hostile_names_of_models_and_tokens_stay_text():
    named = replace(WITH, protocol=replace(REPORT.protocol, model=NASTY, source=NASTY))
    html = measurement_page(named, 0.3, lambda token: NASTY).replace(PLOTLY, "")
    tags = Reader(html).tags
    assert not [tag for tag in tags if tag[0] == "img"]
    ends = html.count("</script>") - html.count("</script><img")
    assert html.count("<script") == ends == len([tag for tag in tags if tag[0] == "script"])
    assert html.count("<script>") == tags.count(("script",)) == 3
