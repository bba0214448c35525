"""Arguments that do not fit: functions and frozen values that say what to write in place of them."""

import inspect
import logging
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import Field, FrozenInstanceError, dataclass, field
from functools import lru_cache, partialmethod, update_wrapper
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, dataclass_transform

from . import guesses
from .checks import InputError, P, check_fields, whole_number
from .guesses import ROOT, Unknown

R = TypeVar("R")
_PLACES = ("layers", "heads", "kv_heads", "positions")
_signature = lru_cache(1024)(inspect.signature)  # of what is called again and again
_RUN_MODELS = ("tabulate", "measure")  # modules whose functions do not take the weights of a cache
_OF_LOAD, _OF_TOKENS = ("tokenizer", "backend", "dtype", "device_map"), ("bos", "length", "sequences", "attention_mask")


def keywords(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises InputError for arguments that it does not take, and says what to write instead.

    Words of the table mean one argument, such as `layer` and `layers`. Some values of foreign arguments do, too. How
    a model is loaded and its text is read may be said beside them, and the file in which the answer is saved.
    """
    known = inspect.signature(function).parameters
    words = _OF_LOAD * ("model" in known) + _OF_TOKENS * ({"tokens", "text"} & {*known} != set()) * ("model" in known)
    handed = [word for word in words if word not in known]
    takes_text = "tokenizer" not in known and bool({"tokens", "text"} & {*known})
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    is_saved = "path" not in known and bool({"model", "self"} & {*known})
    of_answer = ["path", "as_frame"] if is_saved else []

    def meant_by(given: Mapping[str, Any], in_place: int) -> dict[str, Any]:
        at, table = function.__name__, guesses.words_of("argument")
        foreign = {word: f"{word}={value!r:.20}" for word, value in given.items() if word not in known and not hands_on}
        meant = {word: table.get(f"{at}:{text}", table.get(text)) for word, text in foreign.items()}
        meant = {word: value for word, value in meant.items() if not value or value.split("=")[0] in known}
        free = [word for word in (*[*known][in_place:], *handed, *of_answer) if word not in given]
        answered = {x for x in given if f"{at}:{x}" in guesses.words_of("instead")}
        is_free = {x: guesses.parts_of(x) in map(guesses.parts_of, free) for x in answered}
        own = {x for x in answered if not is_free[x] and guesses.synonym(x, free) != "text"} | {*known}
        by_place = {*known} - {*free}
        own |= {x for x in given if hands_on and guesses.synonym(x, known) in by_place}
        if "position" in free and "k" in given and not {"k", "top"} & {*known}:
            k = whole_number(given["k"], "k, as in Sink_k, counts from 1 (position=0 is the first token); it", 1)
            given = {x: value for x, value in given.items() if x != "k"} | {"position": k - 1}
        kept = {guesses.synonym(x, [x] if x in own else free): given[x] for x in given if meant.get(x) is None}
        pairs = (pair.split("=") for pair in meant.values() if pair)
        return kept | {word: literal_eval(value) for word, value in pairs}

    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        told: Any = kwargs
        by_place: Any = args
        if takes_text and (found := [x for x in args if _is_tokenizer(x)]):
            told, by_place = kwargs | {"tokenizer": found[0]}, tuple(x for x in args if x is not found[0])
        named: Any = {word: None if _is_all(known, word, x) else x for word, x in meant_by(told, len(by_place)).items()}
        model: Any = (dict(zip(known, by_place, strict=False)) | named).get("model")
        if getattr(type(model), "kind", "") == "block":
            return model.as_model(public, by_place, named)
        if type(model).__name__ == "ActivationCache" and function.__module__.split(".")[-1] in _RUN_MODELS:
            of_cache = import_module(f"{ROOT.name}.backends.transformer_lens").inputs_of_cache(model)
            by_place, named = by_place[1:], {x: y for x, y in named.items() if x != "model"}
            by_place = (*of_cache, *by_place) if "tokens" not in named else (of_cache[0], *by_place)
        path, is_framed = (named.pop(word, None) if is_saved else None for word in ("path", "as_frame"))
        given = _prepared([*known], by_place, named, handed) if handed else by_place
        _check_fit(function, given, named)
        answer: Any = function(*given, **named)
        if path is not None:
            saved(answer, path)
        return answer.to_pandas() if is_framed else answer

    public: Any = Function(function, checked)
    return public


class Function:
    """A function of ours. An attribute that it lacks is the function that both words mean, or says what to write."""

    def __init__(self, function: Callable[..., Any], checked: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._checked = checked

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._checked(*args, **kwargs)

    def __get__(self, thing: Any, owner: type | None = None) -> Any:
        return self if thing is None else MethodType(self, thing)

    def __repr__(self) -> str:
        return f"<function {vars(self)['__name__']}>"

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            own = vars(self).get("__name__", "")
            if name[0] != "_" and guesses.parts_of(name) and (both := guesses.meant_by_table(f"{own}_{name}")):
                return getattr(sys.modules[ROOT.name], both)
            if name in guesses.LISTING and not inspect.signature(self).parameters:
                return self
            what = f"{own} is a function, without {name!r}"
            raise Unknown(what, name, lambda: guesses.fix_of(name, own) or guesses.fix_of("", own))


def _is_tokenizer(value: Any) -> bool:
    """Whether a value is a tokenizer of transformers or stands for one. A subject of ours is not asked: it searches."""
    return not hasattr(type(value), "kind") and callable(getattr(value, "convert_ids_to_tokens", None))


def _is_all(known: Mapping[str, inspect.Parameter], word: str, value: Any) -> bool:
    """Whether an argument that chooses places chooses all of them by a word."""
    is_left_out = word in known and known[word].default is None
    return is_left_out and word in _PLACES and isinstance(value, str) and value == "all"


def saved(what: Any, path: Any, **how: Any) -> Path:
    """The path at which `si.save` writes something."""
    return Path(import_module(f"{ROOT.name}.pages.report").save(what, path, **how))


def _prepared(names: list[str], args: tuple[Any, ...], named: dict[str, Any], handed: list[str]) -> tuple[Any, ...]:
    """The arguments by place, with the model loaded and the text read as other arguments say, which are taken away."""
    how = {word: value for word in handed if word in named and (value := named.pop(word)) is not None}
    if not how or not {*names[: len(args)], *named} & {"model"}:
        return args
    values = dict(zip(names, args, strict=False)) | named
    of_text = {word: how.pop(word) for word in _OF_TOKENS if word in how}
    loading = import_module(f"{ROOT.name}.backends.load")
    made = {"model": loading.load(values["model"], **how) if how else loading.subject_of(values["model"])}
    text = next((name for name in ("tokens", "text") if values.get(name) is not None), "")
    if text and (mask := of_text.pop("attention_mask", None)) is not None:
        made[text] = {"input_ids": values[text], "attention_mask": mask}
    elif text and of_text:
        made[text], of_text = made["model"].tokens(values[text], **of_text), {}
        if made[text].too_short:
            left_out = made[text].too_short, made[text].shortest
            logging.getLogger(ROOT.name).warning("texts left out: %d, which have fewer than %d tokens", *left_out)
    elif of_text and "attention_mask" not in of_text and "tokens" in names:
        named["tokens"] = import_module(f"{ROOT.name}.measurement.measure").docstrings_for(made["model"], **of_text)
        of_text = {}
    named |= of_text | {name: value for name, value in made.items() if name in named}
    return tuple(made.get(name, value) for name, value in zip(names, args, strict=False)) + args[len(names) :]


def _check_fit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature, name = _signature(function), function.__name__
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [word for word in signature.parameters if word != "self"]
        unknown = next((word for word in kwargs if word not in signature.parameters), "")
        usage = guesses.fix_of("", name)
        fix = (guesses.fix_of(unknown, name, names) if unknown else "") + usage * ("missing" in str(error)) or usage
        if unknown and "edits" in names and (edit := guesses.edit_of(unknown, guesses.public_edits())):
            value = kwargs[unknown]
            values = ", ".join(map(repr, value if isinstance(value, tuple) else [value]))
            is_its_name = unknown.replace("_", "") == edit.lower()
            call = f"{edit}({values})" if value is not True else unknown if is_its_name else f"{edit}()"
            fix = f"; it is an edit: write edits={call!r:.80}, or a block, with si.edit(model, ...)"
        known = "" if fix.startswith(";") else f"; it takes {', '.join(names) or 'nothing'}"
        raise InputError(f"{name}: {error}{known}{fix}") from None


def _refuse_change(value: Any, name: str, *_: Any) -> NoReturn:
    raise FrozenInstanceError(f"a {type(value).__name__} is not changed: {name}; make another one")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Told(type):
    """The type of frozen values. Each of its classes is a frozen dataclass, with the equality and text of its base.

    A class raises InputError, which names its fields, for arguments that it does not take.
    """

    def __new__(
        meta, name: str, bases: tuple[type, ...], body: dict[str, Any], kw_only: bool = False, **others: Any
    ) -> Any:
        given = {of: value for of, value in body.items() if isinstance(value, Field)}
        shown = {of: others.pop(of) for of in ("eq", "repr") if of in others}
        cls: Any = super().__new__(meta, name, bases, body, **others)
        inherited = getattr(cls, "__dataclass_params__", None)
        shown = {of: getattr(inherited, of, True) for of in ("eq", "repr")} | shown
        dataclass(frozen=True, kw_only=kw_only, **shown)(cls)
        del cls.__setattr__, cls.__delattr__  # a class that its author makes a dataclass, too, gets them again
        if inherited is None:
            cls.__setattr__ = cls.__delattr__ = _refuse_change
        if not shown["eq"] and "__eq__" not in body:  # not the equality of a base, which knows only the fields there
            cls.__eq__, cls.__hash__ = object.__eq__, object.__hash__
        for of, value in given.items():
            setattr(cls, of, value)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = _signature(cls).parameters
        fits = kwargs.keys() <= known.keys()
        meant = kwargs if fits else {guesses.synonym(word, known): value for word, value in kwargs.items()}
        try:
            return super().__call__(*args, **meant)
        except TypeError:
            _check_fit(cls, args, kwargs)
            raise

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields of a class, which help and editors show."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=[*signature.parameters.values()][1:])


class Misused(InputError, TypeError):
    """A thing is used in a way that it does not allow. Python's own protocols expect a TypeError."""


_USES = {"indexed": "getitem", "called": "call", "a block": "enter exit"}
_USES["a number"] = "float int round lt le gt ge add radd sub rsub mul rmul"


def refuse_uses(cls: type, *uses: str) -> None:
    """Makes things of a class say what to write where they are used so, unless a base of theirs can be."""
    names = {f"__{name}__": use for use in uses for name in _USES[use].split()}
    for name in names.keys() - {inherited for base in cls.__mro__[:-1] for inherited in vars(base)}:
        setattr(cls, name, partialmethod(_misused, names[name]))


def _misused(thing: Any, use: str, *_: Any, **__: Any) -> NoReturn:
    kind = getattr(thing, "kind", None) or type(thing).__name__
    raise Misused(f"a {kind} is not {use}{guesses.said_of(use.split()[-1], kind) or guesses.usage_of(thing, kind)}")


class Frozen(metaclass=Told):
    """The base of values that do not change. They say what to write in place of an attribute that they do not have."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise guesses.no_attribute(self, type(self).__name__, name)


refuse_uses(Frozen, "a number", "indexed")


class Checked(Frozen):
    """The base of values whose fields are checked when they are made; see `check_fields`."""

    def __post_init__(self) -> None:
        check_fields(self)
