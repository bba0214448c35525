"""The commands that measure: a model, several of them, every backend, smaller caches, and what to leave out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from ..checks import InputError, each_once
from ..data.choices import Bos, Drawn
from ..data.progress import OnProgress, no_progress, progress_bars
from . import options
from .edits import edits_of
from .options import Loading, check_outputs, check_used, file, heads_named, n, option, suffix_of
from .terminal import Wanted, brief, deliver, overview, say

if TYPE_CHECKING:
    from ..backends.huggingface import HuggingFaceSubject
    from ..backends.subject import Subject
    from ..data.progress import Progress
    from ..data.tokens import Tokens, TokenSet
    from ..interventions import Edit
    from ..measurement.measure import Preset
    from ..report.readings import TokenText
    from ..report.report import Report
    from ..runs.case import Inputs
    from ..table import Table


@dataclass(frozen=True)
class Given:
    """What a model reads, and how much of it; None where the user did not say it."""

    text: str | None = None
    prompt: str | None = None
    column: str | None = None
    tokens: str | None = None
    drawn: Drawn | None = None
    seed: int | None = None
    length: int | None = None
    sequences: int | None = None
    bos: Bos | None = None

    def check(self) -> None:
        """Raises InputError for an option that has no effect on this input, and for a file that cannot be read."""
        from ..runs.case import token_ids

        if self.tokens is not None:
            token_ids(Path(self.tokens))
        options.texts_named(self.text, self.column)
        check_used("--seed", self.seed, "--drawn", self.drawn)
        check_used("--bos", self.bos, "a text or drawn tokens", True if self.tokens is None else None)
        if self.prompt is not None and self.sequences not in (None, 1):
            raise InputError(f"one text is one sequence, not {self.sequences}; give a file of texts, --text FILE")

    def over(self, settings: "Preset", **others: Any) -> "Preset":
        """The settings, with those that the user gave in their place; `others` are of other options."""
        sequences = 1 if self.prompt is not None else self.sequences
        given = {"length": self.length, "sequences": sequences, "bos": self.bos, **others}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})

    def inputs(self, settings: "Preset", is_default: bool) -> "Inputs":
        """The inputs. Fewer and shorter ones will do where `is_default` and the user gives no size, or one text."""
        from ..data.texts import named_texts
        from ..runs.case import Inputs

        is_prompt = self.prompt is not None
        texts = None if self.text is None else named_texts(self.text, self.column or "text")
        given: dict[str, Any] = {"text": self.prompt if is_prompt else texts, "drawn": self.drawn, "seed": self.seed}
        given |= {} if self.tokens is None else {"tokens": Path(self.tokens)}
        return Inputs(
            settings.length,
            settings.sequences,
            settings.bos,
            **{name: value for name, value in given.items() if value is not None},
            may_be_shorter=self.length is None and (is_default or is_prompt),
            may_be_fewer=self.sequences is None and is_default and not is_prompt,
        )

    def token_set(
        self, subject: "Subject", model: str, length: int, sequences: int, on_file: OnProgress = no_progress
    ) -> "TokenSet":
        """The tokens of a command with these defaults: sequences of one length that fits the context, or fewer."""
        from ..measurement.measure import Preset

        check_used("--bos", self.bos, "a model with a tokenizer", subject.tokenizer)
        size = self.over(Preset(length=length, sequences=sequences))
        fitting = replace(size, length=min(size.length, subject.shape.n_ctx or size.length))
        inputs = replace(self.inputs(fitting, True), may_be_shorter=self.prompt is not None and self.length is None)
        return inputs.token_set(subject, model, on_file)


Tables = Literal[
    "sinks",
    "above",
    "layers",
    "positions",
    "epsilons",
    "norms",
    "keys",
    "values",
    "kv",
    "residuals",
    "angles",
    "massive",
    "entries",
]
TableName = Annotated[Tables | None, option(f"Print one table: {' '.join(get_args(Tables))}.", metavar="NAME")]
Epsilon = Annotated[float | None, option("A head has a sink above it; default: 0.3.", metavar="SHARE")]
PresetName = Annotated[
    Literal["paper", "released-open-models", "released-own-models"] | None,
    option("As published: paper, released-open-models or released-own-models.", metavar="NAME"),
]
FirstOnly = Annotated[bool, option("Measure position 0 alone: for long sequences.", "--first-only")]
Top = Annotated[int | None, n("Print the N largest rows.", min=1)]
SavedReport = Annotated[
    Path | None,
    file("Write every number, .safetensors, .json, .csv, or --table.", "--save", ".safetensors", *options.TABLES),
]


def measure(
    model: options.Model,
    text: options.Text = None,
    prompt: options.Prompt = None,
    column: options.Column = None,
    tokens: options.Tokens = None,
    drawn: options.Drawn = None,
    seed: options.DrawSeed = None,
    length: options.Length = None,
    sequences: options.Sequences = None,
    bos: options.Bos = None,
    edit: options.Edits = [],
    epsilon: Epsilon = None,
    preset: PresetName = None,
    first_only: FirstOnly = False,
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    backend: options.Backend = "huggingface",
    beyond_context: options.BeyondContext = False,
    table: TableName = None,
    layer: options.Layers = [],
    head: options.HeadNames = [],
    position: options.Positions = [],
    top: Top = None,
    full: options.Full = False,
    format: options.Format = None,
    save: SavedReport = None,
    out: options.Drawing = None,
    force: options.Force = False,
) -> None:
    """Measure the attention sinks of a model.

    Example: sinkinterp measure smollm2 --save sinks.csv
    """
    given = Given(text, prompt, column, tokens, drawn, seed, length, sequences, bos)
    loading = Loading(encoder, dtype, device_map, backend, beyond_context)
    rows = Rows(layer, heads_named(head), position, top)
    rows.check(table, full)
    _checksuffix_of(save, table)
    check_outputs(force, save, out, reads=(text, tokens))
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..report.report import overview_tables

        edits = edits_of(edit)
        given.check()
        settings = _settings(given, preset, epsilon, dtype)
        options.check_sizes(model, [], length, beyond_context)
        subject = loading.subject(model, settings.dtype)
        report = measured(subject, model, given, settings, edits, preset is None, first_only, progress)
        of_report = report, settings.epsilon, subject.label
        chosen = None if table is None else rows.of(table, *of_report)
    shown = [chosen] if chosen is not None else (overview_tables if full else overview)(*of_report)
    deliver([*shown, *_remarks(report)], *_numbers_and_page(save, out, chosen, *of_report), form=format)


def _numbers_and_page(
    save: Path | None, out: Path | None, chosen: "Table | None", report: "Report", epsilon: float, word: "TokenText"
) -> tuple[Wanted, Wanted]:
    """The files of a report, or of a table chosen from it; the page is that of the report."""
    from ..pages.report import PAGES, content, measurement_page

    suffix = suffix_of(out)
    drawn = (
        partial(measurement_page, report, epsilon, word)
        if suffix in PAGES
        else partial(content, chosen or report, suffix)
    )
    return (save, partial(content, chosen or report, suffix_of(save))), (out, drawn)


@dataclass(frozen=True)
class Rows:
    """Which rows of a table are shown."""

    layers: Sequence[int]
    heads: options.Heads
    positions: Sequence[int]
    top: int | None

    def check(self, table: str | None, full: bool) -> None:
        """Raises InputError for rows without a table, and for one table beside all."""
        asked = {"--layer": self.layers, "--head": self.heads, "--position": self.positions, "--top": self.top}
        for name, value in asked.items():
            check_used(name, value or None, "--table", table)
        if full and table is not None:
            raise InputError("--table prints one table, and --full prints all; leave one of them out")

    def of(self, name: str, report: "Report", epsilon: float, word: "TokenText") -> "Table":
        """The rows of that table of a report. Raises InputError where there are none."""
        from ..report.report import rows_named

        given = {"layers": self.layers, "heads": self.heads, "positions": self.positions, "top": self.top}
        return rows_named(name, report, epsilon, word, **{option: value or None for option, value in given.items()})


def _checksuffix_of(save: Path | None, table: str | None) -> None:
    """Raises InputError for a format of tables without a table, and for one of reports beside a table."""
    suffix = suffix_of(save)
    if suffix in (".md", ".tex") and table is None:
        raise InputError(f"{suffix} holds one table; name it with --table, or save .safetensors, .json or .csv")
    if suffix == ".safetensors" and table is not None:
        raise InputError("a .safetensors file holds every number; leave --table out, or save .csv or .json")


def _settings(given: Given, preset: str | None, epsilon: float | None, dtype: str | None) -> "Preset":
    """The preset, or the default settings, with what the user gave."""
    from ..measurement.measure import PRESETS, Preset

    return given.over(Preset() if preset is None else PRESETS[preset], epsilon=epsilon, dtype=dtype)


def _remarks(report: "Report") -> Iterator[str]:
    """Returns what the user may not expect of the texts that were read."""
    read = report.protocol
    if read.texts_too_short:
        yield f"{read.texts_too_short} texts shorter than {read.length} tokens were passed over."


def measured(
    subject: "Subject",
    model: str,
    given: Given,
    settings: "Preset",
    edits: "Sequence[Edit]",
    is_default: bool,
    first_only: bool,
    progress: "Progress",
) -> "Report":
    """The report on the input: on one whole text, on the given ones, or on docstrings until the interval is narrow."""
    from ..measurement.measure import measure as measure_sinks, measure_enough
    from ..metrics import instruments

    check_used("--bos", given.bos, "a model with a tokenizer", subject.tokenizer)
    inputs = given.inputs(settings, is_default)
    asked: dict[str, Any] = {"convention": settings.convention, "edits": edits}
    asked |= {"positions": (0,)} if first_only else {"instruments": instruments.ALL}

    def report_on(token_set: "TokenSet", why: str = "") -> "Report":
        n, longest = token_set.tokens.shape
        show = progress(f"measuring {n} {'more ' if why else ''}x {longest} tokens{why}")
        return measure_sinks(subject, token_set, **asked, progress=show)

    on_file = progress("reading docstrings")

    def first(n: int) -> "TokenSet":
        return replace(inputs, sequences=n).token_set(subject, model, on_file)

    if inputs.given or not inputs.may_be_fewer or subject.tokenizer is None:
        return report_on(inputs.token_set(subject, model))
    return measure_enough(first, report_on, settings.sequences, settings.epsilon)


def compare(
    model: Annotated[list[str], typer.Argument(help="Models, or one model with edits.", metavar="MODEL...")],
    text: options.Text = None,
    prompt: options.Prompt = None,
    column: options.Column = None,
    tokens: options.Tokens = None,
    drawn: options.Drawn = None,
    seed: options.DrawSeed = None,
    length: options.Length = None,
    sequences: options.Sequences = None,
    bos: options.Bos = None,
    edit: options.Edits = [],
    epsilon: Epsilon = None,
    preset: PresetName = None,
    first_only: FirstOnly = False,
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    backend: options.Backend = "huggingface",
    beyond_context: options.BeyondContext = False,
    format: options.Format = None,
    save: options.SavedTable = None,
    out: options.Drawing = None,
    force: options.Force = False,
) -> None:
    """Put the sinks of several models side by side, or of a model before and after edits.

    Example: sinkinterp compare smollm2 --edit "ZeroKeyBias()"
    """
    given = Given(text, prompt, column, tokens, drawn, seed, length, sequences, bos)
    loading = Loading(encoder, dtype, device_map, backend, beyond_context)
    each_once(model, "MODEL")
    if len(model) == 1 and not edit:
        raise InputError("name two models, or edits of one, such as `sinkinterp compare MODEL --edit 'ZeroKeyBias()'`")
    check_outputs(force, save, out, reads=(text, tokens))
    say(f"loading {', '.join(model)}")
    with progress_bars(in_lines=True) as progress:
        from ..backends.files.model_files import check_named
        from ..pages.page import Section, page
        from ..pages.report import PAGES, content
        from ..report.compare import compare as compare_two, sinks_by
        from ..report.report import Report
        from ..table import MODEL

        edits = edits_of(edit)
        for name in model:
            check_named(name)
        given.check()
        runs: dict[str, tuple[str, Sequence[Edit]]] = {name: (name, edits) for name in model}
        if len(model) == 1:
            runs = {"before": (model[0], []), "after": (model[0], edits)}
        reports: dict[str, Report] = {}
        for run, (name, its_edits) in runs.items():
            settings = _settings(given, preset, epsilon, dtype)
            subject = loading.subject(name, settings.dtype)
            reports[run] = measured(subject, name, given, settings, its_edits, preset is None, first_only, progress)
            if not any((text, prompt, tokens, drawn)):
                given = replace(given, sequences=reports[run].protocol.sequences)  # as many as the first needs
        if len(reports) == 2:
            before, after = reports.values()
            table = compare_two(before, after, settings.epsilon, [*reports])
        else:
            table = sinks_by(MODEL, reports, settings.epsilon)
    as_page = partial(page, table.title, table.note, [Section("", "", tables=[table])])
    drawn_as = as_page if suffix_of(out) in PAGES else partial(content, table, suffix_of(out))
    numbers = partial(content, table, suffix_of(save))
    deliver([table], (save, numbers), (out, drawn_as), form=format)


def check(model: options.Model, format: options.Format = None) -> None:
    """Compare every backend with dense attention and with each other on a model.

    Example: sinkinterp check sinkinterp/demo-softmax

    The exit code is 1 where they differ.
    """
    say(f"loading {model}, and running it in every backend")
    from ..backends.files.model_files import load_model
    from ..measurement.parity import agrees, parity

    table = parity(load_model(model), model)
    deliver([table, "all agree" if agrees(table) else "they differ"], form=format)
    if not agrees(table):
        raise typer.Exit(1)


Tolerance = Annotated[float, option("The change of a head's output that is tolerated.", max=1, metavar="SHARE")]
Bits = Annotated[list[int], n("Bits of rounded keys and values; repeatable.", min=2, max=32)]


def cache(
    model: options.Model,
    text: options.Text = None,
    prompt: options.Prompt = None,
    column: options.Column = None,
    tokens: options.Tokens = None,
    drawn: options.Drawn = None,
    seed: options.DrawSeed = None,
    length: options.Length = None,
    sequences: options.Sequences = None,
    bos: options.Bos = None,
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    tolerance: Tolerance = 0.1,
    bits: Bits = [8, 4, 2],
    full: options.Full = False,
    format: options.Format = None,
    save: options.Numbers = None,
    out: options.Page = None,
    force: options.Force = False,
) -> None:
    """Say how many first tokens a rolling cache must keep, and what rounding it costs.

    Example: sinkinterp cache smollm2 --out cache.html
    """
    given = Given(text, prompt, column, tokens, drawn, seed, length, sequences, bos)
    check_outputs(force, save, out, reads=(text, tokens))
    _check_cached(length)
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..applications import eviction

        subject, ids = _read(model, given, Loading(encoder, dtype, device_map), 256, 32, progress)
        _check_cached(ids.shape[1])  # a text may be shorter than was asked for
        window = ids.shape[1] // 2
        losses = eviction.first_token_losses(subject, ids, (window // 2, window), progress=progress)
        heads = eviction.heads_table(subject, ids, window, tolerance)
        rounded = eviction.quantised_table(subject, ids, bits, progress)
    answer = f"{losses.answer()} {eviction.quantised_answer(rounded)}"
    tables = [losses.table(), heads, rounded]
    everything = [losses.table(), eviction.needs_table(heads), rounded]
    shown = brief(answer, eviction.largest_window_first(tables[0]), full=everything if full or format else ())
    title = f"{subject.name}: how many first tokens must stay?"
    deliver(shown, *_files(title, answer, tables, save, out), form=format)


def _check_cached(length: int | None) -> None:
    if length is not None and length < 4:
        raise InputError("a cache of one token has no first token to keep; use --length 4, or more")


def _read(
    model: str, given: Given, loading: Loading, length: int, sequences: int, progress: "Progress"
) -> "tuple[HuggingFaceSubject, Tokens]":
    """The model and its input: by default so many texts of one length that fits its context."""
    given.check()
    subject = cast("HuggingFaceSubject", loading.subject(model))
    return subject, given.token_set(subject, model, length, sequences, progress("reading docstrings")).tokens


Times = Annotated[float, option("An outlier's norm is above X medians.", metavar="X")]
ZeroHeads = Annotated[bool, option("Also which heads can be zeroed together: hundreds of passes.", "--heads")]


def mask(
    model: options.Model,
    text: options.Text = None,
    column: options.Column = None,
    tokens: options.Tokens = None,
    drawn: options.Drawn = None,
    seed: options.DrawSeed = None,
    length: options.Length = None,
    sequences: options.Sequences = None,
    bos: options.Bos = None,
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    times: Times = 10.0,
    heads: ZeroHeads = False,
    full: options.Full = False,
    format: options.Format = None,
    save: options.Numbers = None,
    out: options.Page = None,
    force: options.Force = False,
) -> None:
    """Say which tokens and dimensions quantisers and dictionaries should leave out.

    Example: sinkinterp mask smollm2 --save mask.json
    """
    given = Given(text, None, column, tokens, drawn, seed, length, sequences, bos)
    check_outputs(force, save, out, reads=(text, tokens))
    if sequences == 1:
        raise InputError("it fits on one half of the texts and tests on the other; give two texts or more")
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..applications import outliers
        from ..applications.dormant import dormant_heads

        subject, ids = _read(model, given, Loading(encoder, dtype, device_map), 64, 64, progress)
        found = outliers.mask(subject, ids, times=times)
        tested = subject, ids[1::2], found, progress
        tables = [found.table(), outliers.activations_table(*tested), outliers.weights_table(*tested)]
        answer, more = found.answer(), {"mask": found.to_dict()}
        if heads:
            dormant = dormant_heads(subject, ids, progress=progress("leaving out heads"))
            tables += [dormant.table(), dormant.cuts]
            answer, more = f"{answer} {dormant.answer()}", more | {"heads": dormant.to_dict()}
    shown = brief(answer, outliers.longest_first(tables[0]), full=tables if full or format else ())
    title = f"{subject.name}: what should be left out?"
    deliver(shown, *_files(title, answer, tables, save, out, more), form=format)


def _files(
    title: str,
    answer: str,
    tables: "Sequence[Table]",
    save: Path | None,
    out: Path | None,
    more: Mapping[str, Any] = {},
) -> tuple[Any, Any]:
    """The numbers and the page of an answer with its tables."""
    from ..pages.page import Section, page

    plain = {"answer": answer, "tables": [table.to_dict() for table in tables], **more}
    return (save, lambda: plain), (out, lambda: page(title, answer, map(Section.of, tables)))
