"""Tokens in, report out: measuring, its sweeps, patches and comparisons."""

from ..lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__, {"instruments": "sinkinterp.metrics.instruments"})
