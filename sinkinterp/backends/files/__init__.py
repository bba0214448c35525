"""Models in files: those that have a name here, and how the weights of any are read."""

from ...lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
