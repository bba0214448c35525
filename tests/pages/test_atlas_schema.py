"""Python and the scripts of the atlas agree on the names and the types of the page's data."""

import json
import re
from dataclasses import is_dataclass
from typing import get_args, get_origin, get_type_hints

from sinkinterp.pages.assets import asset
from sinkinterp.pages.atlas.page import SCRIPTS
from sinkinterp.pages.atlas.schema import PageData

NAMES = {str: "string", int: "number", float: "number", bool: "boolean"}
READERS = "".join(asset(name) for name in SCRIPTS if name != "atlas/schema.js")


def declared(kind):
    """A type of Python as schema.js declares it."""
    if is_dataclass(kind):
        return {name: declared(hint) for name, hint in get_type_hints(kind).items()}
    if get_origin(kind) is dict:
        return {"*": declared(get_args(kind)[1])}
    if get_origin(kind) in (list, tuple):
        return [declared(part) for part in get_args(kind)]
    return NAMES[kind]


def schema():
    return json.loads(re.search(r"^const SCHEMA = (\{.*?^\});", asset("atlas/schema.js"), re.S | re.M)[1])


def fields(kind):
    """The names of all fields of a declared type, at every depth."""
    if isinstance(kind, dict):
        return set(kind) - {"*"} | set().union(*map(fields, kind.values()))
    return set().union(*map(fields, kind)) if isinstance(kind, list) else set()


def test_the_scripts_declare_the_data_that_python_writes():
    assert schema() == declared(PageData)


def test_the_scripts_read_every_field_and_no_other_field_of_the_data():
    at_top = set(re.findall(r"\babout\.(\w+)", READERS))
    (taken,) = re.findall(r"const \{([^}]*)\} = about;", READERS)
    assert at_top | {name.strip() for name in taken.split(",")} == schema().keys()
    assert not [name for name in fields(schema()) if not re.search(rf"\b{name}\b", READERS)]
