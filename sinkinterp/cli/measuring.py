"""The commands that measure: a model, domains of text, every backend, smaller caches, and what to leave out."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text as RichText

from ..checks import InputError, choice, refusing
from ..data.choices import Bos, Drawn, Dtype
from ..data.progress import OnProgress, no_progress, progress_bars
from ..data.texts import is_path, is_text
from ..seals import Content
from . import options
from .drawing import layer_and_head
from .terminal import Wanted, brief, deliver, print_line, print_table

if TYPE_CHECKING:
    from ..backends.huggingface import HuggingFaceSubject
    from ..backends.subject import Subject
    from ..data.progress import Progress
    from ..data.tokens import Tokens, TokenSet
    from ..measurement.measure import Preset
    from ..report.readings import TokenText
    from ..report.report import Report
    from ..runs.case import Inputs
    from ..table import Table


@dataclass(frozen=True)
class Input:
    """What a model reads, and how much of it."""

    text: Annotated[str | None, typer.Option(parser=options.source)] = None
    column: Annotated[str | None, typer.Option(parser=options.filled)] = None
    chat: Annotated[str | None, typer.Option(parser=options.source)] = None
    tokens: Annotated[Path | None, typer.Option(parser=options.token_file)] = None
    drawn: Drawn | None = None
    seed: Annotated[int | None, typer.Option(parser=options.SEED)] = None
    length: Annotated[int | None, typer.Option(parser=options.TOKENS)] = None
    sequences: Annotated[int | None, typer.Option(parser=options.SEQUENCES)] = None
    bos: Bos | None = None

    @property
    def is_one_text(self) -> bool:
        return self.text is not None and is_text(self.text)

    @refusing
    def check(self) -> Iterator[str]:
        """Raises InputError for an option that has no effect on this input, and for a file that cannot be read."""
        from ..train.chats import read_chats

        options.check_text(self.text, self.column or "text")
        if self.chat is not None and is_path(self.chat):
            read_chats(self.chat)
        options.check_used("--seed", self.seed, "--drawn", self.drawn)
        options.check_used("--column", self.column, "a file of columns in --text", self._has_columns() or None)
        options.check_used("--bos", self.bos, "a text or drawn tokens", True if self.tokens is None else None)
        if self.bos is not None and self.chat is not None:
            yield "a chat template decides about BOS; leave --bos out, or --chat"
        if self.is_one_text and self.sequences not in (None, 1):
            yield f"one text is one sequence, not {self.sequences}; leave --sequences out, or give a file of texts"

    def _has_columns(self) -> bool:
        from ..data.texts import ending_of, files_of

        if self.text is None or self.is_one_text:
            return False
        path = Path(self.text)
        return any(ending_of(file) != ".txt" for file in (files_of(path) if path.is_dir() else [path]))

    def over(self, settings: "Preset", **others: Any) -> "Preset":
        """The settings, with those that the user gave in their place; `others` are of other options."""
        sequences = 1 if self.is_one_text else self.sequences
        given = {"length": self.length, "sequences": sequences, "bos": self.bos, **others}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})

    def token_set(
        self, subject: "Subject", model: str, length: int, sequences: int, on_file: OnProgress = no_progress
    ) -> "TokenSet":
        """The tokens of a command with these defaults: sequences of one length that fits the context, or fewer."""
        from ..measurement.measure import Preset

        if self.bos is not None:
            options.check_bos(subject, self.bos)
        size = self.over(Preset(length=length, sequences=sequences))
        fitting = replace(size, length=min(size.length, subject.shape.n_ctx or size.length))
        inputs = self.inputs(fitting, is_default=True)
        is_prompt = self.is_one_text and self.length is None
        return replace(inputs, may_be_shorter=is_prompt).token_set(subject, model, on_file)

    def inputs(self, settings: "Preset", is_default: bool) -> "Inputs":
        """The inputs. Fewer and shorter ones will do where `is_default` and the user gives no size, or one text."""
        from ..runs.case import Inputs

        given = {name: value for name, value in vars(self).items() if value is not None}
        may_be_shorter = self.length is None and (is_default or self.is_one_text)
        may_be_fewer = self.sequences is None and not self.is_one_text and is_default
        sizes = {name: getattr(settings, name) for name in ("length", "sequences", "bos")}
        return Inputs(**given | sizes, may_be_shorter=may_be_shorter, may_be_fewer=may_be_fewer)


_NAMES = "sinks above layers positions epsilons norms keys values kv residuals angles massive entries"
TABLES = dict.fromkeys(_NAMES.split())


def tables_named(text: str) -> str:
    """The names of tables, with commas between them. Raises InputError for others."""
    return ",".join(name for name in text.split(",") if choice(name, TABLES, "table") is None)


@dataclass(frozen=True)
class Settings:
    """How `measure` measures."""

    epsilon: Annotated[float | None, typer.Option(parser=options.share)] = None
    preset: Annotated[str | None, typer.Option(autocompletion=options.beginning(options.PRESETS))] = None
    first_only: bool = False
    edit: options.Edits = field(default_factory=list)

    def over_preset(self, given: Input, dtype: Dtype | None) -> "Preset":
        """The preset, or the default settings, with what the user gave."""
        from ..measurement.measure import PRESETS, Preset

        preset = Preset() if self.preset is None else choice(self.preset, PRESETS, "preset")
        return given.over(preset, epsilon=self.epsilon, dtype=dtype)


@dataclass(frozen=True)
class Results(options.Tables):
    """What `measure` prints and writes; None for a file that the user did not ask for."""

    table: Annotated[list[str], typer.Option("--table", parser=tables_named)] = field(default_factory=list)
    layers: Annotated[list[int], typer.Option("--layer", parser=options.whole(0))] = field(default_factory=list)
    heads: Annotated[list[str], typer.Option("--head", metavar="[LAYER.]HEAD")] = field(default_factory=list)
    positions: Annotated[list[int], typer.Option("--position", parser=options.whole(0))] = field(default_factory=list)
    top: Annotated[int | None, typer.Option(parser=options.whole(1))] = None
    save: Annotated[Path | None, typer.Option(parser=options.output_file)] = None

    def check(self) -> None:
        """Raises InputError for a format in which a report is not saved."""
        from ..pages.report import PAGES, PICTURES
        from ..report.readings import writer_of

        if self.save is not None and self.save.suffix.lower() not in (*PAGES, *PICTURES):
            writer_of(self.save)

    def tables(self, report: "Report", epsilon: float, word: "TokenText") -> "list[Table]":
        """The tables that are asked for, or that of heads where only their rows are; else none."""
        from ..report.rows import rows_named

        named = [layer_and_head(name) for name in self.heads if not name.isdecimal()]
        layers = [*self.layers, *(layer for layer, _ in named)] or None
        heads = [*map(int, filter(str.isdecimal, self.heads)), *(head for _, head in named)] or None
        usual = "sinks" * bool(layers or heads or self.top) or "positions" * bool(self.positions)
        names = ",".join(self.table or [usual]).split(",")
        chosen: Any = {"layers": layers, "heads": heads, "positions": self.positions or None, "top": self.top}
        return [rows_named(name, report, epsilon, word, **chosen) for name in dict.fromkeys(filter(None, names))]

    def files(self, report: "Report", asked: "list[Table]", epsilon: float, word: "TokenText") -> tuple[Wanted, ...]:
        from ..pages.report import PAGES, content, measurement_page
        from ..report.report import tables_as_json

        def page() -> Content:
            return measurement_page(report, epsilon, word)

        suffix = (self.save or Path()).suffix.lower() or ".csv" * bool(asked)
        saved = page if suffix in PAGES else lambda: content((*asked, report)[0], suffix)

        def as_json() -> Content:
            data = tables_as_json(report, epsilon)
            return data | {"tables": [table.to_dict() for table in asked]} if asked else data

        return ((self.save, saved), (self.json_out, as_json), (self.html_out, page))


def measure(model: options.Model, given: Input, how: Settings, loading: options.Loading, results: Results) -> None:
    """Measure the attention sinks of a model."""
    with progress_bars() as progress:
        from ..report.report import overview_tables
        from .terminal import overview

        results.check()
        given.check()
        settings = how.over_preset(given, loading.dtype)
        options.check_sizes(model, None, given.length, loading.beyond_context)
        subject = loading.subject(model, settings.dtype)
        report = measured(subject, model, given, settings, how, progress)
        word = subject.label
        asked, tables = results.tables(report, settings.epsilon, word), overview_tables if results.full else overview
        shown = [*(asked or tables(report, settings.epsilon, word)), *_remarks(report, given)]
    deliver(shown, *results.files(report, asked, settings.epsilon, word), force=results.force)


def _remarks(report: "Report", given: Input) -> Iterator[str]:
    """Returns what the user may not expect of the texts that were read."""
    read = report.protocol
    if read.texts_too_short:
        yield f"{read.texts_too_short} texts shorter than {read.length} tokens were passed over."
    if read.sequences == 1 and given.text is not None and not given.is_one_text:
        more = "--length reads more of it, and a .txt with blank lines between, a .jsonl or a folder holds many"
        yield f"{given.text} holds one text, read up to {read.length} tokens; {more}."


def measured(
    subject: "Subject", model: str, given: Input, settings: "Preset", how: Settings, progress: "Progress"
) -> "Report":
    """The report on the input: on one whole text, on the given ones, or on docstrings until the interval is narrow."""
    from ..measurement.measure import measure as measure_sinks, measure_enough
    from ..metrics import instruments

    options.check_used("--bos", given.bos, "a model with a tokenizer", subject.tokenizer)
    inputs = given.inputs(settings, is_default=how.preset is None)

    asked: dict[str, Any] = {"convention": settings.convention, "edits": how.edit}
    asked |= {"positions": (0,)} if how.first_only else {"instruments": instruments.ALL}

    def report_on(token_set: "TokenSet", why: str = "") -> "Report":
        n, longest = token_set.tokens.shape
        show = progress(f"measuring {n} {'more ' if why else ''}x {longest} tokens{why}")
        return measure_sinks(subject, token_set, **asked, progress=show)

    def first(n: int) -> "TokenSet":
        return replace(inputs, sequences=n).token_set(subject, model, on_file)

    if inputs.given or not inputs.may_be_fewer or subject.tokenizer is None:
        return report_on(inputs.token_set(subject, model))
    on_file = progress("reading docstrings")
    return measure_enough(first, report_on, settings.sequences, settings.epsilon)


@dataclass(frozen=True)
class Domains:
    """How much of each domain is read, how its sequences begin, and what counts as a sink."""

    column: options.Column = "text"
    length: Annotated[int, typer.Option(parser=options.TOKENS)] = 64
    sequences: Annotated[int, typer.Option(parser=options.SEQUENCES)] = 100
    bos: Bos = Bos.TOKENIZER
    epsilon: Annotated[float, typer.Option(parser=options.share)] = 0.3


def domains(
    model: options.Model,
    sources: Annotated[list[str], typer.Argument(parser=options.source)],
    of: Domains = Domains(),
    loading: options.Loading = options.Loading(),
    ray: options.OnRay = None,
    json_out: options.Json = None,
    force: bool = False,
) -> None:
    """Measure the first position's sink on text of several domains; exit code 1 where some had to be left out."""
    with progress_bars() as progress:
        from ..report.compare import sinks_by_domain
        from ..runs.case import Inputs
        from ..runs.workers import Here, Ray, in_order

        workers = Here() if ray is None else Ray(ray)
        has_columns = not all(name.lower().endswith(".txt") for name in sources) or None
        options.check_used("--column", None if of.column == "text" else of.column, "a file of columns", has_columns)
        options.check_sizes(model, length=of.length)
        subject = loading.subject(model)
        inputs = Inputs(of.length, of.sequences, of.bos, column=of.column)
        token_sets, errors = inputs.domain_token_sets(subject, sources, "domain")
        if not token_sets:
            raise InputError("; ".join(f"{name}: {error}" for name, error in errors.items()))
        first_position = partial(_first_position, subject if ray is None else model, loading)
        reports = in_order(workers, first_position, list(token_sets.values()), progress("measuring domains"))
        table = sinks_by_domain(dict(zip(token_sets, reports, strict=True)), of.epsilon)
    for name, error in errors.items():
        said = re.sub(r"\b(length|sequences)=", r"--\1 ", str(error))  # the options of this command
        print_line(f"left out: {name}: {said}")
    deliver([table], (json_out, lambda: table.to_dict()), force=force)
    if errors:
        raise typer.Exit(1)


def _first_position(model: "Subject | str", loading: options.Loading, token_set: "TokenSet") -> "Report":
    """The first position's sink of a model, which a worker on another machine loads by its name."""
    from ..measurement.measure import measure as measure_sinks

    subject = loading.subject(model) if isinstance(model, str) else model
    return measure_sinks(subject, token_set, positions=(0,), progress=False)


def check(model: options.Model) -> None:
    """Compare every backend with dense attention and with each other on a model; exit code 1 where they differ."""
    from ..backends.files.model_files import load_model
    from ..measurement.parity import agrees, parity

    table = parity(load_model(model), model)
    print_table(table)
    if not agrees(table):
        raise typer.Exit(1)


ELSEWHERE = "All tables: --full. A page: --html FILE. Every number: --json FILE."


def cache(
    model: options.Model,
    given: Input,
    loading: options.Weights,
    tolerance: Annotated[float, typer.Option(parser=options.number("tolerance", above=0, most=1))] = 0.1,
    bits: Annotated[list[int], typer.Option(parser=options.whole(2, 32))] = [8, 4, 2],
    files: options.Tables = options.Tables(),
) -> None:
    """How many first tokens must a rolling cache keep, and what does rounding it cost? Measure it, and answer."""
    with progress_bars() as progress:
        from ..applications import eviction

        _check_cached(given.length)
        subject, tokens = _read(model, given, loading, 256, 32)
        _check_cached(tokens.shape[1])  # a text may be shorter than was asked for
        window = tokens.shape[1] // 2
        losses = eviction.first_token_losses(subject, tokens, (window // 2, window), progress=progress)
        heads = eviction.heads_table(subject, tokens, window, tolerance)
        rounded = eviction.quantised_table(subject, tokens, bits, progress)
        tables = [losses.table(), heads, rounded]
        answer = f"{losses.answer()} {eviction.quantised_answer(rounded)}"
    everything = [*(eviction.needs_table(table) if table is heads else table for table in tables), answer]
    title = f"{subject.name}: how many first tokens must stay?"
    shown = everything if files.full else brief(answer, eviction.largest_window_first(tables[0]), ELSEWHERE)
    _deliver(title, answer, tables, shown, files)


def _check_cached(length: int | None) -> None:
    if length is not None and length < 4:
        raise InputError("a cache of one token has no first token to keep; use --length 4, or more")


def _read(
    model: str, given: Input, loading: options.Weights, length: int, sequences: int
) -> "tuple[HuggingFaceSubject, Tokens]":
    """The model and its input: by default so many texts of one length that fits its context."""
    given.check()
    subject = cast("HuggingFaceSubject", loading.subject(model))
    return subject, given.token_set(subject, model, length, sequences).tokens


def mask(
    model: options.Model,
    given: Input,
    loading: options.Weights,
    times: Annotated[float, typer.Option(parser=options.number("times", above=1, most=1e6))] = 10.0,
    heads: bool = False,
    files: options.Tables = options.Tables(),
) -> None:
    """Which tokens and dimensions should a dictionary or a quantiser leave out? Measure what it changes."""
    if given.is_one_text or given.sequences == 1:
        raise InputError("it fits on one half of the texts and tests on the other; give two texts or more")
    with progress_bars() as progress:
        from ..applications import outliers
        from ..applications.dormant import dormant_heads

        subject, tokens = _read(model, given, loading, 64, 64)
        found = outliers.mask(subject, tokens, times=times)
        tested = subject, tokens[1::2], found, progress
        tables = [found.table(), outliers.activations_table(*tested), outliers.weights_table(*tested)]
        answer, more = found.answer(), {"mask": found.to_dict()}
        if heads:
            dormant = dormant_heads(subject, tokens, progress=progress("leaving out heads"))
            tables += [dormant.table(), dormant.cuts]
            answer, more = f"{answer} {dormant.answer()}", more | {"heads": dormant.to_dict()}
    title = f"{subject.name}: what should be left out?"
    shown = [*tables, answer] if files.full else brief(answer, outliers.longest_first(tables[0]), ELSEWHERE)
    _deliver(title, answer, tables, shown, files, more)


def _deliver(
    title: str,
    answer: str,
    tables: "list[Table]",
    shown: "Iterable[Table | RichText | str]",
    files: options.Tables,
    more: Mapping[str, Any] = {},
) -> None:
    from ..pages.page import Section, page

    sections = map(Section.of, tables)
    plain = {"answer": answer, "tables": [table.to_dict() for table in tables], **more}
    json_file, html_file = (files.json_out, lambda: plain), (files.html_out, lambda: page(title, answer, sections))
    deliver(shown, json_file, html_file, force=files.force)
