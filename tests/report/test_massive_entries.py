"""Entries of the residual stream, pairs of queries and keys, worked by hand."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from report.test_tables import REPORT, N, T

from sinkinterp.metrics.qk import BINS, COSINES, NORMS
from sinkinterp.report.heads import qk_distributions, qk_means_by_head
from sinkinterp.report.norms import largest_entries

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
        lambda: qk_distributions(REPORT, 3, 0),
        *(lambda at=at: qk_distributions(PAIRED, *at) for at in ((1, 0), (3, 2), (3, -1))),
    ],
)  # fmt: skip
def test_unmeasured_metrics_and_missing_places_are_refused(table):
    refused(lambda: table())
