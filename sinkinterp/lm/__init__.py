"""The model family: a Hugging Face causal LM whose every part is a value."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
