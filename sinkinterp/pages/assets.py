"""Styles, scripts and templates that lie beside the code."""

from pathlib import Path


def asset(name: str) -> str:
    """The text of a file of this package, such as "page.css" or "atlas/head.js"."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
