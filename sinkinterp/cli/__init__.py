"""The command line: one module per command. A command parses options, calls the package and prints."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
