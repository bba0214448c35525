"""Pages: HTML that shows results."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
