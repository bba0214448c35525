"""The commands for people who evict caches, train dictionaries or quantise: what to keep, and what to leave out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data.choices import Bos
from ..errors import InputError
from ..files import write_json, write_text
from .loading import load_subject
from .options import SEQUENCES, TOKENS, Json, Model, number, output_file, source, whole
from .places import Force
from .terminal import console, print_table, print_written, progress_bars

if TYPE_CHECKING:
    from ..backends.huggingface import HuggingFaceSubject
    from ..data.tokens import TokenSet
    from ..table import Table

TEXT = "A .txt, .jsonl, .json, .parquet or .csv file, or a folder of them. \\[default: docstrings, or the model's task]"
HTML = "Write a page of figures to this file."
Text = Annotated[str | None, typer.Option(help=TEXT, parser=source)]
Length = Annotated[int, typer.Option(help="Tokens of a text, or as many as the model knows.", parser=TOKENS)]
Count = Annotated[int, typer.Option(help="Number of texts.", parser=SEQUENCES)]
Html = Annotated[Path | None, typer.Option("--html", help=HTML, parser=output_file)]
TOLERANCE = "The change of a head's output that is tolerated, as a share of its length."
TIMES = "A norm is that of an outlier above this multiple of the median."
STEPS = "Steps of training of a dictionary."
GENERATED = "Tokens to generate after each prompt, or as many as the model knows; 0: none."


def cache(
    model: Model,
    text: Text = None,
    length: Length = 256,
    sequences: Count = 32,
    tolerance: Annotated[float, typer.Option(help=TOLERANCE, parser=number(0.0, 1.0))] = 0.1,
    generate: Annotated[int, typer.Option(help=GENERATED, parser=whole(0))] = 1000,
    json_out: Json = None,
    html_out: Html = None,
    force: Force = False,
) -> None:
    """How many first tokens must a rolling cache keep? Measure it, and recommend a number."""
    with progress_bars() as progress:
        from ..measurement import eviction
        from ..measurement.generation import generation_table

        subject, token_set = _inputs(model, text, length, sequences)
        tokens, size = token_set.tokens, token_set.tokens.shape[1]
        windows = (size // 4, size // 2)
        losses = eviction.first_token_losses(subject, tokens, windows, progress=progress)
        heads = eviction.heads_table(subject, tokens, windows[1], tolerance)
        tables = [eviction.losses_table(losses), heads, eviction.memory_table(subject, tokens, windows[1], progress)]
        if generate:
            tables.append(generation_table(subject, tokens[:, : min(32, size // 4)], generate))
        advice = eviction.recommendation(losses)
    for table in tables:
        print_table(eviction.needs_table(table) if table is heads else table)
    console.print(advice, highlight=False, markup=False)
    _write(f"{subject.name}: how many first tokens must stay?", advice, tables, json_out, html_out)


def mask(
    model: Model,
    text: Text = None,
    length: Length = 64,
    sequences: Annotated[int, typer.Option(help="Number of texts.", parser=whole(2))] = 64,
    times: Annotated[float, typer.Option(help=TIMES, parser=number(1.0, 1e6))] = 10.0,
    steps: Annotated[int, typer.Option(help=STEPS, parser=whole(1))] = 300,
    json_out: Json = None,
    html_out: Html = None,
    force: Force = False,
) -> None:
    """Which tokens and dimensions should a dictionary or a quantiser leave out? Measure what it changes."""
    with progress_bars() as progress:
        from ..interventions.changes import ChangeResidual
        from ..measurement import dictionaries, quantising
        from ..measurement.leaving_out import mask as mask_of
        from ..measurement.patching import activations

        subject, token_set = _inputs(model, text, length, sequences)
        tokens = token_set.tokens
        if len(tokens) < 2:
            raise InputError("it fits on one half of the texts and tests on the other; use --sequences 2, or more")
        found = mask_of(subject, tokens, times=times)
        at = ChangeResidual(layers=[found.tallest])
        x = activations(at, subject, tokens)[found.tallest].cpu().float()
        tables = [
            found.table(),
            dictionaries.pca_table(x, found),
            dictionaries.dictionary_table(subject, tokens, x, found, steps, progress),
            quantising.activations_table(subject, tokens[1::2], found, progress),
            quantising.weights_table(subject, tokens[1::2], found, progress),
        ]
    for table in tables:
        print_table(table)
    console.print(found.answer(), highlight=False, markup=False)
    _write(
        f"{subject.name}: what should be left out?",
        found.answer(),
        tables,
        json_out,
        html_out,
        {"mask": found.to_dict()},
    )


def _inputs(model: str, text: str | None, length: int, sequences: int) -> tuple["HuggingFaceSubject", "TokenSet"]:
    """The model, and what it reads: texts of one length that fits its context."""
    from ..backends.huggingface import HuggingFaceSubject
    from ..runs.inputs import Inputs

    subject = load_subject(model, "huggingface")
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"{subject.name} is not a model of transformers; give a name or a folder of one")
    length = min(length, subject.shape.n_ctx or length)
    return subject, Inputs(length, sequences, Bos.TOKENIZER, text).token_set(subject, model)


def _write(
    title: str, lead: str, tables: list["Table"], json_out: Path | None, html_out: Path | None, more: Any = None
) -> None:
    from ..pages.page import Section, page

    if json_out is not None:
        write_json(
            json_out, {"answer": lead, "tables": [table.to_dict() for table in tables], **(more or {})}, indent=1
        )
        print_written(json_out)
    if html_out is not None:
        sections = [Section(table.title, "", [table.plot()]) for table in tables]
        write_text(html_out, page(title, lead, sections))
        print_written(html_out)
