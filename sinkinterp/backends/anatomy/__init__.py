"""The parts of a model of transformers: its modules, its maps to queries, keys and values, its attention."""

from ...lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
