"""A sequence that begins with BOS, on a tiny model."""

from dataclasses import replace

import pytest

import sinkinterp as si
from sinkinterp.data.backcopy import BigramBackcopy, BosFirst
from sinkinterp.runs.trained import held_out_tokens


@pytest.mark.timeout(600)
def test_softmax_makes_a_drained_sink_of_bos_and_none_of_the_token_behind_it(tmp_path):
    data = BigramBackcopy(vocab=65, length=32, first=BosFirst())
    model = replace(si.VARIANTS["softmax"], vocab=65, n_ctx=32)
    recipe = si.Recipe(model=model, data=data, steps=250, batch=32, lr=1e-2, weight_decay=0.1, watch_every=250)
    report = si.measure(si.trained(recipe, tmp_path).subject(), held_out_tokens(data, 64))
    assert report.sink_rate() > 0.9 and report.sink_rate(1) == 0
    assert report.alpha().mean() > 0.5 and report.value_ratio().mean() < 0.5
