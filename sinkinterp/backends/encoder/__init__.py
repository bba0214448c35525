"""Encoder-decoder models, and what their encoder is given."""

from ...lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
