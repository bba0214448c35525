"""The command that draws attention maps."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.bos import Bos
from ..errors import InputError
from ..files import write_text
from .hub import offline_if_unreachable
from .options import BOS, TOKENS, Backend, Encoder, Model
from .terminal import console, print_written, progress_bar, progress_bars, quiet_libraries
from .values import filled, number, output_file, whole

if TYPE_CHECKING:
    from ..data.tokens import TokenSet

TEXT = "The text to show, or the path of a .txt file that holds it. Without it: what the model was trained on."
LENGTH = "Tokens at most, T. [default: all of the text; 64 without a text]"
LIMIT = "MB that all maps may take before compression."
HEAD = "Show the map of this head only, in more detail: 3.7 for layer 3, head 7; repeatable."
SWAP = "Swap the position embeddings of two positions, and show maps before, after, and their difference."


def view(
    model: Model,
    text: Annotated[str | None, typer.Option(help=TEXT, parser=filled)] = None,
    length: Annotated[int | None, typer.Option(help=LENGTH, parser=TOKENS)] = None,
    bos: Annotated[Bos, typer.Option(help=BOS)] = Bos.TOKENIZER,
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD", help=HEAD)] = [],
    swap: Annotated[tuple[int, int] | None, typer.Option(help=SWAP, parser=whole(0))] = None,
    limit: Annotated[float, typer.Option(help=LIMIT, parser=number(0.0, 1e4))] = 8.0,
    backend: Backend = "huggingface",
    encoder: Encoder = None,
    out: Annotated[Path, typer.Option(help="The page to write.", parser=output_file)] = Path("figures/view.html"),
    serve: Annotated[bool, typer.Option("--serve", help="Open the page in the browser, from this machine.")] = False,
) -> None:
    """Draw the attention maps of every head on a text: one page to click through, that needs no network."""
    with progress_bars() as progress:
        from ..backends.encoder_input import encoder_input
        from ..backends.load import load
        from ..backends.model_files import words_of
        from ..interventions.positions import SwapPositions
        from ..pages.atlas.build import view_page
        from ..runs.inputs import Inputs

        quiet_libraries()
        offline_if_unreachable(model)
        heads = [_layer_and_head(name) for name in head] or None
        edits = [SwapPositions(*swap)] if swap is not None else []
        given = None if encoder is None else encoder_input(encoder)
        subject = load(model, backend=backend, encoder=given)
        if text is None:
            inputs = Inputs(length or min(64, subject.shape.n_ctx or 64), 1, bos)
            token_set = inputs.token_set(model, subject.shape.vocab, progress_bar(progress, "reading docstrings"))
        else:
            token_set = _token_set(text, model, bos, length)
        html = view_page(subject, token_set, words_of(model), edits=edits, heads=heads, limit=int(limit * 1e6))
    write_text(out, html)
    print_written(out)
    if serve:
        from ..pages.serve import serve as serve_page

        with suppress(KeyboardInterrupt):
            serve_page(html, _open)


def _open(address: str) -> None:
    console.print(f"the page is at {address} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    webbrowser.open(address)


def _layer_and_head(name: str) -> tuple[int, int]:
    parts = name.split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--head takes a layer and a head, such as 3.7; got {name!r}")
    return int(parts[0]), int(parts[1])


def _token_set(text: str, model: str, bos: Bos, length: int | None) -> "TokenSet":
    """The tokens of the text, or of the .txt file that it names; at most `length` of them."""
    from ..data.texts import text_of_file
    from ..runs.inputs import one_text

    if not text.endswith(".txt"):
        return one_text(text, model, bos, length)
    file = Path(text)
    if not file.is_file():
        raise InputError(f"there is no file {file}; check the path, or give the text itself")
    return one_text(text_of_file(file), model, bos, length, file.name)
