"""Edits that a command line writes as options by the names of their fields, as in --swap 0 5 or --ablate --layer 3.

Also its parts: options with the words that may be their values, and numbers, of which some are ranges.
"""

import re
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pkgutil import resolve_name

from ..guesses import edit_of, option_of, synonym
from .options import EDITS, PACKAGE

Group = tuple[str, list[str]]  # an option and its values, or nothing and a word
NUMBERS = re.compile(r"[\[(]*L?\d[\d.,:LH()\]-]*", re.I)  # 4; 0,5; 0-3; 3.7; L3H7; (3,7)
_RANGE = re.compile(r"(\d{1,4})(-|:|\.\.)(\d{1,4})")


def plain(option: str) -> str:
    """An option as the name of a parameter."""
    return option.lstrip("-").replace("-", "_")


def numbers_in(values: list[str]) -> list[str]:
    """The numbers of a list, such as 0,2 or [0, 2], of 0-3 and 0..3 with both ends, and of 0:3 without its last."""
    return [number for part in ",".join(values).strip("()[]").split(",") for number in _in_range(part.strip())]


def _in_range(part: str) -> list[str]:
    if not (ends := _RANGE.fullmatch(part)):
        return [part]
    return [*map(str, range(int(ends[1]), int(ends[3]) + (ends[2] != ":")))] or [part]


def with_edits(groups: list[Group], edit_named: Callable[[str], str], is_foreign: Callable[[str], bool]) -> list[Group]:
    """The groups with `--edit` for every edit that is written as an option, and for what belongs to it.

    edit_named: the edit that an option means, or nothing. is_foreign: whether the command lacks an option.
    """
    groups = [*map(_as_option, groups)]
    edit = next(filter(None, (edit_named(option) for option, _ in groups)), "")
    if not edit:
        return groups
    fields = signature(resolve_name(f"{PACKAGE.name}.interventions.{edit}")).parameters
    places = [field for field in fields.values() if field.kind is Parameter.POSITIONAL_OR_KEYWORD]
    is_named = bool(places) and places[0].annotation not in (int, float)
    needed = sum(field.default is field.empty for field in places)
    given, named, others = list[str](), list[str](), list[Group]()
    has_values = any(values and edit_named(option) == edit for option, values in groups)
    for option, values in groups:
        is_edit, field = edit_named(option) == edit, _field_of(option, fields)
        is_number = not option and NUMBERS.fullmatch(values[0]) and len(given) < max(2, len(places))
        is_after_model = not option and is_named and any(not other for other, _ in others)
        is_place = not field and (is_foreign(option) or "position" in option)
        is_missing = not has_values and len(given) < needed and (is_after_model or is_place)
        if places and (is_edit or is_number or is_missing):
            given += [part for value in values for part in value.strip("()[]").split(",")]
        elif field:
            named += [f"{field}={_code(values, fields[field])}"] * (values != ["all"])
        else:
            others += [("", [value]) for value in values] if is_edit else [(option, values)]
    if len(given) == 2 and [field.name for field in places] == ["heads"] and all(map(str.isdecimal, given)):
        given = [".".join(given)]  # a head: its layer, and itself
    by_place = [given] * bool(given) if len(places) == 1 else [[part] for part in given]
    others += [("", part) for part in by_place[len(places) :]]
    code = [*(_code(part, place) for part, place in zip(by_place, places, strict=False)), *named]
    return with_edits([*others, ("--edit", [f"{edit}({', '.join(code)})"])], edit_named, is_foreign)


def _as_option(group: Group) -> Group:
    """An edit that is written in words, as in --edit "swap 0 4" and `edit MODEL zero-key-bias`, as an option."""
    option, values = group
    is_word = not option and re.fullmatch(r"[a-z]+([-_][a-z]+)+", values[0])
    name, *given = re.split(r"[\s(,)]+", " ".join(values)) if option == "--edit" or is_word else [""]
    is_edit = name.islower() and "=" not in "".join(values) and edit_of(name, EDITS)
    return (f"--{name}", [*filter(None, given)]) if is_edit else group


def _field_of(option: str, fields: Mapping[str, Parameter]) -> str:
    """The field of an edit that an option means; empty if it means none."""
    words = synonym(plain(option), fields), f"{plain(option)}s", option_of(f"edit:{option}")
    return next((word for word in words if word and word in fields), "")


def _code(values: list[str], field: Parameter) -> str:
    """The value of an edit's field: a number, a name such as "3.7", or a list of them."""
    code = [part if part.isdecimal() or field.annotation is float else f'"{part}"' for part in numbers_in(values)]
    return code[0] if len(code) == 1 else f"[{', '.join(code)}]"
