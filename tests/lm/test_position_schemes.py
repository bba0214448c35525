import math

import pytest
import torch
from refusals import refused

from sinkinterp.lm.attention import BucketIndex, Sinusoidal, T5Relative, buckets, slopes
from sinkinterp.spec import Dims

DIMS = Dims(6, 3, 2, 19)
IDS = torch.arange(7)[None]


def test_sinusoidal_positions_are_equation_5():
    added = Sinusoidal().build(DIMS).embed(torch.zeros(1, 7, 6), IDS)[0]
    t = 5
    waves = [1.0, 10_000 ** (-2 / 6), 10_000 ** (-4 / 6)]
    want = [f(w * t) for w in waves for f in (math.sin, math.cos)]
    torch.testing.assert_close(added[t], torch.tensor(want))


def test_alibi_slopes_are_the_papers_and_interleave_for_other_head_counts():
    assert slopes(8) == [2.0**-h for h in range(1, 9)] and slopes(16) == [2 ** (-h / 2) for h in range(1, 17)]
    assert slopes(1) == [2.0**-8] and slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2] and len(set(slopes(12))) == 12


def test_t5_buckets_by_hand():
    gap = torch.tensor([[[-3, 0, 1, 15, 16, 18, 19, 32, 64, 127, 128, 9999]]])
    # beyond 16: 16 + floor(16 * log(gap / 16) / log 8)
    assert buckets(gap, 32, 128).flatten().tolist() == [0, 0, 1, 15, 16, 16, 17, 21, 26, 31, 31, 31]


def test_the_bucket_index_is_itself_the_bias_and_makes_a_sink_of_the_first_key():
    assert BucketIndex().build(DIMS).bias(IDS, IDS)[0, 0, 6].tolist() == [6, 5, 4, 3, 2, 1, 0]
    ids = torch.arange(64)[None]
    bias = BucketIndex().build(DIMS).bias(ids, ids)[0, 0]
    pattern = bias.masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf).softmax(-1)
    assert pattern[:, 0].mean().item() == pytest.approx(0.334, abs=1e-3)


@pytest.mark.parametrize("kind", [T5Relative, BucketIndex])
def test_buckets_that_do_not_fit_are_refused(kind):
    refused(lambda: kind(32, 16), "reach")
