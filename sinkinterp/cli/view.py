"""The command that draws attention maps: parses, calls, prints. No maths."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..data.bos import Bos
from ..errors import InputError
from .terminal import bar, console, plain_errors, progress_bars, quiet_libraries, write

if TYPE_CHECKING:
    from ..data.tokens import TokenSet

TEXT = "The text to show, or the path of a .txt file that holds it. Without it: what the model was trained on."
ONLY = "Keep the map of this head alone, as 3.7 for layer 3, head 7: in more detail; repeatable."
SWAP = "Exchange the position embeddings of two positions, and show maps before, after, and their difference."


def view(
    model: Annotated[str, typer.Argument(help="Hugging Face name, local model folder, or checkpoint of ours.")],
    text: Annotated[str | None, typer.Option(help=TEXT)] = None,
    length: Annotated[int | None, typer.Option(help="Tokens at most, T. [default: the text's; 64 without one]")] = None,
    bos: Annotated[Bos, typer.Option(help="Begin with BOS: as the tokenizer does, always, or never.")] = Bos.TOKENIZER,
    only: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD", help=ONLY)] = [],
    swap: Annotated[tuple[int, int] | None, typer.Option(help=SWAP)] = None,
    limit: Annotated[float, typer.Option(min=0.001, help="MB that all maps may take before compression.")] = 8.0,
    backend: Annotated[str, typer.Option(help="huggingface, nnsight or transformer_lens.")] = "huggingface",
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("figures/view.html"),
    serve: Annotated[bool, typer.Option("--serve", help="Open the page in the browser, from this machine.")] = False,
) -> None:
    """Draw the attention maps of every head on a text: one page to click through, that needs no network."""
    with plain_errors(), progress_bars() as progress:
        from ..backends.load import load, words_of
        from ..interventions.positions import SwapPositions
        from ..pages.atlas.build import view_page
        from ..runs.inputs import Inputs

        quiet_libraries()
        heads = [_head(words) for words in only] or None
        edits = [SwapPositions(*swap)] if swap is not None else []
        subject = load(model, backend=backend)
        if text is None:
            inputs = Inputs(length or min(64, subject.shape.n_ctx or 64), 1, bos)
            token_set = inputs.token_set(model, subject.shape.vocab, bar(progress, "reading docstrings"))
        else:
            token_set = _token_set(text, model, bos, length)
        html = view_page(subject, token_set, words_of(model), edits=edits, heads=heads, limit=int(limit * 1e6))
    write(out, html)
    if serve:
        from ..pages.serve import serve as served

        with suppress(KeyboardInterrupt):
            served(html, _opened)


def mount(app: typer.Typer) -> None:
    """Adds the command of this file to the command line."""
    app.command()(view)


def _opened(address: str) -> None:
    console.print(f"the page is at {address} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    webbrowser.open(address)


def _head(words: str) -> tuple[int, int]:
    parts = words.split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--head takes a layer and a head, such as 3.7; got {words!r}")
    return int(parts[0]), int(parts[1])


def _token_set(text: str, model: str, bos: Bos, length: int | None) -> "TokenSet":
    """The text's tokens, `length` of them at most."""
    from ..backends.load import load_tokenizer
    from ..pages.atlas.text import text_tokens

    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so it reads no text; leave --text out")
    file = Path(text) if text.endswith(".txt") else None
    if file is not None and not file.is_file():
        raise InputError(f"there is no file {file}; check the path, or give the text itself")
    words = text if file is None else file.read_text(encoding="utf-8")
    return text_tokens(words, tokenizer, bos, length, "text" if file is None else file.name)
