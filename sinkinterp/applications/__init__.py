"""Uses of what measurement finds: caches and what they may forget, rounding, masks of outliers, swapped positions."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
