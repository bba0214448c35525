"""From reports to tables: every number with its interval, its null and its protocol."""

from .blocks import massive, residuals
from .cells import BY_SEQUENCE, cells, note
from .heads import geometry, heads, strongest, writes
from .overview import overview
from .places import grid, losses, positions, secondary, tokens
from .plain import plain
from .signature import compare, domains, signature

__all__ = [
    "BY_SEQUENCE", "cells", "compare", "domains", "geometry", "grid", "heads", "losses", "massive", "note", "overview",
    "plain", "positions", "residuals", "secondary", "signature", "strongest", "tokens", "writes",
]  # fmt: skip
