"""Data: tokens to measure models on, texts to train them on, and a synthetic task."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
