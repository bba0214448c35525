"""The page of a text whose tokens are shaded by numbers, such as attention to them or their log probabilities."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..checks import InputError
from ..guesses import keywords
from ..plots.theme import COLOURS
from .page import document, rendered
from .report import Page

MOST = 100  # rows of words on a page


@keywords
def colored_tokens(
    tokens: Any,
    values: Any,
    labels: Sequence[str] | None = None,
    min_value: float | None = None,
    max_value: float | None = None,
    negative_color: str = COLOURS[1],
    positive_color: str = COLOURS[0],
) -> Page:
    """The page of tokens, texts or ids, each shaded by its number: `token`, or `token *rows` for a line of words a row.

    `labels` name the rows. Negative numbers have a colour of their own; numbers beyond `min_value` and `max_value` (by
    default the largest size) have the full colour. Raises InputError unless there is a finite number for each token.
    """
    words = [str(token) for token in (tokens.tolist() if isinstance(tokens, Tensor | np.ndarray) else tokens)]
    given = np.asarray(values.detach().float().cpu() if isinstance(values, Tensor) else values)
    if given.dtype.kind not in "fiub" or given.shape[:1] != (len(words),) or not np.isfinite(given).all():
        raise InputError(f"values are finite numbers, one or a row for each of the {len(words)} tokens")
    names = [", ".join(map(str, i)) for i in np.ndindex(given.shape[1:])] if labels is None else labels
    rows = given.astype(float).reshape(len(words), -1).T
    if len(names) != len(rows) or not 0 < len(rows) <= MOST:
        raise InputError(f"rows of numbers are 1 to {MOST}, with a label each; got {len(rows)} and {len(names)} labels")
    size = float(np.abs(rows).max()) or 1.0
    ends = (-size if min_value is None else min_value) or -1.0, (size if max_value is None else max_value) or 1.0
    colours = negative_color, positive_color

    def cell(word: str, number: float) -> tuple[str, str, str, float]:
        side = int(number >= 0)
        return word, f"{number:.4g}", colours[side], round(100 * min(1.0, max(0.0, number / ends[side])))

    lines = [(name, list(map(cell, words, row.tolist()))) for name, row in zip(names, rows, strict=True)]
    row, column = np.unravel_index(np.abs(rows).argmax(), rows.shape)
    lead = f"The largest number is {rows[row, column]:.3g}, of {words[column]!r}. Point at a token for its number."
    title = f"{len(words)} tokens, shaded by {'a number' if len(rows) == 1 else f'{len(rows)} numbers'} each"
    scale = [(f"{end:.3g}", colour) for end, colour in zip(ends, colours, strict=True)]
    body = rendered("templates/coloured.html", title=title, lead=lead, lines=lines, ends=scale)
    return Page(document(title, body), title)
