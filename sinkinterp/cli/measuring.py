"""The commands that measure: a model, several of them, every backend, smaller caches, and what to leave out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ..checks import InputError, each_once, finite_number
from ..data.progress import progress_bars
from . import options
from .options import Loading, LoadingIn, ManyTexts, Outputs, TableOutputs, TextsOrPrompt, file, n, option
from .terminal import brief, deliver, overview, say

if TYPE_CHECKING:
    from ..backends.huggingface import HuggingFaceSubject
    from ..backends.subject import Subject
    from ..data.progress import Progress
    from ..data.tokens import Tokens, TokenSet
    from ..interventions import Edit
    from ..measurement.measure import Preset
    from ..report.readings import TokenText
    from ..report.report import Report
    from ..table import Table


Tables = StrEnum("Tables", "SINKS POSITIONS EPSILONS NORMS RESIDUALS WRITES ANGLES MASSIVE")


_BY_HEAD = (Tables.SINKS, Tables.WRITES, Tables.ANGLES)
HELD = {  # the tables whose rows each option chooses
    "--layer": (*_BY_HEAD, Tables.NORMS, Tables.RESIDUALS, Tables.MASSIVE),
    "--head": _BY_HEAD,
    "--position": (Tables.POSITIONS,),
    "--top": _BY_HEAD,
}


@dataclass(frozen=True)
class Settings:
    """With what settings a model is measured: published ones, or the default, with what the user gave."""

    epsilon: Annotated[float | None, option("A head has a sink above it; default: 0.3.", metavar="SHARE")] = None
    preset: Annotated[
        Literal["paper", "released-open-models", "released-own-models"] | None,
        option("What no option says as in: paper, released-open-models, released-own-models.", metavar="NAME"),
    ] = None
    first_only: Annotated[bool, option("Measure position 0 alone: for long sequences.", "--first-only")] = False

    def settings(self, given: TextsOrPrompt, loading: Loading) -> "Preset":
        """The settings."""
        from ..measurement.measure import PRESETS, Preset

        settings = Preset() if self.preset is None else PRESETS[self.preset]
        return given.over(settings, epsilon=self.epsilon, dtype=loading.dtype)


@dataclass(frozen=True)
class Rows:
    """Which table of a report is shown, and which of its rows."""

    table: Annotated[Tables | None, option(f"Print one table: {' '.join(Tables)}.", metavar="NAME")] = None
    layer: options.Layers = field(default_factory=list)
    head: options.Heads = field(default_factory=list)
    position: options.Positions = field(default_factory=list)
    top: Annotated[int | None, n("Print the N largest rows.", min=1)] = None

    def check(self, full: bool) -> None:
        """Raises InputError for rows without a table, and for one table beside all."""
        asked = {"--layer": self.layer, "--head": self.head, "--position": self.position, "--top": self.top}
        for name, value in asked.items():
            options.check_used(name, value or None, "--table", self.table)
            if value and self.table not in HELD[name]:
                raise InputError(f"{name} chooses rows of --table {', '.join(HELD[name])}; leave {name} out")
        if full and self.table is not None:
            raise InputError("--table prints one table, and --full prints all; leave one of them out")

    def of(self, report: "Report", epsilon: float, word: "TokenText") -> "Table | None":
        """These rows of a report; None where no table was named. Raises InputError where there are none."""
        from ..report.report import NAMED, chosen_rows

        if self.table is None:
            return None
        rows = NAMED[self.table].table(report, epsilon, word)
        return chosen_rows(rows, self.layer or None, self.head or None, self.position or None, self.top)


@dataclass(frozen=True)
class ReportOutputs(TableOutputs):
    """In which form a command writes a report, or a table chosen from it, and its figure."""

    save: Annotated[
        Path | None,
        file("Write every number, .safetensors, .json, .csv, or --table.", "--save", ".safetensors", *options.TABLES),
    ] = None

    def check_table(self, table: str | None) -> None:
        """Raises InputError for a format of tables without a table, and for one of reports beside a table."""
        suffix = options.suffix_of(self.save)
        if suffix in (".md", ".tex") and table is None:
            raise InputError(f"{suffix} holds one table; name it with --table, or save .safetensors, .json or .csv")
        if suffix == ".safetensors" and table is not None:
            raise InputError("a .safetensors file holds every number; leave --table out, or save .csv or .json")


def measure(
    model: options.Model,
    *,
    given: TextsOrPrompt,
    edit: options.Edits = [],
    how: Settings,
    loading: LoadingIn,
    rows: Rows,
    full: options.Full = False,
    outputs: ReportOutputs,
) -> None:
    """Measure the attention sinks of a model.

    Example: sinkinterp measure smollm2 --save sinks.csv
    """
    rows.check(full)
    outputs.check_table(rows.table)
    given.check()
    outputs.check(*given.files)
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..pages.report import measurement_page
        from ..report.report import overview_tables

        edits = options.edits_of(edit)
        given.check_files()
        settings = how.settings(given, loading)
        options.check_sizes(model, rows.head, given.length, loading.beyond_context, rows.layer)
        subject = loading.subject(model, settings.dtype)
        report = measured(subject, model, given, settings, edits, how, progress)
        of_report = report, settings.epsilon, subject.label
        chosen = rows.of(*of_report)
    shown = [chosen] if chosen is not None else (overview_tables if full else overview)(*of_report)
    files = outputs.table_files(chosen or report, partial(measurement_page, *of_report))
    skipped, length = report.protocol.texts_too_short, report.protocol.length
    remarks = [f"{skipped} texts shorter than {length} tokens were passed over."] if skipped else []
    deliver([*shown, *remarks], *files, form=outputs.format)


def measured(
    subject: "Subject",
    model: str,
    given: TextsOrPrompt,
    settings: "Preset",
    edits: "Sequence[Edit]",
    how: Settings,
    progress: "Progress",
) -> "Report":
    """The report on the input: on one whole text, on the given ones, or on docstrings until the interval is narrow."""
    from ..measurement.measure import measure as measure_sinks, measure_enough
    from ..metrics import instruments

    options.check_used("--bos", given.bos, "a model with a tokenizer", subject.tokenizer)
    inputs = given.inputs(settings, how.preset is None)
    asked: dict[str, Any] = {"convention": settings.convention, "edits": edits}
    asked |= {"positions": (0,)} if how.first_only else {"instruments": instruments.ALL}

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
    *,
    given: TextsOrPrompt,
    edit: options.Edits = [],
    how: Settings,
    loading: LoadingIn,
    outputs: TableOutputs,
) -> None:
    """Put the sinks of several models side by side, or of a model before and after edits.

    Example: sinkinterp compare smollm2 --edit "ZeroKeyBias()"
    """
    each_once(model, "MODEL")
    if len(model) == 1 and not edit:
        raise InputError("name two models, or edits of one, such as `sinkinterp compare MODEL --edit 'ZeroKeyBias()'`")
    given.check()
    outputs.check(*given.files)
    say(f"loading {', '.join(model)}")
    with progress_bars(in_lines=True) as progress:
        from ..backends.model_files import check_named
        from ..pages.page import Section, page
        from ..report.readings import short_name
        from ..report.report import Report
        from ..report.summary import compare as compare_two, sinks_by
        from ..table import MODEL

        edits = options.edits_of(edit)
        for name in model:
            check_named(name)
        given.check_files()
        runs: dict[str, tuple[str, Sequence[Edit]]] = {name: (name, edits) for name in model}
        if len(model) == 1:
            runs = {"before": (model[0], []), "after": (model[0], edits)}
        reports: dict[str, Report] = {}
        for run, (name, its_edits) in runs.items():
            settings = how.settings(given, loading)
            subject = loading.subject(name, settings.dtype)
            reports[run] = measured(subject, name, given, settings, its_edits, how, progress)
            if not any((given.text, given.prompt, given.tokens, given.drawn)):
                given = replace(given, sequences=reports[run].protocol.sequences)  # as many as the first needs
        if len(reports) == 2:
            before, after = reports.values()
            table = compare_two(before, after, settings.epsilon, [*reports])
        else:
            table = sinks_by(MODEL, reports, settings.epsilon)
    heading = f"{', '.join(map(short_name, model))}: attention sinks{' before and after edits' * (len(model) == 1)}"
    as_page = partial(page, heading, table.title, [Section("", table.note, tables=[table])])
    deliver([table], *outputs.table_files(table, as_page), form=outputs.format)


def check(model: options.Model, format: options.Format = None) -> None:
    """Compare every backend with dense attention and with each other on a model.

    Example: sinkinterp check sinkinterp/demo-softmax

    The exit code is 1 where they differ.
    """
    say(f"loading {model}, and running it in every backend")
    with progress_bars(in_lines=True) as progress:
        from ..backends.model_files import load_model
        from ..measurement.parity import agrees, parity

        table = parity(load_model(model), model, progress=progress)
    deliver([table, "all agree" if agrees(table) else "they differ"], form=format)
    if not agrees(table):
        raise typer.Exit(1)


Tolerance = Annotated[float, option("The change of a head's output that is tolerated.", metavar="SHARE")]


def cache(
    model: options.Model,
    *,
    given: TextsOrPrompt,
    loading: Loading,
    tolerance: Tolerance = 0.1,
    bits: Annotated[list[int], n("Bits of rounded keys and values; repeatable.", min=2, max=32)] = [8, 4, 2],
    full: options.Full = False,
    outputs: Outputs,
) -> None:
    """Say how many first tokens a rolling cache must keep, and what rounding it costs.

    Example: sinkinterp cache smollm2 --out cache.html
    """
    given.check()
    outputs.check(*given.files)
    finite_number(tolerance, "--tolerance", above=0, most=1)
    _check_cached(given.length)
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..applications import eviction, quantising
        from ..pages.page import Section, page

        subject, ids = _read(model, given, loading, 256, 32, progress)
        _check_cached(ids.shape[1])  # a text may be shorter than was asked for
        window = ids.shape[1] // 2
        losses = eviction.first_token_losses(subject, ids, (window // 2, window), progress=progress)
        heads = eviction.heads_table(subject, ids, window, tolerance)
        rounded = quantising.cache_table(subject, ids, bits, progress)
    answer = f"{losses.answer()} {quantising.cache_answer(rounded)}"
    tables = [losses.table(), heads, rounded]
    everything = [losses.table(), eviction.needs_table(heads), rounded]
    shown = brief(answer, tables[0].largest(eviction.WINDOW), full=everything if full or outputs.format else ())
    as_page = partial(page, f"{subject.name}: how many first tokens must stay?", answer, map(Section.of, tables))
    deliver(shown, *outputs.answer_files(answer, tables, as_page), form=outputs.format)


def _check_cached(length: int | None) -> None:
    if length is not None and length < 4:
        raise InputError("a cache of one token has no first token to keep; use --length 4, or more")


def _read(
    model: str, given: ManyTexts, loading: Loading, length: int, sequences: int, progress: "Progress"
) -> "tuple[HuggingFaceSubject, Tokens]":
    """The model and its input: by default so many texts of one length that fits its context."""
    given.check_files()
    subject = cast("HuggingFaceSubject", loading.subject(model))
    return subject, given.token_set(subject, model, length, sequences, progress("reading docstrings")).tokens


def mask(
    model: options.Model,
    *,
    given: ManyTexts,
    loading: Loading,
    times: Annotated[float, option("An outlier's norm is above X medians.", metavar="X")] = 10.0,
    heads: Annotated[bool, option("Also which heads can be zeroed together: hundreds of passes.", "--heads")] = False,
    full: options.Full = False,
    outputs: Outputs,
) -> None:
    """Say which tokens and dimensions quantisers and dictionaries should leave out.

    Example: sinkinterp mask smollm2 --save mask.json
    """
    given.check()
    outputs.check(*given.files)
    if given.sequences == 1:
        raise InputError("it fits on one half of the texts and tests on the other, so it takes two or more")
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..applications import outliers, quantising
        from ..applications.dormant import dormant_heads
        from ..pages.page import Section, page

        subject, ids = _read(model, given, loading, 64, 64, progress)
        found = outliers.mask(subject, ids, times=times)
        tested = subject, ids[1::2], found, progress
        tables = [found.table(), quantising.activations_table(*tested), quantising.weights_table(*tested)]
        answer, more = found.answer(), {"mask": found.to_dict()}
        if heads:
            dormant = dormant_heads(subject, ids, progress=progress("leaving out heads"))
            tables += [dormant.table(), dormant.cuts]
            answer, more = f"{answer} {dormant.answer()}", more | {"heads": dormant.to_dict()}
    shown = brief(answer, tables[0].largest(outliers.LONGEST), full=tables if full or outputs.format else ())
    as_page = partial(page, f"{subject.name}: what should be left out?", answer, map(Section.of, tables))
    deliver(shown, *outputs.answer_files(answer, tables, as_page, more), form=outputs.format)
