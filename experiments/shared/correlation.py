"""Correlates two quantities over trained models: Pearson's r, with Fisher's interval over methods."""

import math

import torch

from sinkinterp.metrics.estimates import Estimate
from sinkinterp.plots.theme import unique_values
from sinkinterp.table import MODEL, Table

NORMAL = 1.959964  # 97.5% of a standard normal distribution lie below it


def correlation(table: Table, x: str, y: str) -> Estimate:
    """Pearson's r of two columns over all trained models. Its 95% interval, by Fisher's z, counts methods.

    The seeds of a method are alike, so they do not narrow the interval. Three methods or fewer decide nothing.
    """
    methods = len(unique_values(table, MODEL))
    r = torch.corrcoef(torch.tensor([table.numbers(x), table.numbers(y)], dtype=torch.float64))[0, 1]
    spread = NORMAL / math.sqrt(methods - 3) if methods > 3 else math.inf
    return Estimate(r.item(), *((r.atanh() + side * spread).tanh().item() for side in (-1, 1)))
