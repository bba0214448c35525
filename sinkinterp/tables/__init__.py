"""From reports to tables: every number with its interval, its null and its protocol."""

from .heads import geometry, heads, strongest, writes
from .json import plain
from .massive import Surface, entries, surface
from .norms import kinds, norms
from .note import note
from .overview import overview
from .positions import grid, losses, positions, secondary, tokens
from .qk import contrasts, distributions
from .residual import massive, residuals
from .series import history, lengths
from .summary import compare, domains, signature
from .verdict import protocol, strongest_head, verdict

__all__ = [
    "Surface", "compare", "contrasts", "distributions", "domains", "entries", "geometry",
    "grid", "heads", "history", "kinds", "lengths", "losses", "massive", "norms", "note", "overview", "plain",
    "positions", "protocol", "residuals", "secondary", "signature", "strongest", "strongest_head", "surface", "tokens",
    "verdict", "writes",
]  # fmt: skip
