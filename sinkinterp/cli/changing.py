"""The commands that show what a change does: models or edits side by side, and the text of an edited model."""

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from ..checks import InputError, each_once
from ..data.progress import progress_bars
from . import options
from .measuring import Input, Settings, measured
from .terminal import deliver


def compare(
    model: Annotated[list[str], typer.Argument(metavar="MODEL...", parser=options.source)],
    given: Input = Input(),
    how: Settings = Settings(),
    loading: options.Loading = options.Loading(),
    save: options.Save = None,
    force: bool = False,
) -> None:
    """Put the sinks of several models side by side, or those of a model before and after edits."""
    each_once(model, "MODEL")
    runs = {name: (name, how.edit) for name in model}
    if len(model) == 1:
        if not how.edit:
            raise InputError("name two models, or edits of one, such as `sinkinterp compare MODEL --edit ZeroKeyBias`")
        runs = {"before": (model[0], []), "after": (model[0], how.edit)}
    with progress_bars() as progress:
        from ..backends.files.model_files import check_named
        from ..pages.page import Section, page
        from ..pages.report import PAGES, content
        from ..report.compare import compare as compare_two, sinks_by
        from ..report.report import Report
        from ..table import MODEL

        for name in model:
            check_named(name)
        given.check()
        reports: dict[str, Report] = {}
        for column, (name, edit) in runs.items():
            settings = how.over_preset(given, loading.dtype)
            subject = loading.subject(name, settings.dtype)
            reports[column] = measured(subject, name, given, settings, replace(how, edit=edit), progress)
            if not any((given.text, given.chat, given.tokens, given.drawn)):
                given = replace(given, sequences=reports[column].protocol.sequences)  # as many as the first needs
        if len(reports) == 2:
            before, after = reports.values()
            table = compare_two(before, after, settings.epsilon, [*reports])
        else:
            table = sinks_by(MODEL, reports, settings.epsilon)
    suffix = "" if save is None else save.suffix.lower() or ".csv"
    as_page = partial(page, table.title, table.note, [Section("", "", tables=[table])])
    deliver([table], (save, as_page if suffix in PAGES else partial(content, table, suffix)), force=force)
