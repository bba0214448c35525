"""Sphinx's settings: `make docs` builds the site into build/docs."""

import re
from pathlib import Path
from typing import Any

from sinkinterp import __version__

project = "sinkinterp"
author = "The sinkinterp developers"
release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
html_theme = "furo"
html_static_path, html_css_files = ["_static"], ["code.css"]
# the book with the files that its pages read, and the numbers beside it
html_extra_path = ["../figures"]
html_title = f"sinkinterp {release}"
exclude_patterns = ["notes"]
# included pages begin at their own level; plotly's figures of notebooks have a picture too
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

nb_execution_mode = "off"  # the notebooks hold their output; the tests run them
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
autosummary_generate = True


LINKS_TO_FIGURES = re.compile(r"(?<!!)(\[[^]]*\]\()(?=figures/)")
LINKS_TO_NUMBERS = re.compile(
    r"(?<!!)\[([^]]*)\]\((?:\.\./)*figures/((?:book|measured)/\w+)\.(\w+)\)"
)
LINKS_TO_THE_ROOT = re.compile(r"(\]\((?:\.\./)*)\.\./(RESULTS|CONTRIBUTING)(?=\.md)")


def setup(app: Any) -> None:
    """Pages link to what a reader of the repository sees. Here these links are turned to pages of the site."""
    app.connect("source-read", _with_own_pages)
    app.connect("include-read", _from_the_root)


def _with_own_pages(app: Any, page: str, source: list[str]) -> None:
    source[0] = LINKS_TO_THE_ROOT.sub(lambda link: link[1] + link[2].lower(), source[0])
    _with_numbers_of_the_site(page, source)


def _from_the_root(app: Any, file: Path, page: str, source: list[str]) -> None:
    _with_numbers_of_the_site(page, source)
    source[0] = LINKS_TO_FIGURES.sub(r"\1../", source[0])


def _with_numbers_of_the_site(page: str, source: list[str]) -> None:
    """Turns links to chapters and numbers to the copies beside the pages; a chapter of the site is its page."""

    def linked(link: re.Match[str]) -> str:
        ending = "html" if link[2].startswith("book/") and link[3] == "md" else link[3]
        return f'<a href="{"../" * page.count("/")}{link[2]}.{ending}">{link[1]}</a>'

    source[0] = LINKS_TO_NUMBERS.sub(linked, source[0])
