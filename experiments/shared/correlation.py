"""Correlates two quantities over trained models: Pearson's r, resampled by method, since its seeds are alike."""

import torch

from sinkinterp.metrics.bootstrap import Estimate
from sinkinterp.plots.series import unique_values
from sinkinterp.report.columns import MODEL
from sinkinterp.table import Table

RESAMPLES = 2000


def correlation(table: Table, x: str, y: str) -> Estimate:
    """Pearson's r of two columns over all trained models; its interval: over methods, 2,000 resamples."""
    runs = [table.where(**{MODEL: name}) for name in unique_values(table, MODEL)]
    pairs = torch.tensor([list(zip(run.numbers(x), run.numbers(y), strict=True)) for run in runs], dtype=torch.float64)
    drawn = torch.randint(len(pairs), (RESAMPLES, len(pairs)), generator=torch.Generator().manual_seed(0))
    samples = torch.cat((pairs[None], pairs[drawn])).flatten(1, 2)
    apart = samples - samples.mean(1, keepdim=True)
    r = apart.prod(2).sum(1) / apart.square().sum(1).prod(1).sqrt()
    return Estimate(r[0].item(), *r[1:].nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist())
