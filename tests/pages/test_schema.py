"""Python declares the data of the pages; their scripts read every field, and no other."""

import re
from dataclasses import dataclass

import pytest

from sinkinterp.pages.atlas.encode import SCRIPTS as ATLAS, PageData
from sinkinterp.pages.live.page import SCRIPTS as LIVE, AnswerData, StartData
from sinkinterp.pages.page import asset, declared


@dataclass(frozen=True)
class Part:
    names: list[str]
    pair: tuple[float, int]


@dataclass(frozen=True)
class Whole:
    is_on: bool
    parts: dict[str, Part]


def test_types_are_declared_as_json():
    part = {"names": ["string"], "pair": ["number", "number"]}
    assert declared(Whole) == {"is_on": "boolean", "parts": {"*": part}}


def text(scripts):
    return "".join(map(asset, scripts))


def fields(kind):
    """The names of all fields of a declared type, at every depth."""
    if isinstance(kind, dict):
        return set(kind) - {"*"} | set().union(*map(fields, kind.values()))
    return set().union(*map(fields, kind)) if isinstance(kind, list) else set()


def test_the_scripts_read_every_field_and_no_other_field_of_an_atlas():
    at_top = set(re.findall(r"\babout\.(\w+)", text(ATLAS)))
    (taken,) = re.findall(r"\(\{([^}]*)\} = about\);", text(ATLAS))
    assert at_top | {name.strip() for name in taken.split(",")} == declared(PageData).keys()


@pytest.mark.parametrize(("root", "kind"), [("start", StartData), ("answer", AnswerData)])
def test_the_live_page_reads_every_field_and_no_other_field(root, kind):
    own = [name for name in LIVE if name.startswith("live/")]
    assert set(re.findall(rf"\b{root}\.(\w+)", text(own))) - {"error"} == declared(kind).keys()


@pytest.mark.parametrize(("scripts", "kind"), [(ATLAS, PageData), (LIVE, AnswerData), (LIVE, StartData)])
def test_no_field_is_written_that_no_script_reads(scripts, kind):
    assert not [name for name in fields(declared(kind)) if not re.search(rf"\b{name}\b", text(scripts))]
