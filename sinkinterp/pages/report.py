"""Pages from Python (of a report, of every head on a text, of shaded tokens), and figures as pictures."""

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
import plotly.graph_objects as go
import plotly.io
from torch import Tensor

from ..checks import InputError, check_installed, instance_of, refusal
from ..data.tokens import TokensLike
from ..files import by_suffix, path_of, write_file
from ..interventions.changes import Edits, edits_of
from ..measurement.maps import attention_map, heads_of, sinks
from ..measurement.measure import ModelLike, check_text, inputs_of
from ..plots.paper import PER_INCH, check_size, for_paper
from ..plots.theme import COLOURS
from ..report.heads import sinks_by_head
from ..report.maps import Heads
from ..report.patterns import holds_attention
from ..report.readings import TokenText, short_name, writer_of
from ..report.report import Report, overview_tables, views_of
from ..report.summary import protocol_table, sink_verdict, with_short_note
from ..table import FORMATS, Table
from .atlas import atlas
from .atlas_page import atlas_page
from .page import Section, document, page, rendered


@dataclass(frozen=True, repr=False)
class Page:
    """A self-contained page. A notebook shows it; `save` writes it."""

    html: str = field(repr=False)
    title: str

    def __repr__(self) -> str:
        return f"<Page of {self.title}: {len(self.html) / 1e6:.1f} MB of HTML; .save(path) writes it>"

    def save(self, path: Path | str) -> Path:
        """Writes the page, whole or not at all, and returns where.

        A file of that name is replaced. Raises InputError for a suffix of another format.
        """
        suffix = path_of(path, "where a page is saved").suffix.lower()
        by_suffix(suffix, dict.fromkeys(("", *PAGES)), "a page, which is HTML,")
        write_file(Path(path), self.html)
        return Path(path)

    def show(self) -> None:
        """Opens the page in the browser, from a temporary file."""
        webbrowser.open(self.save(Path(mkdtemp(prefix="sinkinterp-")) / "view.html").as_uri())

    def _repr_html_(self) -> str:
        style = "width:100%;height:900px;border:0"
        return f'<iframe title="{escape(self.title)}" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def view(
    model: ModelLike,
    text: TokensLike | Any = None,
    edits: Edits = (),
    *,
    layers: int | Sequence[int] | None = None,
    heads: Heads | None = None,
    path: Path | str | None = None,
    open_browser: bool = True,
) -> Page:
    """The page with the map of every head on a text, as `sinkinterp view` writes it; with `edits`, before and after.

    With `layers` or `heads`, as `attention_map` takes them, it shows these heads only, in more detail. It is saved at
    `path`, or shown: by a notebook, elsewhere by the browser, from a temporary file, unless `open_browser` is False. In
    place of a model, it takes the attention weights that `si.sinks` takes, with or without the tokens. Raises
    InputError as `measure` does, for unknown heads, and for several texts.
    """
    is_held = holds_attention(model)
    if not is_held:
        check_text(text, "view")
    draw = _held_page if is_held else _atlas_page
    shown = draw(model, text, edits, layers, heads)
    if path is not None:
        shown.save(path)
    elif open_browser and not _in_notebook():
        shown.show()
    return shown


def _atlas_page(model: ModelLike, text: TokensLike | Any, edits: Edits, layers: Any, heads: Any) -> Page:
    subject, token_set = inputs_of(model, text)
    asked = heads_of(subject, layers, heads)
    shown = atlas(subject, token_set, subject.label, edits=edits_of(edits), heads=asked)
    return Page(atlas_page(shown), subject.name)


def _held_page(patterns: Any, tokens: Any, edits: Edits, layers: Any, heads: Any) -> Page:
    """The page of the attention weights that someone holds."""
    figure = attention_map(patterns, tokens, layers=layers, heads=heads, edits=edits)
    table = sinks(patterns, tokens)
    sections = [Section("Where heads look", "", [figure]), Section(table.title, table.note, tables=[table])]
    return Page(page("Attention weights", "Every query of a head over the keys that it sees.", sections), "attention")


def write(report: Report, path: Path | str, epsilon: float = 0.3, token_text: TokenText = str) -> Path:
    """Writes the page of a report, as `sinkinterp measure --out` does, and returns where."""
    return Page(measurement_page(report, epsilon, token_text), report.protocol.model).save(path)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def measurement_page(report: Report, epsilon: float, word: TokenText = str) -> str:
    """The page that `sinkinterp measure --out` writes: the verdict, the map of heads, the numbers, the protocol last.

    `word` gives token ids their text. Figures of what was not measured are left out.
    """
    summary, *others = (with_short_note(table, report, epsilon) for table in overview_tables(report, epsilon, word))
    protocol = protocol_table(report, epsilon)
    views = {view.heading: view.table(report, epsilon, word) for view in views_of(report) if view.heading}
    heads, *figures = (Section.of(with_short_note(table, report, epsilon), name) for name, table in views.items())
    in_numbers, *more = (Section(table.title, table.note, tables=[table]) for table in (summary, *others))
    every = Section("Every head in numbers", tables=[sinks_by_head(report, epsilon)])
    positions = "Positions count from 0; Sink_1 and alpha_1 are those of position 0, the first token."
    sections = [heads, in_numbers, *figures, *more, every, Section(protocol.title, positions, tables=[protocol])]
    return page(f"{short_name(report.protocol.model)}: attention sinks", sink_verdict(report, epsilon, word), sections)


def colored_tokens(tokens: Any, values: Any) -> Page:
    """The page of tokens, texts or ids, each shaded by its number.

    Negative numbers have a colour of their own; the number of the largest size has the full colour. Raises InputError
    unless there is a finite number for each token.
    """
    words = [str(token) for token in (tokens.tolist() if isinstance(tokens, Tensor | np.ndarray) else tokens)]
    given = np.asarray(values.detach().float().cpu() if isinstance(values, Tensor) else values)
    if given.dtype.kind not in "fiub" or given.shape != (len(words),) or not words or not np.isfinite(given).all():
        raise InputError(f"values are finite numbers, one for each of the {len(words)} tokens")
    numbers = given.astype(float)
    largest = int(np.abs(numbers).argmax())
    size, colours = abs(numbers[largest]) or 1.0, (COLOURS[1], COLOURS[0])
    cells = [
        (word, f"{number:.4g}", colours[number >= 0], round(100 * abs(number) / size))
        for word, number in zip(words, numbers.tolist(), strict=True)
    ]
    lead = f"The largest number is {numbers[largest]:.3g}, of {words[largest]!r}. Point at a token for its number."
    title = f"{len(words)} tokens, shaded by a number each"
    scale = [(f"{end:.3g}", colour) for end, colour in zip((-size, size), colours, strict=True)]
    body = rendered("coloured.html", title=title, lead=lead, words=cells, ends=scale)
    return Page(document(title, body), title)


_DRAWN = count()  # pictures of this session
DOTS = 300  # of an inch of a PNG for a paper
PAGES = (".html", ".htm")
PICTURES = (".pdf", ".svg", ".png")


def save(
    what: go.Figure | Table | Report | Page, path: Path | str, *, width: float = 5.5, height: float | None = None
) -> Path:
    """Writes a figure, a table, a report or a page over any file of that name, and returns the path::

        si.save(si.attention_map("smollm2", "A cat sat.", heads=[(5, 3)]), "head.pdf", width=3.25)
        si.save(report, "heads.csv")

    .pdf, .svg and .png are pictures without menus and title, with letters of 8 points. Tables and reports give their
    figure. A picture has `width` and `height` inches (default: about what it has on a screen). .html is a page that
    can be used without a network. .csv, .json, .md and .tex are tables. A report has .csv, .json and .safetensors.
    Raises InputError for another suffix, and where kaleido or a browser is missing.
    """
    path = path_of(path, "where it is saved")
    check_size(width, height)
    if isinstance(what, Page):
        return what.save(path)
    instance_of(what, go.Figure | Table | Report, "si.save takes figure, table, report; models: model.save_pretrained")
    write_file(path, content(what, path.suffix.lower(), width, height, path.stem))
    return path


def content(
    what: go.Figure | Table | Report, suffix: str, width: float = 5.5, height: float | None = None, title: str = ""
) -> Any:
    """The content of a file of this suffix, as `save` writes it. Raises InputError for another suffix."""
    drawn = what if isinstance(what, go.Figure) else None
    if suffix in PICTURES:
        return picture(drawn or what.plot(), suffix, width, height)
    if suffix in PAGES:
        drawn = drawn or what.plot()
        return page(drawn.layout.title.text or title, "", [Section("", "", [drawn])])
    if isinstance(what, Report):
        return writer_of(f"report{suffix}")(what)
    formats, name = (FORMATS, "a table") if drawn is None else ({}, "a figure")
    return by_suffix(suffix or (".json" if drawn is None else ""), formats, name, *PICTURES, *PAGES)(what)


def picture(figure: go.Figure, suffix: str, width: float = 5.5, height: float | None = None) -> Any:
    """The content of a picture file, as `save` writes it."""
    scale = DOTS / PER_INCH if suffix == ".png" else 1
    return _image(for_paper(figure, width, height), suffix[1:], scale)


def _image(figure: go.Figure, kind: str, scale: float) -> bytes:
    """The picture of a figure. Raises InputError where kaleido or a browser is missing."""
    check_installed("kaleido", "pip install kaleido")
    fix = "install Chrome or Chromium, or run plotly_get_chrome"
    with refusal("a picture is drawn by a browser, and none could be started", fix, RuntimeError), catch_warnings():
        filterwarnings("ignore", "The kopts argument is ignored")  # they are given to the server
        image = bytes(figure.to_image(kind, width=figure.layout.width, scale=scale))
    if next(_DRAWN) == 1:  # who draws a second picture may draw more: one browser draws the rest of the session
        import kaleido

        kaleido.start_sync_server(plotlyjs=plotly.io.defaults.plotlyjs, silence_warnings=True)
    return image
