"""Instruments: groups of metrics that a measurement adds to importance and norms.

A new metric of a family needs no line here: it joins METRICS in its family's file. Any tuple of metrics is an
instrument, as in `si.measure(subject, tokens, instruments=[(Metric("first", RESIDUAL, first),)])`.
"""

from collections.abc import Sequence
from typing import Any

from . import loss, qk, residuals, writes
from .importance import PATTERNS
from .metric import AnyMetric

Instrument = tuple[AnyMetric, ...]
Instruments = Instrument | Sequence[Any]  # one, or several in a list

GEOMETRY: Instrument = (*qk.METRICS, *writes.METRICS)
MASSIVE: Instrument = residuals.METRICS
DISTRIBUTIONS: Instrument = qk.DISTRIBUTIONS
"""How queries' angles with keys and their norm products are distributed: 160 numbers a head and sequence."""
RESIDUALS: Instrument = (residuals.ALL_ENTRIES,)
"""Every residual entry, `sequence block channel pos`: for a few short sequences."""
MAPS: Instrument = (PATTERNS, *qk.MAPS)
"""Every head's attention, scores, cosines and norm products, `sequence layer head query key`: for short sequences."""
LOSS: Instrument = loss.METRICS
ALL = (GEOMETRY, MASSIVE, LOSS)
INSTRUMENTS = {
    "GEOMETRY": GEOMETRY,
    "MASSIVE": MASSIVE,
    "DISTRIBUTIONS": DISTRIBUTIONS,
    "RESIDUALS": RESIDUALS,
    "MAPS": MAPS,
    "LOSS": LOSS,
}
