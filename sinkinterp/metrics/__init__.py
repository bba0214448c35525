"""Pure functions of attention calls, residuals and arrays. They know no model."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
