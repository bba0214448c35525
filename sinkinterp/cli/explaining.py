"""The command that says why heads look at the first token."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.choices import Bos, Drawn, Dtype
from ..outputs import page_bytes
from .drawing import heads_named
from .loading import check_bos, load_subject
from .measuring import DRAWN
from .options import SEED, TOKENS, Column, Count, Encoder, Force, Full, Html, Model, Numbers, Start, Text
from .overview import brief
from .terminal import deliver, progress_bars

if TYPE_CHECKING:
    from ..report.explained import Explanation
    from ..table import Table

EXPLAINED = "A head to explain: 3.7 for layer 3, head 7; repeatable. [default: the three strongest sinks]"
ELSEWHERE = "All tables: --full. A page: --html FILE."
LENGTH = "Tokens per sequence, T. [default: 64, or what the task has]"


def explain(
    model: Model,
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD", help=EXPLAINED)] = [],
    text: Text = None,
    column: Column = "text",
    drawn: Annotated[Drawn | None, typer.Option(help=DRAWN)] = None,
    length: Annotated[int | None, typer.Option(help=LENGTH, parser=TOKENS)] = None,
    sequences: Count = None,
    bos: Start = Bos.TOKENIZER,
    encoder: Encoder = None,
    dtype: Numbers = Dtype.FLOAT32,
    seed: Annotated[int, typer.Option(help="Seed of random parts and tokens.", parser=SEED)] = 0,
    html_out: Html = None,
    full: Full = False,
    force: Force = False,
) -> None:
    """Say why heads look at the first token: which parts write what their keys hold, and what cutting them removes."""
    with progress_bars() as progress:
        from ..measurement.explain.cuts import cut_maps
        from ..measurement.explain.explaining import explain as explain_heads
        from ..pages.page import Section, page
        from ..report.protocol import short_name
        from ..runs.inputs import Inputs

        heads = heads_named(head)
        subject = load_subject(model, "huggingface", encoder, dtype)
        check_bos(subject, bos)
        most = length or min(64, subject.shape.n_ctx or 64)
        is_prompt = text is not None and not Path(text).exists()  # which may be shorter
        inputs = Inputs(
            most, sequences or 32, bos, text, column, drawn=drawn, seed=seed, may_be_fewer=sequences is None,
            may_be_shorter=is_prompt and length is None,
        )  # fmt: skip
        token_set = inputs.token_set(subject, model, progress("reading docstrings"))
        answer = explain_heads(subject, token_set, head=heads, seed=seed, progress=progress("explaining"))
    maps = {} if html_out is None else cut_maps(subject, token_set, answer)

    def as_page() -> bytes:
        sections = [Section(f"Head {layer}.{h}", "", [answer.plot((layer, h), maps[layer, h])]) for layer, h in maps]
        sections += [Section(table.title, table.note, [], [table]) for table in answer.tables()]
        return page_bytes(page(f"{short_name(subject.name)}: where the sink comes from", answer.sentence, sections))

    tables = [replace(table, note=table.note.removeprefix(answer.note).lstrip("; ")) for table in answer.tables()]
    everything = [answer.sentence, *tables, answer.note]
    shown = everything if full else brief(answer.sentence, _of_strongest(answer), ELSEWHERE, answer.note)
    deliver(shown, (html_out, as_page), force=force)


def _of_strongest(answer: "Explanation") -> "Table":
    """The parts of the head with the strongest sink."""
    from ..report.columns import HEAD, LAYER

    strongest = answer.strongest_first[0]
    parts = answer.parts().where(**{LAYER: strongest.layer, HEAD: strongest.head})
    return replace(parts, title=f"Which parts make head {strongest.name} look at {answer.target}?")
