"""Pages from Python: of a report, and of every head on a text."""

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ..checks import InputError
from ..data.tokens import TokensLike
from ..files import path_of
from ..guesses import Answering, keywords
from ..interventions.edit import Edits, edits_of
from ..measurement.inputs import ModelLike, inputs_of
from ..measurement.maps import attention_map, heads_asked, weights_first
from ..outputs import page_bytes, write_output
from ..report.heads import sinks_by_head
from ..report.maps import Heads
from ..report.patterns import holds_attention, sinks
from ..report.readings import TokenText, short_name
from ..report.report import Report
from ..report.summary import protocol_table, sink_verdict, with_short_note
from ..report.views import overview_tables, views_of
from ..table import Table
from .atlas.build import atlas
from .atlas.encode import atlas_page
from .page import Section, page


@dataclass(frozen=True, repr=False)
class Page(Answering):
    """A self-contained page. A notebook shows it; `save` writes it."""

    kind = "page"
    html: str = field(repr=False)
    title: str
    data = property(lambda self: self.html)  # as a notebook's own HTML has it

    def __repr__(self) -> str:
        return f"<Page of {self.title}: {len(self.html) / 1e6:.1f} MB of HTML; .save(path) writes it>"

    def save(self, path: Path | str) -> Path:
        """Writes the page, whole or not at all, and returns where.

        Raises InputError for a suffix of another format, and for a file that sinkinterp did not write.
        """
        if path_of(path, "where a page is saved").suffix.lower() not in ("", ".html", ".htm"):
            raise InputError(f"a page is HTML; save it under a name that ends in .html, not in {Path(path).suffix}")
        write_output(Path(path), page_bytes(self.html))
        return Path(path)

    def _repr_html_(self) -> str:
        style = "width:100%;height:900px;border:0"
        return f'<iframe title="{escape(self.title)}" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


@keywords
def view(
    model: ModelLike,
    text: TokensLike | Any,
    edits: Edits = (),
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | Heads | None = None,
    path: Path | str | None = None,
    open_browser: bool = True,
) -> Page:
    """The page with the map of every head on a text, as `sinkinterp view` writes it; with `edits`, before and after.

    With `layers` or `heads`, as `attention_map` takes them, it shows these heads only, in more detail. It is saved at
    `path`, or shown: by a notebook, elsewhere by the browser, from a temporary file, unless `open_browser` is False. In
    place of a model, it takes the attention weights that `si.sinks` takes, with the tokens as texts or ids. Raises
    InputError as `measure` does, for unknown heads, and for several texts.
    """
    model, text = weights_first(model, text)
    draw = _held_page if holds_attention(model) else _atlas_page
    shown = draw(model, text, edits, layers, heads)
    if path is not None:
        shown.save(path)
    elif open_browser and not _in_notebook():
        webbrowser.open(shown.save(Path(mkdtemp(prefix="sinkinterp-")) / "view.html").as_uri())
    return shown


def _atlas_page(model: ModelLike, text: TokensLike | Any, edits: Edits, layers: Any, heads: Any) -> Page:
    subject, token_set = inputs_of(model, text)
    asked = heads_asked(subject.shape.attention_layers, subject.shape.n_heads, layers, heads)
    shown = atlas(subject, token_set, subject.label, edits=edits_of(edits), heads=asked)
    return Page(atlas_page(shown), subject.name)


def _held_page(patterns: Any, tokens: Any, edits: Edits, layers: Any, heads: Any) -> Page:
    """The page of the attention weights that someone holds."""
    figure = attention_map(patterns, tokens, layers, heads, edits)
    table = sinks(patterns)
    sections = [Section("Where heads look", "", [figure]), Section(table.title, table.note, tables=[table])]
    return Page(page("Attention weights", "Every query of a head over the keys that it sees.", sections), "attention")


def write(report: Report, path: Path | str, epsilon: float = 0.3, token_text: TokenText = str) -> Path:
    """Writes the page of a report, as `sinkinterp measure --html` does, and returns where."""
    return Page(measurement_page(report, epsilon, token_text), report.protocol.model).save(path)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def measurement_page(report: Report, epsilon: float, word: TokenText = str) -> str:
    """The page that `sinkinterp measure --html` writes: the verdict, the map of heads, the numbers, the protocol last.

    `word` gives token ids their text. Figures of what was not measured are left out.
    """
    summary, *others = (with_short_note(table, report, epsilon) for table in overview_tables(report, epsilon, word))
    protocol = protocol_table(report, epsilon)
    heads, *figures = (
        Section.of(with_short_note(view.table(report, epsilon, word), report, epsilon), view.heading)
        for view in views_of(report)
        if view.heading
    )
    sections = [
        heads,
        _in_numbers(summary),
        *figures,
        *map(_in_numbers, others),
        Section("Every head in numbers", tables=[sinks_by_head(report, epsilon)]),
        Section(
            protocol.title,
            "Positions count from 0; Sink_1 and alpha_1 are those of position 0, the first token.",
            tables=[protocol],
        ),
    ]
    return page(f"{short_name(report.protocol.model)}: attention sinks", sink_verdict(report, epsilon, word), sections)


def _in_numbers(table: Table) -> Section:
    return Section(table.title, table.note, tables=[table])
