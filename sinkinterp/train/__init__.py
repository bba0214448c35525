"""A compact trainer whose runs are pure functions of their recipe."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
