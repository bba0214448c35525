"""Instruments: groups of metrics that a measurement adds to importance and norms.

A new metric of a family needs no line here: it joins METRICS in its family's file. Any tuple of metrics is an
instrument, as in `si.measure(subject, tokens, instruments=[(ResidualMetric("first", first),)])`.
"""

from ..metrics import loss, maps, massive, qk, qk_pairs, secondary_sinks, writes
from ..metrics.metric import Metric

Instrument = tuple[Metric, ...]

GEOMETRY: Instrument = (*qk.METRICS, *writes.METRICS)
MASSIVE: Instrument = (*massive.METRICS, *secondary_sinks.METRICS)
DISTRIBUTIONS: Instrument = qk_pairs.METRICS
"""How queries' angles with keys and their norm products are distributed: 160 numbers a head and sequence."""
RESIDUALS: Instrument = (massive.ALL_ENTRIES,)
"""Every residual entry, `sequence block channel pos`: for a few short sequences."""
MAPS: Instrument = maps.METRICS
"""Every head's attention map, `sequence layer head query column`: for a few short sequences."""
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
