"""Figures from tables and arrays. A figure computes nothing and saves nothing; it names the columns that it reads."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
