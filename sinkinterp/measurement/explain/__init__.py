"""Why heads look at the first token: the parts of their scores, who writes what they read, and what cuts remove."""

from ...lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
