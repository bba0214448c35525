"""The command that compares domains of text."""

from typing import Annotated

import typer

from ..data.bos import Bos
from ..files import write_json
from .hub import offline_if_unreachable
from .options import BOS, EPSILON, SEQUENCES, SHARE, TOKENS, Backend, Column, Json, Model
from .terminal import print_line, print_table, print_written, progress_bar, progress_bars, quiet_libraries
from .values import filled

FIELD = "The field of a single file that names the domain."
SOURCES = "Files, folders or datasets, or one file with a field that names the domain."


def domains(
    model: Model,
    sources: Annotated[list[str], typer.Argument(help=SOURCES, parser=filled)],
    field: Annotated[str, typer.Option(help=FIELD, parser=filled)] = "domain",
    column: Column = "text",
    length: Annotated[int, typer.Option(help="Tokens per sequence, T.", parser=TOKENS)] = 64,
    sequences: Annotated[int, typer.Option(help="Number of sequences of each domain, n.", parser=SEQUENCES)] = 100,
    bos: Annotated[Bos, typer.Option(help=BOS)] = Bos.TOKENIZER,
    epsilon: Annotated[float, typer.Option(help=EPSILON, parser=SHARE)] = 0.3,
    backend: Backend = "huggingface",
    json_out: Json = None,
) -> None:
    """Measure the first position's sink on text of several domains; exit code 1 where some had to be left out."""
    with progress_bars() as progress:
        from .. import tables
        from ..backends.load import load
        from ..measurement.measure import measure as measure_sinks
        from ..measurement.presets import Preset
        from ..runs.inputs import Inputs

        settings = Preset(length, sequences, bos, epsilon)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, column=column)
        quiet_libraries()
        offline_if_unreachable(model, *sources)
        subject = load(model, backend=backend)
        token_sets, errors = inputs.domain_token_sets(model, sources, field)
        reports = {}
        for name, token_set in token_sets.items():
            bar = progress_bar(progress, f"measuring {name}")
            reports[name] = measure_sinks(subject, token_set, positions=(0,), progress=bar)
        if not reports:
            raise next(iter(errors.values()))
        table = tables.sinks_by_domain(reports, settings.epsilon)
    print_table(table)
    if json_out is not None:
        write_json(json_out, table.to_dict(), indent=1)
        print_written(json_out)
    for name, error in errors.items():
        print_line(f"left out: {name}: {error}")
    if errors:
        raise typer.Exit(1)
