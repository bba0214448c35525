"""The commands for people who evict caches, train dictionaries or quantise: what to keep, and what to leave out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.text import Text as RichText

from ..data.choices import Dtype
from ..data.progress import progress_bars
from ..errors import InputError
from ..outputs import json_bytes, page_bytes
from . import options
from .terminal import brief, deliver

if TYPE_CHECKING:
    from ..backends.huggingface import HuggingFaceSubject
    from ..data.tokens import Tokens
    from ..table import Table
ELSEWHERE = "All tables: --full. A page: --html FILE. Every number: --json FILE."
TOLERANCE = "The change of a head's output that is tolerated, as a share of its length."
HALVES = "Number of sequences, n. \\[default: 64]"
BITS = "Bits of rounded keys and values; give it again for more."
OF_HEADS = "Which heads can be zeroed together, too: some hundred passes."
TIMES = "A norm is that of an outlier above this multiple of the median."


@dataclass(frozen=True)
class Read:
    """The texts that the model reads, and the numbers and the devices that it computes with."""

    text: options.Text = None
    column: options.Column = "text"
    tokens: options.TokenFile = None
    dtype: options.Numbers = Dtype.FLOAT32
    device_map: options.DeviceMap = None

    def by(self, model: str, length: int, sequences: int | None, default: int) -> "tuple[HuggingFaceSubject, Tokens]":
        """The model and its input: texts, or lists of ids, of one length that fits its context."""
        from ..runs.inputs import Inputs

        options.check_text(self.text, self.column)
        subject = cast(Any, options.load_subject(model, "huggingface", None, self.dtype, self.device_map))
        size = (min(length, subject.shape.n_ctx or length), sequences or default)
        some = Inputs(*size, text=self.text, column=self.column, tokens=self.tokens, may_be_fewer=sequences is None)
        return subject, some.token_set(subject, model).tokens


def cache(
    model: options.Model,
    read: Read,
    length: options.Length = 256,
    sequences: options.Count = None,
    tolerance: Annotated[float, typer.Option(help=TOLERANCE, parser=options.number(0.0, 1.0))] = 0.1,
    generate: Annotated[
        int, typer.Option(help="Tokens to generate after a prompt; 0: none.", parser=options.whole(0))
    ] = 1000,
    bits: Annotated[list[int], typer.Option(help=BITS, parser=options.whole(2, 32))] = [8, 4, 2],
    files: options.Tables = options.Tables(),
) -> None:
    """How many first tokens must a rolling cache keep, and what does rounding it cost? Measure it, and answer."""
    with progress_bars() as progress:
        from ..applications import eviction
        from ..applications.eviction import largest_window_first, needs_table
        from ..applications.generation import generation_table
        from ..applications.quantised_cache import quantised_answer, quantised_table

        if length < 4:
            raise InputError("a cache of one token has no first token to keep; use --length 4, or more")
        subject, tokens = read.by(model, length, sequences, default=32)
        window = tokens.shape[1] // 2
        losses = eviction.first_token_losses(subject, tokens, (window // 2, window), progress=progress)
        heads = eviction.heads_table(subject, tokens, window, tolerance)
        rounded = quantised_table(subject, tokens, bits, progress)
        tables = [losses.table(), heads, eviction.memory_table(subject, tokens, window, progress), rounded]
        if generate:
            tables.append(generation_table(subject, tokens[:, : max(2, min(32, window // 2))], generate))
        answer = f"{losses.answer()} {quantised_answer(rounded)}"
    everything = [*(needs_table(table) if table is heads else table for table in tables), answer]
    _deliver(
        f"{subject.name}: how many first tokens must stay?",
        answer,
        tables,
        everything if files.full else brief(answer, largest_window_first(tables[0]), ELSEWHERE),
        files,
    )


def mask(
    model: options.Model,
    read: Read,
    length: options.Length = 64,
    sequences: Annotated[int | None, typer.Option(help=HALVES, parser=options.whole(2))] = None,
    times: Annotated[float, typer.Option(help=TIMES, parser=options.number(1.0, 1e6))] = 10.0,
    steps: Annotated[int, typer.Option(help="Steps of training of a dictionary.", parser=options.whole(1))] = 300,
    heads: Annotated[bool, typer.Option("--heads", help=OF_HEADS)] = False,
    files: options.Tables = options.Tables(),
) -> None:
    """Which tokens and dimensions should a dictionary or a quantiser leave out? Measure what it changes."""
    with progress_bars() as progress:
        from ..applications import outliers
        from ..applications import without_outliers as without
        from ..applications.dormant import dormant_heads
        from ..interventions.changes import ChangeResidual
        from ..measurement.patching import activations

        subject, tokens = read.by(model, length, sequences, default=64)
        if len(tokens) < 2:
            raise InputError("it fits on one half of the texts and tests on the other, and there is one; give more")
        found = outliers.mask(subject, tokens, times=times)
        x = activations(ChangeResidual(layers=[found.tallest]), subject, tokens)[found.tallest].cpu().float()
        tables = [
            found.table(),
            without.pca_table(x, found),
            without.dictionary_table(subject, tokens, x, found, steps, progress),
            without.activations_table(subject, tokens[1::2], found, progress),
            without.weights_table(subject, tokens[1::2], found, progress),
        ]
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

    def as_page() -> bytes:
        return page_bytes(page(title, answer, [Section(table.title, "", [table.plot()]) for table in tables]))

    plain = {"answer": answer, "tables": [table.to_dict() for table in tables], **more}
    json_file, html_file = (files.json_out, lambda: json_bytes(plain)), (files.html_out, as_page)
    deliver(shown, json_file, html_file, force=files.force)
