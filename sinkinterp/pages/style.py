"""The look that all pages share: the theme's colours as CSS variables, and the style of texts and tables."""

from ..plots.theme import DARK, LIGHT, Theme
from .assets import asset


def _variables(theme: Theme) -> str:
    return (
        f":root {{ --background: {theme.background}; --text: {theme.text}; "
        f"--quiet: {theme.quiet}; --faint: {theme.faint}; }}"
    )


_IN_DARK = f"@media screen and (prefers-color-scheme: dark) {{ {_variables(DARK)} }}"
STYLE = f"{_variables(LIGHT)}\n{_IN_DARK}\n{asset('style.css')}"
