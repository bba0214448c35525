"""Subjects: one protocol over the libraries that run models."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
