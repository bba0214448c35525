"""The live page as HTML text. It asks its own server, and nothing else. Its figures are those of `view`."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from plotly.offline import get_plotlyjs

from ...backends.load import subject_of
from ...checks import whole_number
from ...data.choices import Bos
from ..atlas.page import FIGURES, packed_plotly
from ..page import Scripts, asset, declared, document, rendered
from ..serve import serve
from .edits import KINDS, Kind
from .schema import AnswerData, KindData, NumberData, StartData
from .session import Session

ASK = "/ask"  # the path that questions are sent to
SCRIPTS = (*FIGURES, "live/form.js", "live/results.js", "live/live.js")
EXAMPLE = "The Eiffel Tower stands in Paris, the capital of France. The Colosseum stands in Rome, the capital of"
IDS = "3 17 5 9 11 5 8 2 40 3 17 6 12 9 21 5"


def serve_live(
    model: Any, on_ready: Callable[[str], object] = print, *, bos: Bos = Bos.TOKENIZER, port: int = 0
) -> None:
    """Serves the live page of a model, or of its subject, to this machine only, until Ctrl-C ends it.

    `model` is anything that `si.load` loads; `on_ready` receives the address of the page. `port` 0 takes a free one.
    Raises InputError where the model cannot be loaded or the port is taken.
    """
    port = whole_number(port, "port", 0, 65_535)
    subject = subject_of(model)
    session = Session(subject, bos)
    with suppress(KeyboardInterrupt):
        serve(live_page(session), on_ready, {ASK: session.answer}, port)


def live_page(session: Session) -> str:
    """The page of a session. Text of prompts and tokens is only ever set as text, never as markup."""
    body = rendered(
        "live/live.html",
        start=asdict(start_data(session)),
        schema={"start": declared(StartData), "answer": declared(AnswerData)},
        plotly=packed_plotly(),
    )
    scripts = Scripts(["".join(map(asset, SCRIPTS))], added=[get_plotlyjs()], ask_server=True)
    return document(f"{session.name}: live", body, ["atlas/atlas.css", "live/live.css"], scripts)


def start_data(session: Session) -> StartData:
    """What the page holds before it asks."""
    has_text, shape = session.subject.tokenizer is not None, session.subject.shape
    prompt = "Type a prompt" if has_text else "Type token ids (this model has no tokenizer)"
    return StartData(
        model=session.name,
        intro=f"{prompt}, change the model while it runs, and see where attention goes and what the model says next. "
        f"{len(shape.attention_layers)} layers that attend, with {shape.n_heads} heads each; at most "
        f"{session.most_tokens} tokens.",
        example=EXAMPLE if has_text else " ".join(str(int(token) % shape.vocab) for token in IDS.split()),
        ask=ASK,
        kinds={name: _kind_data(kind, session) for name, kind in KINDS.items()},
    )


def _kind_data(kind: Kind, session: Session) -> KindData:
    shape = session.subject.shape
    layers = shape.attention_layers
    start = {"position": 4, "layers": layers[0], "to": layers[-1], "layer": layers[0]}
    numbers = [NumberData(n.words, n.is_real, float(start.get(n.words, 0))) for n in kind.numbers]
    return KindData(kind.title, numbers)
