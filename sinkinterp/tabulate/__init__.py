"""From reports to tables: every number with its interval, its null and its protocol."""

from .blocks import massive, residuals
from .cells import BY_SEQUENCE, cells, note
from .entries import Surface, entries, surface
from .geometry import contrasts, distributions
from .heads import geometry, heads, strongest, writes
from .norms import kinds, norms
from .overview import overview
from .places import grid, losses, positions, secondary, tokens
from .plain import plain
from .series import history, lengths
from .signature import compare, domains, signature
from .verdict import protocol, strongest_head, verdict

__all__ = [
    "BY_SEQUENCE", "Surface", "cells", "compare", "contrasts", "distributions", "domains", "entries", "geometry",
    "grid", "heads", "history", "kinds", "lengths", "losses", "massive", "norms", "note", "overview", "plain",
    "positions", "protocol", "residuals", "secondary", "signature", "strongest", "strongest_head", "surface", "tokens",
    "verdict", "writes",
]  # fmt: skip
