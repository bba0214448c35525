"""The meaning of a command line: words that people write for commands, options and settings of ours.

`guesses.toml` has the words. A word without a meaning stays as it is, and the parser refuses it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..backends.files.named_models import models
from ..checks import choice, refusal
from ..guesses import ROOT, command_of, edit_of, option_of, synonym, words_of
from ..spec import flat
from . import options
from .edit_words import NUMBERS, Group, numbers_in, plain, with_edits

# what `COMMAND list` lists
LISTS = {"reproduce": "experiments", "train": "variants", "measure": "models", "view": "models", "edit": "edits"}
_TABLES = "sinks above layers positions epsilons norms keys values kv residuals angles massive entries"
TABLES = dict.fromkeys(_TABLES.split())
FILES = {"--json": "sinks.json", "--html": "sinks.html", "--save": "sinks.csv", "--out": "page.html"}  # in a folder
CONFIGS = ("config", "cfg", "config_file", "config_path", "settings_file", "yaml", "hparams")


def line_meant(words: list[str], commands: Mapping[str, Any]) -> list[str]:
    """A command line that begins with a command, or the words themselves if none is meant."""
    for i in range(min(2, len(words) - 1)):
        if re.fullmatch(r"(tab|fig)(le|ure)?", words[i]) and words[i + 1].isdecimal():  # `figure 2`
            return line_meant([*words[:i], words[i] + words[i + 1], *words[i + 2 :]], commands)
    word, *rest = words
    if word == "help" or rest == ["help"]:
        return [*(rest if word == "help" else [word]), "--help"]
    if word in ("version", "-V", "-v"):
        return ["--version", *rest]
    if (word in models() or os.path.isdir(word)) and word not in commands and command_meant(word) == [word]:
        return line_meant(["measure", *words], commands)
    if word in ("figure", "fig") and rest and (is_model(rest[0]) or command_meant(rest[0])[0] in ("measure", "view")):
        return line_meant(["view", *rest], commands)  # `figure norms`
    if rest and f"{ROOT.name}:{word}-{rest[0]}" in words_of("instead"):  # `train twins`
        return [f"{word}-{rest[0]}", *rest[1:]]
    if word in LISTS and len(rest) == 1 and (listed := re.fullmatch(r"-*(?=\w)(?:list|ls|l)?[-_]?(\w*)", rest[0])):
        meant = command_meant(f"list-{listed[1] or LISTS[word]}")
        if meant[0] == "list":
            return meant
    command, *more = [word] if word in commands or word[:1] == "-" else command_meant(word, rest)
    if command not in commands:
        return [command, *rest, *more]
    given = Options(commands[command])
    if command == "view" and rest[:1] in (["compare"], ["patch"]):  # `plot compare A B`
        return [*rest, *["--plot"] * (not any(map(_is_output, rest)))]
    words = [word for word in more[:1] if word[:1] != "-"]  # which an option before them would take
    is_of_things = command in ("measure", "view", "check", "list")
    thing, others = given.thing_in([*words, *rest]) if is_of_things else ([], rest)
    if thing and (command != "list" or thing[0] == "list"):
        is_drawn = command == "view" and thing[0] == "measure" and not any(map(_is_output, others))
        n = 1 + sum(word[:1] != "-" for word in thing[1:2])
        return line_meant([*thing[:n], *others, *thing[n:], *["--html"] * is_drawn], commands)
    rest = ["--top" if word == "-n" and "--table" in more else word for word in rest]
    rest = rest[1:] if command == "list" and more and rest[:1] == ["list"] else rest  # `models list`
    return [given.command(rest), *words, *rest, *more[len(words) :]]


def command_meant(word: str, others: Iterable[str] = ()) -> list[str]:
    """A command with options that a word means, with an option of the others; the word itself if it means none."""
    name = word.replace("_", "-")
    options_too = (f"{name}:--{synonym(plain(other), ('head', 'threshold'))}" for other in others if other[:1] == "-")
    for given in (*options_too, name):
        if (meant := command_of(given)) != given:
            return meant.split()
    each = [command_meant(part) for part in word.split(",")] if "," in word else []
    if each and all(meant[:2] == ["measure", "--table"] for meant in each):
        return ["measure", "--table", ",".join(meant[2] for meant in each)]
    if re.fullmatch(r"(tab|fig)(le|ure)?[- ]?\d+\w*", name, re.I):
        return ["reproduce", word]
    return ["measure", f"--{name}"] if edit_of(name, options.EDITS) else [word]


def tables_named(text: str) -> str:
    """The names of the tables that words mean, with commas between them. Raises InputError for others."""
    meant = ((command_of(word.strip().replace("_", "-")).split() or [""])[-1] for word in text.split(","))
    names = ("sinks" if word == "measure" else word for word in meant)  # of the sink rate
    return ",".join(name for name in names if choice(name, TABLES, "table") is None)


def is_model(word: str) -> bool:
    """Tells if a word looks like the name or the folder of a model: smollm2, gpt2-medium, OWNER/NAME."""
    name = r"[A-Za-z][A-Za-z._-]*\d[\w.-]*|[\w.-]+/[\w./-]+"
    return bool(re.fullmatch(name, word)) or os.path.isdir(word) or word in models()


def models_in(word: str) -> list[str]:
    """The models of a list such as gpt2,smollm2; the word itself if it is not one."""
    parts = word.split(",")
    return parts if "," in word and all(map(is_model, parts)) else [word]


class Options:
    """The meaning of the words after a command, by the options that it has."""

    def __init__(self, command: Any) -> None:
        named = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
        about = {name: getattr(hint, "__metadata__", ()) for name, hint in command.callback.__annotations__.items()}
        parsers = {name: getattr(hint[0], "parser", None) for name, hint in about.items() if hint}
        endings = {**options.ENDINGS, options.output_folder: ("",)}
        self.endings = {name: endings.get(parsers.get(param.name), ()) for name, param in named.items()}
        self.name, self.own = str(command.name), {name: param for name, param in named.items() if name[0] == "-"}
        self.flags = {name for name, param in self.own.items() if getattr(param, "is_flag", False)}
        self.known = {plain(name): name for name in named}
        self.needs_word = any(param.required for name, param in named.items() if name[0] != "-")

    def meant(self, args: list[str]) -> list[str]:
        """The words with the command's own options; a model named by an option is an argument."""
        words, groups = list[str](), [each for group in self._groups(args) for each in self._with_settings(group)]
        groups = [self._kth(group) for group in groups] if "--table" not in args else groups
        groups = self._with_second_model(self._with_heads(groups))
        groups = with_edits(groups, self._edit_in, self._is_foreign) if "--edit" in self.own else groups
        while groups:
            option, values = groups.pop(0)
            values = [",".join(values)] if len(values) > 1 else values
            if (said := self._said(option, values)) is not None:
                more = self._groups([*filter(None, (part.format(*values[:1] or [""]) for part in said.split()))])
                told = [group for group in self._groups(words) if "{}" not in said]
                has_table = any(option == "--table" for option, _ in groups)
                told += [("--table", ["layers"])] * has_table  # which has a row for each
                groups[:0] = [*(group for group in more if group not in told), *self._groups(values["{" in said :])]
                continue
            own = self._output_for(option, values) or self._own(option)
            if option and own[:1] != "-":  # an argument
                groups[:0] = self._groups(values)
            else:
                words += self._with_values(own, values)
        usual = option_of(f"{self.name}:")  # of `train --steps 5`
        return [usual, *words] if usual and words and all(option for option, _ in self._groups(words)) else words

    def _with_heads(self, groups: list[Group]) -> list[Group]:
        """The groups with `--head 5.3` for --layer 5 --head 3, where a head is named by both."""
        words = [synonym(plain(option), ("layer", "head")) for option, _ in groups]
        named = {word: numbers_in(values) for word, (_, values) in zip(words, groups, strict=True)}
        layers, heads = named.get("layer", []), named.get("head", [])
        is_whole = getattr(self.own.get("--head"), "metavar", "") == "LAYER.HEAD"
        if not (is_whole and layers and heads and all(map(str.isdecimal, layers + heads))):
            return groups
        others = [group for word, group in zip(words, groups, strict=True) if word not in ("layer", "head")]
        return [*others, *(("--head", [f"{layer}.{head}"]) for layer in layers for head in heads)]

    def _kth(self, group: Group) -> Group:
        """The group; of `sink-rate --k 2`, that of the second position, which is 1."""
        k = "".join(group[1])
        is_k = self.name == "measure" and group[0] == "--k" and k.isdecimal() and k != "0"
        return ("--position", [str(int(k) - 1)]) if is_k else group

    def _with_second_model(self, groups: list[Group]) -> list[Group]:
        """The groups of a patch with `--clean A --corrupted B` for two texts, `MODEL --into TWIN` for two models."""
        texts = [group for group in groups if not group[0] and re.search(r"\s", group[1][0])]
        if "--clean" in self.own and len(texts) == 2:
            return [("--clean" if x is texts[0] else "--corrupted", x[1]) if x in texts else x for x in groups]
        words = [(option, values[0]) for option, values in groups if values and re.fullmatch(r"[\w./-]+", values[0])]
        ends = [word for option, word in words if option and re.match("--cl|--co", self._said(option, ["x"]) or "")]
        named = [word for option, word in words if not option or os.path.isdir(word)] or ends
        if "--into" not in self.own or len(named) != 2 or any(option == "--into" for option, _ in groups):
            return groups
        others = [(option, values) for option, values in groups if values[:1] not in ([named[0]], [named[1]])]
        return [("", named[:1]), ("--into", named[1:]), *others]

    def _with_values(self, option: str, values: list[str]) -> list[str]:
        """An option with its values, and one that is a list before each of its numbers."""
        if not getattr(self.own.get(option), "multiple", False) or not values:
            return [*[option] * (option[:1] == "-"), *values]
        each = numbers_in(values) if all(map(NUMBERS.fullmatch, values)) else values
        each = [part for value in each for part in models_in(value)]
        return [word for value in each for word in (option, value)]

    def command(self, args: list[str]) -> str:
        """The command that a line means by its options, as in `view MODEL --port 80`, or by its several models."""
        groups = self._groups(args)
        others = (command_of(f"{self.name}:{option}") for option, _ in groups if self._is_foreign(option))
        of_models = [values for option, values in groups if not option or self._own(option)[:1] != "-"]
        named = [word for values in of_models for value in values for word in models_in(value)]
        is_several = self.name == "measure" and len(named) > 1 and all(map(is_model, named))
        return next((name for name in others if ":" not in name), "compare" if is_several else self.name)

    def thing_in(self, args: list[str]) -> tuple[list[str], list[str]]:
        """The command that the first word means, or an option such as --what, and the other words."""
        groups = self._groups(args)
        for i, (option, values) in enumerate(groups):
            is_first = i == 0 or (i == 1 and not groups[0][0] and is_model(groups[0][1][0]))
            is_named = is_first and not option and values[0] not in models() and not os.path.exists(values[0])
            is_thing = is_named or (values and option_of(f"what:{option}") is not None)
            words = [other for other, _ in groups]
            if is_thing and (meant := command_meant(values[0], words)) not in (values[:1], [self.name, *values[:1]]):
                return meant, _words_of(groups[:i] + groups[i + 1 :])
        return [], args

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
            elif not (takes and not values) and (pair := re.fullmatch(r"([a-z_][\w.]*)=(\S+)", arg)):
                groups.append(self._setting(*pair.groups()))
            elif takes and (not values or (NUMBERS.fullmatch(arg) and NUMBERS.fullmatch("".join(values)))):
                values.append(arg)
            else:
                groups += [("", [part]) for part in models_in(arg)]
        return groups

    def _setting(self, name: str, value: str) -> Group:
        """The option that a word such as steps=10 or optim.lr=1e-3 means."""
        option = f"--{name.rpartition('.')[2]}"
        if not self._is_foreign(option) or self._said(option, [value]) is not None:
            return option, [value]
        return ("--set" if "--set" in self.own else "", [f"{name}={value}"])

    def kept(self, words: list[str]) -> list[str]:
        """The words without the options that the command lacks. A model that one names stays, if it is alone."""
        groups = self._groups(words)
        kept = [group for group in groups if not group[0] or group[0] in self.own]
        is_whole = not self.needs_word or any(not option for option, _ in kept)
        kept += [] if is_whole else [("", values) for _, values in groups if values and is_model(values[0])]
        return _words_of(kept)

    def _own(self, option: str) -> str:
        return option if option in self.own else self.known.get(synonym(plain(option), self.known), option)

    def _is_foreign(self, option: str) -> bool:
        return bool(option) and synonym(plain(option), self.known) not in self.known

    def _with_settings(self, group: Group) -> list[Group]:
        """The group; of --config FILE, the options that the file holds."""
        option, values = group
        is_config = len(values) == 1 and plain(option) in CONFIGS and self._is_foreign(option)
        return self._groups([*_settings_in(values[0])]) if is_config else [group]

    def _output_for(self, option: str, values: list[str]) -> str:
        """The command's option for a file of this ending; empty if the option is not one for a file to write."""
        is_of_format = f".{plain(option)}" in self.endings.get(option, ())  # --json, whatever the file is called
        if len(values) != 1 or not _is_output(option) or is_of_format:
            return ""
        own = self._own(option)
        is_folder = re.search("dir|folder", option) or values[0].endswith("/")
        if is_folder and self.endings.get(own) and ("",) not in self.endings.values():
            values[0] = str(Path(values[0]) / FILES[own])
        ending = Path(values[0]).suffix.lower()
        return next((name for name in (own, *self.endings) if ending in self.endings.get(name, ())), "")

    def _said(self, option: str, values: list[str]) -> str | None:
        """The words that replace an option, or one of its values; `{}` is the value. None if nothing is said."""
        name, value = plain(option).replace("_", "-"), "".join(values[:1])
        if not option:
            said = option_of(f"{self.name}:{value}") if value else None
            return said and f"{said} {{:.0}}"
        if self.name == "train" and not values and (variant := name.replace("-", "_")) in options.VARIANTS:
            return variant
        has = {*self.own, *["--out"] * any(map(_is_output, self.own))}
        asked = [f"{each}={value}" for each in dict.fromkeys((f"--{name}", self._own(option))) if values != [""]]
        keys = [f"{place}{each}" for each in asked for place in (f"{self.name}:", "")]
        keys += [f"{self.name}:{self._own(option)}=several"] * ("," in value)
        keys += [f"{self.name}:--{name}"] * (option not in self.own) + [f"--{name}"] * self._is_foreign(option)
        for key in keys:
            said = option_of(key)
            if said is not None and {*re.findall(r"--[a-z][\w-]*", said)} <= has:
                return f"{said} {{:.0}}" if "=" in key else said  # its value is taken away
        table = command_of(name).removeprefix("measure ")
        is_table = table.startswith("--table") and "--table" in self.own and not NUMBERS.fullmatch(value)
        return table if is_table and self._is_foreign(option) else None

    def _edit_in(self, option: str) -> str:
        """The edit that an option means which the command lacks; else empty."""
        if (named := option_of(f"edits:{option}")) and option not in self.own:
            return named
        edit = edit_of(plain(command_meant(option.strip("-"))[-1]), options.EDITS) if self._is_foreign(option) else ""
        return edit if self._said(option, ["0"]) is None else ""


def _words_of(groups: list[Group]) -> list[str]:
    """The words of a line, from its groups."""
    return [word for option, values in groups for word in (option, *values) if word]


def _is_output(option: str) -> bool:
    """Whether an option names a file to write."""
    return option[:1] == "-" and synonym(plain(option), ["out"]) == "out"


def _settings_in(path: str) -> Iterator[str]:
    """The settings of a YAML or JSON file as options; a key inside another one is a setting of the recipe."""
    fix = "write them as options: `sinkinterp train sigmoid --steps 100`"
    with refusal(f"cannot read the settings of {path}", fix):
        tree = import_module("yaml").safe_load(Path(path).read_text(encoding="utf-8"))
        for key, value in flat(tree).items():
            text = ",".join(map(str, value)) if isinstance(value, list) else value
            if value not in (None, False):
                yield f"--set={key}={text}" if "." in key else f"--{key}" + f"={text}" * (value is not True)
