"""The commands that draw pages: attention maps of a text, the live page, and the demo."""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..checks import InputError
from ..data.choices import Bos
from ..data.progress import OnProgress, progress_bars
from . import options
from .options import LoadingIn, OneText, check_outputs, check_used, edits_of, file, n, option
from .terminal import deliver, print_line, print_text, say

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..data.tokens import TokenSet
    from ..interventions import Edit

Drawing = Annotated[Path, file("Write the page, .html, or one map: .png, .pdf, .svg.", "--out", *options.DRAWN)]


@dataclass(frozen=True)
class OneTextOrPrompt(OneText):
    """The text that is shown."""

    prompt: options.Prompt = None

    def token_set(self, subject: "Subject", model: str, on_file: OnProgress) -> "TokenSet":
        """Its tokens; without a text, those that the model was trained on."""
        from ..backends.subject import text_to_tokens
        from ..runs.inputs import Inputs

        check_used("--bos", self.bos, "a model with a tokenizer", subject.tokenizer)
        rule, length = self.bos or Bos.TOKENIZER, self.length
        if self.prompt is not None:
            return text_to_tokens(subject, rule).one(self.prompt, length)
        if self.texts is not None:
            return text_to_tokens(subject, rule).first_in(self.texts, length)
        size = length or min(64, subject.shape.n_ctx or 64)
        inputs = Inputs(size, 1, rule, tokens=self.tokens, may_be_shorter=length is None)
        return inputs.token_set(subject, model, on_file)


def view(
    model: options.Model,
    *,
    given: OneTextOrPrompt,
    head: options.Heads = [],
    layer: Annotated[list[int], n("Show this layer only; repeatable.", min=0)] = [],
    edit: options.Edits = [],
    loading: LoadingIn,
    out: Drawing = Path("figures/view.html"),
    browser: options.Browser = False,
    force: options.Force = False,
) -> None:
    """Draw the attention maps of every head on a text, as a page that needs no network.

    Example: sinkinterp view smollm2 --prompt "The cat sat on the mat." --out cat.html

    Of a file the first text is shown; without a text, what the model was trained on.
    """
    if head and layer:
        raise InputError("--head names its layer; leave --layer out")
    given.check()
    check_outputs(force, out, reads=given.files)
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..measurement.maps import heads_of
        from ..pages.atlas import atlas
        from ..pages.atlas_page import atlas_page

        edits = edits_of(edit)
        given.check_files()
        options.check_sizes(model, head, given.length, loading.beyond_context)
        subject = loading.subject(model)
        token_set = given.token_set(subject, model, progress("reading docstrings"))
        heads = heads_of(subject, layer, None) if layer else head or None
        content: bytes | str
        if (suffix := out.suffix.lower()) in options.PICTURES:
            content = _map_picture(subject, token_set, heads, edits, suffix)
        else:
            content = atlas_page(atlas(subject, token_set, subject.label, edits=edits, heads=heads))
    deliver([], (out, lambda: content))
    if browser:
        webbrowser.open(out.resolve().as_uri())


def _map_picture(
    subject: "Subject", token_set: "TokenSet", heads: Sequence[tuple[int, int]] | None, edits: "list[Edit]", suffix: str
) -> bytes:
    """The picture of one head's map."""
    from ..measurement.maps import attention_map
    from ..pages.report import picture

    figure = attention_map(subject, token_set.tokens, heads=heads, edits=edits)
    for menu in figure.layout.updatemenus[:1] if len(heads or ()) != 1 else ():
        label = menu.buttons[menu.active].label
        print_line(f"a picture has one map: {label}; --head names another head")
        figure.update_xaxes(title_text=f"{figure.layout.xaxis.title.text or 'key'} ({label})")
    return picture(figure, suffix)


def serve(
    model: options.Model,
    *,
    bos: Annotated[Bos, option("BOS: tokenizer (as it decides), always or never.", metavar="RULE")] = Bos.TOKENIZER,
    port: Annotated[int, n("Port on this machine; 0: a free one.", min=0, max=65535)] = 0,
    loading: LoadingIn,
    browser: options.Browser = True,
) -> None:
    """Serve a live page to this machine: type a prompt, edit the model, see what changes.

    Example: sinkinterp serve smollm2
    """
    say(f"loading {model}")
    from ..pages.live import serve_live

    def on_ready(address: str) -> None:
        print_text(f"the live page is at {address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)

    serve_live(loading.subject(model), on_ready, bos=bos, port=port)


def demo(
    seed: Annotated[int, n("Seed of the trainings.", min=0, max=options.LARGEST)] = 0,
    format: options.Format = None,
    out: Annotated[Path, file("Write the page: .html.", "--out", *options.PAGES)] = Path("figures/demo.html"),
    force: options.Force = False,
) -> None:
    """Train a model with a sink and two without, measure them, and move the sink.

    Example: sinkinterp demo --out demo.html
    """
    check_outputs(force, out)
    say("training three models at once, a minute on two cores, unless they are in the cache")
    with progress_bars(in_lines=True) as progress:
        from ..pages.demo import demo as run_demo, demo_page

        result = run_demo(seed, on_training=progress("twins trained:"))
        html = demo_page(result)
    deliver((result.twins, result.residuals, result.swaps), (out, lambda: html), form=format)
