"""The meaning of a command line: words that people write for commands, options, edits and settings of ours.

`guesses.toml` has the words. A word without a meaning stays as it is, and the parser refuses it.
"""

import re
from collections.abc import Iterable
from inspect import Parameter, signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ..backends.files.named_models import models
from ..checks import choice, command_of, edit_of, option_of, synonym
from .options import EDITS, PACKAGE

LISTS = {"reproduce": "experiments", "train": "variants", "measure": "models", "view": "models"}  # of `COMMAND list`
TABLES = dict.fromkeys(("sinks", "positions", "epsilons", "norms", "residuals", "angles", "massive"))
UNNAMED = {"--json": ["/dev/stdout"], "--html": ["sinks.html"], "--bos": ["always"]}  # values where none is given
NUMBERS = re.compile(r"[\[(]*L?\d[\d.,:LH()\]]*", re.I)  # 4; 0,5; 3.7; L3H7; (3,7)
Group = tuple[str, list[str]]  # an option and its values, or nothing and a word


def line_meant(words: list[str], commands: Iterable[str]) -> list[str]:
    """A command line that begins with a command, or the words themselves if none is meant."""
    for i in range(min(2, len(words) - 1)):
        if re.fullmatch(r"(tab|fig)(le|ure)?", words[i]) and words[i + 1].isdecimal():  # `figure 2`
            return line_meant([*words[:i], words[i] + words[i + 1], *words[i + 2 :]], commands)
    word, *rest = words
    if word == "help" or rest == ["help"]:
        return [*(rest if word == "help" else [word]), "--help"]
    if word in LISTS and len(rest) == 1 and rest[0].lstrip("-") in ("list", "l", "ls"):
        return ["list", LISTS[word]]
    command, *more = [word] if word in commands or word[:1] == "-" else _command_meant(word)
    thing = rest[:1] if command in ("measure", "view", "check") else []
    is_model = bool(thing) and (Path(thing[0]).exists() or thing[0] in models())
    if thing and _command_meant(thing[0]) != thing and not is_model:  # `plot norms MODEL`
        return line_meant(rest, commands)
    return [command, *rest, *more]


def _command_meant(word: str) -> list[str]:
    """A command with options that a word means; the word itself if it means none."""
    name = word.replace("_", "-")
    if (meant := command_of(name)) != name:
        return meant.split()
    if re.fullmatch(r"(tab|fig)(le|ure)?-?\d+\w*", name, re.I):
        return ["reproduce", word]
    return ["measure", f"--{name}"] if edit_of(name, EDITS) else [word]


def tables_named(text: str) -> str:
    """The names of the tables that words mean, with commas between them. Raises InputError for others."""
    meant = (command_of(word.replace("_", "-")).split()[-1] for word in text.split(","))
    names = ("sinks" if word == "measure" else word for word in meant)  # of the sink rate
    return ",".join(name for name in names if choice(name, TABLES, "table") is None)


class Options:
    """The meaning of the words after a command, by the options that it has."""

    def __init__(self, command: str, params: Iterable[Any]) -> None:
        named = {name: param for param in params for name in (*param.opts, *param.secondary_opts)}
        self.command, self.own = command, {name: param for name, param in named.items() if name[0] == "-"}
        self.flags = {name for name, param in self.own.items() if getattr(param, "is_flag", False)}
        self.known = {_plain(name): name for name in named}
        self.needs_word = any(param.required for name, param in named.items() if name[0] != "-")

    def meant(self, args: list[str]) -> list[str]:
        """The words with the command's own options; a model named by an option is an argument."""
        words, groups = list[str](), self._groups(args)
        groups = self._with_edits([*map(_as_option, groups)]) if "--edit" in self.own else groups
        while groups:
            option, values = groups.pop(0)
            if (said := self._said(option, values)) is not None:
                more = [part.format(*values[:1] or [""]) for part in said.split()]
                groups[:0] = self._groups([*filter(None, more), *values["{" in said :]])
                continue
            own = option if option in self.own else self.known.get(synonym(_plain(option), self.known), option)
            values = values or UNNAMED.get(own, [])
            is_list = getattr(self.own.get(own), "multiple", False) and all(map(NUMBERS.fullmatch, values))
            each = [part for value in values for part in value.split(",")] if is_list else []
            words += [word for part in each for word in (own, part)] or [*[own] * (own[:1] == "-"), *values]
        usual = option_of(f"{self.command}:")  # of `train --steps 5`
        return [usual, *words] if usual and words and all(option for option, _ in self._groups(words)) else words

    def _groups(self, args: list[str]) -> list[Group]:
        """The options with the words that may be their values, and the other words."""
        groups = list[Group]()
        for i, arg in enumerate(args):
            option, values = groups[-1] if groups else ("", [])
            takes = option and option not in self.flags
            if arg == "--":
                return [*groups, *(("", [word]) for word in args[i:])]
            if re.match(r"-\D", arg):
                name, equals, value = arg.partition("=")
                groups.append((arg, []) if name in self.flags else (name, [value] * bool(equals)))  # or refused
            elif takes and (not values or (NUMBERS.fullmatch(arg) and NUMBERS.fullmatch("".join(values)))):
                values.append(arg)
            else:
                groups.append(("", [arg]))
        return groups

    def kept(self, words: list[str]) -> list[str]:
        """The words without the options that the command lacks, and without their values if other words are left."""
        groups = self._groups(words)
        kept = [group for group in groups if not group[0] or group[0] in self.own]
        is_whole = not self.needs_word or any(not option for option, _ in kept)
        kept += [] if is_whole else [("", values) for option, values in groups if (option, values) not in kept]
        return [word for option, values in kept for word in (option, *values) if word]

    def _is_foreign(self, option: str) -> bool:
        return bool(option) and synonym(_plain(option), self.known) not in self.known

    def _said(self, option: str, values: list[str]) -> str | None:
        """The words in place of an option that the command lacks; `{}` stands for its value."""
        name, value = _plain(option).replace("_", "-"), "".join(values[:1])
        if not option or option in self.own:
            return None
        places = [f"{self.command}:", *[""] * self._is_foreign(option)]
        for key in (f"{place}--{name}{of}" for place in places for of in (f"={value}", "")):
            said = option_of(key)
            if said is not None and {*re.findall(r"--[a-z][\w-]*", said)} <= self.own.keys():
                return f"{said} {{:.0}}" if "=" in key else said  # its value is taken away
        table = command_of(name).removeprefix("measure ")
        is_table = table.startswith("--table") and "--table" in self.own and not NUMBERS.fullmatch(value)
        return table if is_table and self._is_foreign(option) else None

    def _edit_in(self, option: str) -> str:
        """The edit that an option means which the command lacks; else empty."""
        edit = edit_of(_plain(_command_meant(option.strip("-"))[-1]), EDITS) if self._is_foreign(option) else ""
        return edit if self._said(option, ["0"]) is None else ""

    def _with_edits(self, groups: list[Group]) -> list[Group]:
        """The groups with `--edit` for every edit that is written as an option, and for what belongs to it."""
        edit = next(filter(None, (self._edit_in(option) for option, _ in groups)), "")
        if not edit:
            return groups
        fields = signature(resolve_name(f"{PACKAGE.name}.interventions.{edit}")).parameters
        places = [field for field in fields.values() if field.kind is Parameter.POSITIONAL_OR_KEYWORD]
        needed = sum(field.default is field.empty for field in places)
        is_named = bool(places) and places[0].annotation not in (int, float)
        given, code, others = list[str](), list[str](), list[Group]()
        for option, values in groups:
            words = synonym(_plain(option), fields), f"{_plain(option)}s", option_of(f"edit:{option}")
            field = next((word for word in words if word in fields), "")
            is_number = not option and NUMBERS.fullmatch(values[0]) and len(given) < max(2, len(places))
            is_it = self._edit_in(option) == edit
            is_lacking = not field and len(given) < needed and self._is_foreign(option) and not self._edit_in(option)
            is_word = not option and is_named and len(given) < needed and any(not other for other, _ in others)
            if places and (is_it or is_number or is_lacking or is_word):
                given += [part for value in values for part in value.strip("()[]").split(",")]
            elif field:
                code.append(f"{field}={_code(values, fields[field])}")
            else:
                others += [("", [value]) for value in values] if is_it else [(option, values)]
        if len(given) == 2 and [field.name for field in places] == ["heads"] and all(map(str.isdecimal, given)):
            given = [".".join(given)]  # a head: its layer, and itself
        by_place = [given] * bool(given) if len(places) == 1 else [[part] for part in given]
        others += [("", part) for part in by_place[len(places) :]]
        code = [*(_code(part, place) for part, place in zip(by_place, places, strict=False)), *code]
        return self._with_edits([*others, ("--edit", [f"{edit}({', '.join(code)})"])])


def _as_option(group: Group) -> Group:
    """An edit that is written in words, as in --edit "swap 0 4", as the option --swap."""
    option, values = group
    name, *given = re.split(r"[\s(,)]+", " ".join(values)) if option == "--edit" else [""]
    is_edit = name.islower() and "=" not in "".join(values) and edit_of(name, EDITS)
    return (f"--{name}", [*filter(None, given)]) if is_edit else group


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


def _code(values: list[str], field: Parameter) -> str:
    """The value of an edit's field: a number, a name such as "3.7", or a list of them."""
    parts = ",".join(values).strip("()[]").split(",")
    code = [part if part.isdecimal() or field.annotation is float else f'"{part}"' for part in parts]
    return code[0] if len(code) == 1 else f"[{', '.join(code)}]"
