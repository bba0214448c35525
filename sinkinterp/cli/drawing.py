"""The commands that draw pages: attention maps of a text, a live page, the gallery and the demo."""

import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data.choices import Bos
from ..data.progress import progress_bars
from ..errors import InputError
from ..outputs import check_ours, page_bytes
from . import options
from .terminal import OR_FORCE, deliver, print_text, print_written, quiet_libraries

TEXT = "The text to show, or the path of a .txt file that holds it. Without it: what the model was trained on."
LENGTH = "Tokens at most, T. \\[default: all of the text; 64 without a text]"
LIMIT = "MB that all maps may take before compression."
HEAD = "Show the map of this head only, in more detail: 3.7 for layer 3, head 7; repeatable."
SWAP = "Swap the position embeddings of two positions, and show maps before, after, and their difference."


@dataclass(frozen=True)
class Opened:
    """Where `view` writes its page, and whether it opens it."""

    out: options.Out = Path("figures/view.html")
    serve: Annotated[bool, typer.Option("--serve", help="Open the page in the browser, from this machine.")] = False
    force: options.Force = False


def view(
    model: options.Model,
    text: Annotated[str | None, typer.Option(help=TEXT, parser=options.source)] = None,
    column: options.Column = "text",
    length: Annotated[int | None, typer.Option(help=LENGTH, parser=options.TOKENS)] = None,
    bos: options.Start = Bos.TOKENIZER,
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD", help=HEAD)] = [],
    swap: Annotated[
        tuple[int, int] | None, typer.Option(help=SWAP, metavar="FIRST SECOND", parser=options.whole(0))
    ] = None,
    limit: Annotated[float, typer.Option(help=LIMIT, parser=options.number(0.0, 1e4))] = 8.0,
    loading: options.Loading = options.Loading(),
    page: Opened = Opened(),
) -> None:
    """Draw the attention maps of every head on a text: one page to click through, that needs no network."""
    with progress_bars() as progress:
        from ..backends.subject import text_to_tokens
        from ..interventions.positions import SwapPositions
        from ..pages.atlas.build import atlas
        from ..pages.atlas.encode import atlas_page
        from ..runs.inputs import Inputs

        heads = heads_named(head)
        edits = [SwapPositions(*swap)] if swap is not None else []
        options.check_text(text, column)
        options.check_sizes(model, heads, length, loading.beyond_context)
        subject = loading.subject(model)
        if text is None:
            options.check_bos(subject, bos)
            inputs = Inputs(length or min(64, subject.shape.n_ctx or 64), 1, bos)
            token_set = inputs.token_set(subject, model, progress("reading docstrings"))
        else:
            token_set = text_to_tokens(subject, bos).one_in(text, column, length)
        shown = atlas(subject, token_set, subject.label, edits=edits, heads=heads, limit=int(limit * 1e6))
        html = atlas_page(shown)
    deliver([], (page.out, lambda: page_bytes(html)), force=page.force)
    if page.serve:
        from ..pages.serve import serve as serve_page

        with suppress(KeyboardInterrupt):
            serve_page(html, lambda address: _say(address, "the page"))


def _say(address: str, what: str, opens: bool = True) -> None:
    print_text(f"{what} is at {address} (Ctrl-C ends it)")
    if opens:
        webbrowser.open(address)


def heads_named(names: list[str]) -> list[tuple[int, int]] | None:
    """The heads of --head; None where none is named. Raises InputError for one that is named twice."""
    heads = [layer_and_head(name) for name in names]
    if len(set(heads)) < len(heads):
        raise InputError(f"a --head is given twice: {', '.join(names)}; give each once")
    return heads or None


def layer_and_head(name: str, option: str = "--head") -> tuple[int, int]:
    """The layer and the head of a name such as 3.7. Raises InputError, which names the option, for another."""
    parts = name.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError(f"{option} takes a layer and a head, such as 3.7; got {name!r}")
    return int(parts[0]), int(parts[1])


def serve(
    model: options.Model,
    bos: options.Start = Bos.TOKENIZER,
    port: Annotated[
        int, typer.Option(help="Port on this machine; 0 takes a free one.", parser=options.whole(0, 65535))
    ] = 0,
    loading: options.Loading = options.Loading(),
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Serve a live page to this machine only: type a prompt, edit the model, see maps, sinks and next token change."""
    from ..pages.live.page import serve_live

    subject = loading.subject(model)
    serve_live(subject, lambda address: _say(address, "the live page", browser), bos=bos, port=port)


OUT = "Folder of the page and its pictures."


def gallery(
    out: Annotated[Path, typer.Option(help=OUT, parser=options.output_folder)] = Path("figures"),
    pictures: Annotated[bool, typer.Option(help="Also write some of the figures as .png: needs kaleido.")] = True,
    force: options.Force = False,
) -> None:
    """Draw every view from the checkpoints that ship, and from the models of `make models` where they are here."""
    with progress_bars() as progress:
        from ..pages.export import save_pictures
        from ..pages.gallery import PREVIEWS
        from ..pages.gallery import gallery as draw_gallery

        page = out / "gallery.html"
        check_ours([page, *(out / f"{name}.png" for name in PREVIEWS if pictures)], OR_FORCE, force)
        quiet_libraries()

        def on_model(name: str) -> None:
            progress(f"measuring {name}")(1, 1)

        drawn = draw_gallery(on_model)
    deliver([], (page, lambda: page_bytes(drawn.html)), force=force)
    previews = {out / f"{name}.png": figure for name, figure in drawn.previews.items()}
    for written in save_pictures(previews, force=force) if pictures else ():
        print_written(written)


def demo(
    seed: Annotated[int, typer.Option(help="Seed of all three trainings.", parser=options.SEED)] = 0,
    out: options.Out = Path("figures/demo.html"),
    force: options.Force = False,
) -> None:
    """Train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""
    with progress_bars() as progress:
        from ..pages.demo import demo_page, run
        from ..train.recipes import DEMO_STEPS, DEMO_TWINS

        quiet_libraries()
        bars = {name: progress(f"training {name:8}") for name in DEMO_TWINS}

        def on_step(variant: str, step: int, metrics: dict[str, Any]) -> None:
            sinks = f"Sink_1 {metrics['sink_1']:.0%}  Sink_* {metrics['sink_slot']:.0%}"
            bars[variant](step, DEMO_STEPS, f"loss {metrics['valid_loss']:.3f}  {sinks}")

        result = run(seed, on_step=on_step)
        html = demo_page(result)
    tables = (result.twins, result.residuals, result.swaps)
    deliver(tables, (out, lambda: page_bytes(html)), force=force)
