"""The commands that draw pages: attention maps of a text, a live page, the gallery and the demo."""

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..checks import InputError, each_once
from ..data.choices import Bos
from ..data.progress import OnProgress, progress_bars
from ..seals import check_ours
from . import options
from .terminal import OR_FORCE, deliver, print_line, print_text, print_written

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..data.tokens import TokenSet


@dataclass(frozen=True)
class Prompt:
    """The text that `view` shows; without one, what the model was trained on."""

    text: Annotated[str | None, typer.Option(parser=options.source)] = None
    column: options.Column = "text"
    length: Annotated[int | None, typer.Option(parser=options.TOKENS)] = None
    bos: Bos = Bos.TOKENIZER

    def token_set(self, subject: "Subject", model: str, on_file: OnProgress) -> "TokenSet":
        """One sequence of tokens."""
        from ..backends.subject import text_to_tokens
        from ..runs.case import Inputs

        if self.text is not None:
            return text_to_tokens(subject, self.bos).one_in(self.text, self.column, self.length)
        options.check_bos(subject, self.bos)
        length = self.length or min(64, subject.shape.n_ctx or 64)
        return Inputs(length, 1, self.bos).token_set(subject, model, on_file)


def view(
    model: options.Model,
    prompt: Prompt,
    head: Annotated[list[str], typer.Option("--head", metavar="LAYER.HEAD")] = [],
    layer: Annotated[list[int], typer.Option(parser=options.whole(0))] = [],
    edit: options.Edits = [],
    loading: options.Loading = options.Loading(),
    out: options.DrawnOut = Path("figures/view.html"),
    browser: Annotated[bool, typer.Option("--open/--no-open")] = False,
    force: bool = False,
) -> None:
    """Draw the attention maps of every head on a text: one page to click through, that needs no network."""
    with progress_bars() as progress:
        from ..interventions.edit import edits_of
        from ..measurement.maps import attention_map, heads_asked
        from ..pages.atlas.build import atlas
        from ..pages.atlas.encode import atlas_page
        from ..pages.report import PICTURES, picture

        heads = heads_named(head)
        if heads and layer:
            raise InputError("--head names its layer; leave --layer out")
        options.check_text(prompt.text, prompt.column, "the first of which is shown")
        options.check_sizes(model, heads, prompt.length, loading.beyond_context)
        subject = loading.subject(model)
        token_set = prompt.token_set(subject, model, progress("reading docstrings"))
        shape, edits = subject.shape, edits_of(edit)
        shown = heads_asked(shape.attention_layers, shape.n_heads, layer, None) if layer else heads
        if (suffix := out.suffix.lower()) in PICTURES:
            figure = attention_map(subject, token_set.tokens, heads=shown, edits=edits)
            for menu in figure.layout.updatemenus[:1] if len(shown or ()) != 1 else ():
                label = menu.buttons[menu.active].label
                print_line(f"a picture has one map: {label}; --head names another head")
                figure.update_xaxes(title_text=f"{figure.layout.xaxis.title.text or 'key'} ({label})")
            content = picture(figure, suffix)
        else:
            content = atlas_page(atlas(subject, token_set, subject.label, edits=edits, heads=shown))
    deliver([], (out, lambda: content), force=force)
    if browser:
        webbrowser.open(out.resolve().as_uri())


def heads_named(names: list[str]) -> list[tuple[int, int]] | None:
    """The heads of --head; None where none is named. Raises InputError for one that is named twice."""
    heads = [layer_and_head(name) for name in names]
    each_once(heads, "--head")
    return heads or None


def layer_and_head(name: str, option: str = "--head") -> tuple[int, int]:
    """The layer and the head of a name such as 3.7. Raises InputError, which names the option, for another."""
    parts = name.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InputError(f"{option} takes a layer and a head, such as 3.7; got {name!r}")
    return int(parts[0]), int(parts[1])


def serve(
    model: options.Model,
    bos: Bos = Bos.TOKENIZER,
    port: Annotated[int, typer.Option(parser=options.whole(0, 65535))] = 0,
    loading: options.Loading = options.Loading(),
    browser: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Serve a live page to this machine only: type a prompt, edit the model, see maps, sinks and next token change."""
    from ..pages.live.page import serve_live

    def on_ready(address: str) -> None:
        print_text(f"the live page is at {address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)

    serve_live(loading.subject(model), on_ready, bos=bos, port=port)


def gallery(
    out: Annotated[Path, typer.Option(parser=options.output_folder)] = Path("figures"),
    pictures: bool = True,
    force: bool = False,
) -> None:
    """Draw every view from the checkpoints that ship, and from the models of `make models` where they are here."""
    with progress_bars() as progress:
        from ..pages.gallery import PREVIEWS, gallery as draw_gallery
        from ..pages.report import save_pictures

        page = out / "gallery.html"
        check_ours([page, *(out / f"{name}.png" for name in PREVIEWS if pictures)], OR_FORCE, force)

        def on_model(name: str) -> None:
            progress(f"measuring {name}")(1, 1)

        drawn = draw_gallery(on_model)
    deliver([], (page, lambda: drawn.html), force=force)
    previews = {out / f"{name}.png": figure for name, figure in drawn.previews.items()}
    for written in save_pictures(previews, force=force) if pictures else ():
        print_written(written)


def demo(
    seed: Annotated[int, typer.Option(parser=options.SEED)] = 0,
    out: options.Out = Path("figures/demo.html"),
    force: bool = False,
) -> None:
    """Train a sink model and its no-sink twins, measure them, and move the sink by swapping p1."""
    with progress_bars() as progress:
        from ..pages.gallery import demo as run_demo, demo_page
        from ..train.recipe import DEMO_STEPS, DEMO_TWINS

        bars = {name: progress(f"training {name:8}") for name in DEMO_TWINS}

        def on_step(variant: str, step: int, metrics: dict[str, Any]) -> None:
            sinks = f"Sink_1 {metrics['sink_1']:.0%}  Sink_* {metrics['sink_slot']:.0%}"
            bars[variant](step, DEMO_STEPS, f"loss {metrics['valid_loss']:.3f}  {sinks}")

        result = run_demo(seed, on_step=on_step)
        html = demo_page(result)
    tables = (result.twins, result.residuals, result.swaps)
    deliver(tables, (out, lambda: html), force=force)
