"""The command that compares domains of text."""

from typing import Annotated

import typer

from ..data.bos import Bos
from ..files import write_json
from .options import BOS, EPSILON, Backend, Column, Json, Model
from .terminal import plain_errors, print_table, print_written, progress_bar, progress_bars, quiet_libraries

SOURCES = "Files, folders or datasets, or one file with a field that names the domain."


def domains(
    model: Model,
    sources: Annotated[list[str], typer.Argument(help=SOURCES)],
    field: Annotated[str, typer.Option(help="The field of a single file that names the domain.")] = "domain",
    column: Column = "text",
    length: Annotated[int, typer.Option(help="Tokens per sequence, T.")] = 64,
    sequences: Annotated[int, typer.Option(help="Number of sequences of each domain, n.")] = 100,
    bos: Annotated[Bos, typer.Option(help=BOS)] = Bos.TOKENIZER,
    epsilon: Annotated[float, typer.Option(help=EPSILON)] = 0.3,
    backend: Backend = "huggingface",
    json_out: Json = None,
) -> None:
    """Measure the first position's sink on text of several domains."""
    with plain_errors(), progress_bars() as progress:
        from .. import tables
        from ..backends.load import load
        from ..measurement.measure import measure as measure_sinks
        from ..measurement.presets import Preset
        from ..runs.inputs import Inputs

        settings = Preset(length, sequences, bos, epsilon)
        inputs = Inputs(settings.length, settings.sequences, settings.bos, column=column)
        quiet_libraries()
        subject = load(model, backend=backend)
        reports = {
            name: measure_sinks(
                subject, token_set, positions=(0,), progress=progress_bar(progress, f"measuring {name}")
            )
            for name, token_set in inputs.domain_token_sets(model, sources, field).items()
        }
        table = tables.sinks_by_domain(reports, settings.epsilon)
    print_table(table)
    if json_out is not None:
        write_json(json_out, table.to_dict(), indent=1)
        print_written(json_out)
