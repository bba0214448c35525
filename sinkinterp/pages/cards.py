"""A page of cards: small figures with a line each, in groups. A card opens in its place to the whole figure."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from .document import asset
from .page import Section, drawn, shown_table, thumbnail_of, with_figures

HEIGHT = 130  # pixels of a small figure


def cards_page(title: str, lead: str, sections: Iterable[Section]) -> str:
    """The page as HTML text. A section whose title is "group: line" is the card with this line in its group."""
    named = [(f"s{i}", section) for i, section in enumerate(sections)]
    groups = "\n".join(_group(group, list(cards)) for group, cards in groupby(named, lambda card: _parts(card[1])[0]))
    body = f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>\n<main>{groups}</main>'
    return with_figures(title, body, style=asset("cards.css"))


def _parts(section: Section) -> tuple[str, str]:
    """The group of a section, and its line in the group."""
    group, _, line = section.title.partition(": ")
    return group, line


def _group(title: str, cards: Sequence[tuple[str, Section]]) -> str:
    content = "".join(_card(name, section) for name, section in cards)
    return f'<section><h2>{escape(title)}</h2><div class="cards">{content}</div></section>'


def _card(name: str, section: Section) -> str:
    line = _parts(section)[1]
    line = escape(line[:1].upper() + line[1:])
    about = "" if section.figures else f"<small>{escape(section.caption.split(':')[0])}.</small>"
    small = "".join(thumbnail_of(figure, f"{name}small", HEIGHT) for figure in section.figures[:1])
    figures = "".join(drawn(figure, f"{name}f{i}") for i, figure in enumerate(section.figures))
    caption = f'<p class="caption">{escape(section.caption)}</p>'
    return (
        f'<details class="card" id="{name}"><summary>{small}{about}<span>{line}</span></summary>'
        f"{caption}{figures}{''.join(map(shown_table, section.tables))}</details>"
    )
