"""Maps and distributions hold what they are given."""

from itertools import pairwise

import numpy as np
import pytest
from plots.test_figures import interval

from sinkinterp.report.massive import by_block
from sinkinterp.report.qk import by_layer, distributions
from sinkinterp.table import Table

CONTRASTS = Table(
    "contrasts", "n=7",
    tuple({"layer": layer, "head": head, "cosine, first key": layer / 10, "cosine, others": -head / 10,
           "norm product, first key": 2.0 + head, "norm product, others": 3.0 + layer}
          for layer in (1, 4) for head in range(3)),
)  # fmt: skip
PAIRS = Table(
    "pairs", "n=7",
    tuple({"quantity": quantity, "from": a, "to": b, "first key": x, "others": y}
          for quantity, edges in (("cosine", (-1, 0, 1)), ("norm product", (0.5, 1, 2, 4)))
          for (a, b), x, y in zip(pairwise(edges), (0.25, 0.75, 0.0), (0.5, 0.5, 0.0), strict=False)),
)  # fmt: skip
MASSIVE = Table(
    "massive", "n=7",
    tuple({"block": b, **interval("max |x|", 10.0**b, 0.5, 2000.0), **interval("max / median", 2.0, 1.0, 3.0),
           **interval("kurtosis", 3.0 + b, 3.0, 6.0), "usual entry": "position 0, <i>"} for b in range(3)),
)  # fmt: skip


def test_every_head_is_a_point_beside_its_key():
    first, products, others, _ = by_layer(CONTRASTS).data
    assert list(first.x) == [1, 1, 1, 4, 4, 4] and list(first.y) == [0.1] * 3 + [0.4] * 3
    assert list(products.y) == [2, 3, 4] * 2 and list(others.y) == pytest.approx([0, -0.1, -0.2] * 2)
    assert first.text[4] == "layer 4, head 1"


def test_distributions_are_steps_at_the_edges_of_their_bins():
    figure = distributions(PAIRS)
    cosine, others, product, _ = figure.data
    assert list(cosine.x) == [-1, 0, 1] and list(cosine.y) == [0.25, 0.75, 0.75] and cosine.line.shape == "hv"
    assert list(others.y) == [0.5, 0.5, 0.5]
    assert list(product.x) == [0.5, 1, 2, 4] and list(product.y) == [0.25, 0.75, 0, 0]
    assert figure.layout.xaxis2.range == pytest.approx((np.log10(0.5), np.log10(2)))  # empty bins are left out


def test_massive_activations_are_drawn_by_block_each_on_its_own_axis():
    figure = by_block(MASSIVE)
    peak, ratio, kurtosis = figure.data
    assert [list(trace.y) for trace in (peak, ratio, kurtosis)] == [[1, 10, 100], [2, 2, 2], [3, 4, 5]]
    assert (figure.layout.yaxis.type, figure.layout.yaxis2.type) == ("log", "linear")
    assert peak.text[0] == "position 0, &lt;i&gt;"
