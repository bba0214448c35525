"""Tokens in, report out: measuring, its sweeps, patches and comparisons."""

from ..metrics import instruments as instruments
