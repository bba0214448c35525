"""Runs: trained models, fine-tuned models, inputs and experiments."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
