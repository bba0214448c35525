"""The command that serves a live page."""

import webbrowser
from contextlib import suppress
from enum import StrEnum
from typing import Annotated

import typer

from ..data.bos import Bos
from .hub import offline_if_unreachable
from .options import BOS, Backend, DeviceMap, Encoder, Model
from .terminal import console, quiet_libraries
from .values import whole


class Dtype(StrEnum):
    """The numbers that a model computes with."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def serve(
    model: Model,
    bos: Annotated[Bos, typer.Option(help=BOS)] = Bos.TOKENIZER,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.", parser=whole(0, 65535))] = 0,
    backend: Backend = "huggingface",
    encoder: Encoder = None,
    dtype: Annotated[Dtype, typer.Option(help="Numbers to compute with.")] = Dtype.FLOAT32,
    device_map: DeviceMap = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Serve a live page to this machine only: type a prompt, edit the model, see maps, sinks and next token change."""
    from ..backends.encoder_input import encoder_input
    from ..backends.load import load
    from ..backends.model_files import load_tokenizer, words_of
    from ..pages.live.page import ASK, live_page
    from ..pages.live.session import Session
    from ..pages.serve import serve as serve_page

    quiet_libraries()
    offline_if_unreachable(model)
    given = None if encoder is None else encoder_input(encoder)
    subject = load(model, backend=backend, dtype=dtype.value, device_map=device_map, encoder=given)
    session = Session(subject, load_tokenizer(model), words_of(model), bos)

    def on_ready(address: str) -> None:
        console.print(f"the live page is at {address} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        serve_page(live_page(session), on_ready, {ASK: session.answer}, port)
