"""The story: what attention sinks are, one scroll with live figures, from the numbers of the book."""

from collections.abc import Sequence
from html import escape

from ..errors import InputError
from ..plots.theme import caption_of
from .chapters import Chapter
from .document import asset
from .page import drawn, shown_table, with_figures
from .passages import TOLD_BY, Passage, passages

TITLE = "Where attention goes when it has nowhere to go"
LEAD = (
    "Language models spend much of their attention on a token that tells them nothing: the first one. This page shows "
    "where that attention goes, what carries it, and which models do without. All numbers were measured with "
    "sinkinterp; each figure says how."
)
_SLIDER = (
    '<p class="slider"><label>Heads that give the first token more than <input type="range" id="epsilon" min="0" '
    'max="0.95" step="0.05" value="0"> <output id="count" for="epsilon"></output></label></p>'
)
_WITH_SLIDER = "sink"


def story_page(chapters: Sequence[Chapter], plotly: str | None = None, book: str | None = None) -> str:
    """The story as HTML text. Raises InputError where the chapters hold nothing of it.

    plotly: the path of a file with plotly.js; without it the page holds plotly.js itself. book: the path of the book's
    front page, beside which its chapters lie; without it there are no links.
    """
    told = passages(chapters)
    if not told:
        raise InputError(f"these numbers tell no story; it needs some of {', '.join(sorted(TOLD_BY.values()))}")
    content = "\n".join(_passage(passage, book) for passage in told)
    further = f'<a href="{escape(book)}">All claims of the paper, with our verdicts</a>. ' if book else ""
    body = (
        f'<header><h1>{TITLE}</h1><p class="lead">{LEAD}</p></header>\n<main>{content}</main>\n'
        f'<p class="further">{further}Try it on your own model: <code>sinkinterp serve MODEL</code> opens a page on '
        "which you type a text, change the model and see what happens.</p>"
    )
    return with_figures(TITLE, body, plotly, asset("story.css"), asset("story.js"))


def _passage(passage: Passage, book: str | None) -> str:
    """A heading, sentences, the figure, and the protocol one click away."""
    chapter, name = passage.chapter, escape(passage.name)
    made = f"Make these numbers again: {chapter.provenance.get('command', '')}"
    link = f' <a href="{escape(chapter.stem)}.html">All numbers of this experiment</a>.' if book else ""
    slider = _SLIDER if passage.name == _WITH_SLIDER else ""
    figure = drawn(passage.figure, f"figure-{name}").replace(f"<figcaption>{_caption(passage)}</figcaption>", "")
    return (
        f'<section id="{name}"><h2>{escape(passage.title)}</h2><p>{escape(passage.text)}</p>{slider}{figure}'
        f"<details><summary>How this was measured</summary><p>{_caption(passage)}</p><p>{escape(made)}.{link}</p>"
        f"{shown_table(chapter.table)}</details></section>"
    )


def _caption(passage: Passage) -> str:
    return escape(caption_of(passage.figure))
