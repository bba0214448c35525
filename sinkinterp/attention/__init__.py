"""One attention call: its scores, its pattern, and what can be known of the pattern without keeping it."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
