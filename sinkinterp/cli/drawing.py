"""The commands that draw pages: attention maps of a text, the live page, and the demo."""

import webbrowser
from pathlib import Path
from typing import Annotated, Any

from ..checks import InputError
from ..data.choices import Bos
from ..data.progress import progress_bars
from . import options
from .edits import edits_of
from .options import Loading, check_outputs, check_used, file, heads_named, n, option
from .terminal import deliver, print_line, print_text, say

Shown = Annotated[Path, file("Write the page, .html, or one map: .png, .pdf, .svg.", "--out", *options.DRAWN)]
ShownLayers = Annotated[list[int], n("Show this layer only; repeatable.", min=0)]


def view(
    model: options.Model,
    text: options.Text = None,
    prompt: options.Prompt = None,
    column: options.Column = None,
    tokens: options.Tokens = None,
    length: options.Length = None,
    bos: options.Bos = None,
    head: options.HeadNames = [],
    layer: ShownLayers = [],
    edit: options.Edits = [],
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    backend: options.Backend = "huggingface",
    beyond_context: options.BeyondContext = False,
    out: Shown = Path("figures/view.html"),
    browser: options.Browser = False,
    force: options.Force = False,
) -> None:
    """Draw the attention maps of every head on a text, as a page that needs no network.

    Example: sinkinterp view smollm2 --prompt "The cat sat on the mat." --out cat.html

    Of a file the first text is shown; without a text, what the model was trained on.
    """
    heads = heads_named(head)
    if heads and layer:
        raise InputError("--head names its layer; leave --layer out")
    if sum(given is not None for given in (text, prompt, tokens)) > 1:
        raise InputError("give one of --text, --prompt and --tokens")
    check_used("--bos", bos, "a text", True if tokens is None else None)
    check_outputs(force, out, reads=(text, tokens))
    say(f"loading {model}")
    with progress_bars(in_lines=True) as progress:
        from ..backends.subject import text_to_tokens
        from ..measurement.maps import attention_map, heads_asked
        from ..pages.atlas.build import atlas
        from ..pages.atlas.encode import atlas_page
        from ..pages.report import PICTURES, picture
        from ..runs.case import Inputs

        edits = edits_of(edit)
        texts = options.texts_named(text, column)
        options.check_sizes(model, heads, length, beyond_context)
        subject = Loading(encoder, dtype, device_map, backend, beyond_context).subject(model)
        check_used("--bos", bos, "a model with a tokenizer", subject.tokenizer)
        rule = bos or Bos.TOKENIZER
        if prompt is not None:
            token_set = text_to_tokens(subject, rule).one(prompt, length)
        elif texts is not None:
            token_set = text_to_tokens(subject, rule).first_in(texts, length)
        else:
            most = length or min(64, subject.shape.n_ctx or 64)
            inputs = Inputs(
                most, 1, rule, tokens=None if tokens is None else Path(tokens), may_be_shorter=length is None
            )
            token_set = inputs.token_set(subject, model, progress("reading docstrings"))
        shape = subject.shape
        shown = heads_asked(shape.attention_layers, shape.n_heads, layer, None) if layer else heads or None
        content: Any
        if (suffix := out.suffix.lower()) in PICTURES:
            figure = attention_map(subject, token_set.tokens, heads=shown, edits=edits)
            for menu in figure.layout.updatemenus[:1] if len(shown or ()) != 1 else ():
                label = menu.buttons[menu.active].label
                print_line(f"a picture has one map: {label}; --head names another head")
                figure.update_xaxes(title_text=f"{figure.layout.xaxis.title.text or 'key'} ({label})")
            content = picture(figure, suffix)
        else:
            content = atlas_page(atlas(subject, token_set, subject.label, edits=edits, heads=shown))
    deliver([], (out, lambda: content))
    if browser:
        webbrowser.open(out.resolve().as_uri())


def serve(
    model: options.Model,
    bos: Annotated[Bos, option("BOS: tokenizer (as it decides), always or never.", metavar="RULE")] = Bos.TOKENIZER,
    port: Annotated[int, n("Port on this machine; 0: a free one.", min=0, max=65535)] = 0,
    encoder: options.Encoder = None,
    dtype: options.Dtype = None,
    device_map: options.DeviceMap = None,
    backend: options.Backend = "huggingface",
    beyond_context: options.BeyondContext = False,
    browser: options.Browser = True,
) -> None:
    """Serve a live page to this machine: type a prompt, edit the model, see what changes.

    Example: sinkinterp serve smollm2
    """
    say(f"loading {model}")
    from ..pages.live.page import serve_live

    def on_ready(address: str) -> None:
        print_text(f"the live page is at {address} (Ctrl-C ends it)")
        if browser:
            webbrowser.open(address)

    subject = Loading(encoder, dtype, device_map, backend, beyond_context).subject(model)
    serve_live(subject, on_ready, bos=bos, port=port)


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
