"""Entries of the residual stream, pairs of queries and keys, worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from report.test_tables import REPORT, N, T

from sinkinterp.metrics.qk import BINS, COSINES, NORMS
from sinkinterp.report.massive import largest_entries, residual_surface
from sinkinterp.report.qk import qk_distributions, qk_means_by_head

D = 7
X = torch.arange(N * 4 * D * T).float().reshape(N, 4, D, T) % 13
X[1, 2, 5, 3] = -99.0
WITH = replace(REPORT, extras={**REPORT.extras, "residuals": X})
COUNTS = torch.zeros(N, 2, 2, 2, BINS)
COUNTS[:, 1, 0, 0, 3], COUNTS[:, 1, 0, 0, 4], COUNTS[:, 1, 0, 1, 39] = 1.0, 3.0, 5.0
PAIRED = replace(REPORT, extras={**REPORT.extras, "angle_counts": COUNTS, "norm_counts": COUNTS.flip(-1)})


def test_entries_are_told_by_place_most_frequent_first():
    top = torch.tensor([[-200.0, 0, 7], [3, 1, 2]]).repeat(N, 4, 1, 1)
    top[:, 2, 0, 0] = torch.tensor([-300.0, -100.0, -500.0])
    top[0, 2, 1] = torch.tensor([4.0, 0, 7])
    spiked = replace(REPORT, extras={**REPORT.extras, "top_entries": top})
    table = largest_entries(spiked, token_text=lambda token: f"<{token}>")
    assert table.title == "Largest residual entries of block 2"  # the tallest: 300 on average, others 200
    first, second = table.rows
    assert (first["position"], first["channel"], first["token"], first["in sequences"]) == (0, 7, "<99>", 4)
    assert (first["mean value"], first["largest |value|"]) == (-896 / 4, 500)
    assert (second["position"], second["in sequences"], second["token"]) == (1, 2, "2 different")


def test_the_surface_is_that_of_the_block_with_the_largest_entry():
    found = residual_surface(WITH, lambda token: f"<{token}>", sequence=1)
    assert (found.block, found.run, found.channels) == (2, 1, tuple(range(D)))
    np.testing.assert_array_equal(found.sizes, X[1, 2].abs().T)
    assert found.tokens[0] == "<99>" and len(found.tokens) == T


def test_many_channels_are_shown_in_runs_by_the_largest_of_each():
    found = residual_surface(WITH, block=2, sequence=1, most=3)
    assert (found.run, found.channels) == (3, (0, 3, 6))
    x = X[1, 2].abs().T.numpy()
    np.testing.assert_array_equal(found.sizes, np.stack((x[:, :3].max(1), x[:, 3:6].max(1), x[:, 6]), 1))


def test_the_surface_ends_with_its_sequence():
    tokens = REPORT.tokens.clone()
    tokens[1, 6:] = -1
    padded = X.clone()
    padded[1, :, :, 6:] = torch.nan
    found = residual_surface(replace(WITH, tokens=tokens, extras={"residuals": padded}), sequence=1)
    assert found.sizes.shape == (6, D) and np.isfinite(found.sizes).all() and found.block == 2


def test_contrasts_hold_the_first_key_and_the_others():
    row = qk_means_by_head(REPORT).rows[3]
    assert (row["layer"], row["head"]) == (3, 1)
    values = [row[f"{what}, {key}"] for what in ("cosine", "norm product") for key in ("first key", "others")]
    assert values == pytest.approx([0.8, 0.2, 10, 5])


def test_distributions_are_shares_of_the_pairs_by_bins():
    table = qk_distributions(PAIRED, 3, 0)
    cosine, product = (table.where(quantity=name) for name in ("cosine", "norm product"))
    assert (cosine.numbers("from"), cosine.numbers("to")) == (list(COSINES[:-1]), list(COSINES[1:]))
    assert product.numbers("to")[-1] == NORMS[-1]
    assert cosine.numbers("first key")[3:5] == [0.25, 0.75] and cosine.numbers("others")[39] == 1
    assert product.numbers("first key")[35:37] == [0.75, 0.25] and product.numbers("others")[0] == 1


@pytest.mark.parametrize(
    "table",
    [
        lambda: residual_surface(REPORT),
        lambda: qk_distributions(REPORT, 3, 0),
        *(lambda at=at: qk_distributions(PAIRED, *at) for at in ((1, 0), (3, 2), (3, -1))),
        *(lambda at=at: residual_surface(WITH, **at)
          for at in ({"block": 4}, {"block": -1}, {"sequence": N})),
    ],
)  # fmt: skip
def test_unmeasured_metrics_and_missing_places_are_refused(table):
    refused(lambda: table())
