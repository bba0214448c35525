"""Rounded keys and values are those of the model's own cache, and what only the first token loses is found there."""

from itertools import product

import pytest
import torch
from backends.zoo import subject_of, tokens_of
from transformers.cache_utils import DynamicCache, DynamicLayer

from sinkinterp.backends.load import load
from sinkinterp.errors import InputError
from sinkinterp.measurement.quantised_cache import GRAINS, RoundedCache, quantised_table
from sinkinterp.report.caches import quantised_answer
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import Table

HEAD, TOKEN, CHANNEL = (2, 3), (3,), (2,)
AXES = {"head": (HEAD, HEAD), "token": (TOKEN, TOKEN), "channel of keys, token of values": (CHANNEL, TOKEN)}


def rounded(x, axes, kept):
    """By hand, to 4 bits: numbers that share a scale have 7 steps to the largest of them, those of `kept` left out."""
    out, others = x.clone(), [i for i in range(x.shape[2]) if i != kept]
    step = x[:, :, others].abs().amax(axes, keepdim=True) / 7
    out[:, :, others] = (x[:, :, others] / step).round() * step
    return out


@pytest.mark.parametrize("kept", [0, 6, None])
@pytest.mark.parametrize("scales", GRAINS)
def test_the_edit_gives_the_logits_of_a_cache_that_returns_its_keys_and_values_rounded(scales, kept):
    class Layer(DynamicLayer):
        def update(self, *args, **kwargs):
            held = super().update(*args, **kwargs)
            return tuple(rounded(x, axes, kept) for x, axes in zip(held, AXES[scales], strict=True))

    subject, tokens = subject_of("llama with grouped queries"), tokens_of(11)
    cache = DynamicCache(config=subject.model.config)
    cache.layers = [Layer() for _ in cache.layers]
    with torch.no_grad():
        expected = subject.model(tokens, past_key_values=cache).logits
    edit = RoundedCache(4, *GRAINS[scales], () if kept is None else (kept,))
    torch.testing.assert_close(subject.run(tokens, edits=[edit]).logits, expected, atol=1e-5, rtol=1e-5)
    assert (expected - subject.run(tokens).logits).abs().max() > 1e-3


def test_where_one_scale_serves_a_head_only_the_twins_sink_loses_by_three_bits():
    subject = load("sinkinterp/demo-softmax")
    table = quantised_table(subject, Inputs(16, 256).token_set(subject, subject.name).tokens, bits=(3,))
    rows = {(row["one scale for each"], row["rounded tokens"]): row for row in table}
    assert rows["head", "all"]["added loss low"] > 0.03 > 0.01 > rows["head", "all but the first"]["added loss"]
    assert rows["head", "all but the first"]["above all rounded high"] < -0.03
    assert abs(rows["head", "all but the second"]["above all rounded"]) < 0.01
    assert rows["token", "all"]["added loss"] < 0.01
    cheapest = min(row["added loss"] for (_, tokens), row in rows.items() if tokens == "all")
    assert f"{cheapest:.2g}"[:4] in quantised_answer(table) and " at 3 bits." in quantised_answer(table)


def test_the_answer_tells_where_sparing_the_first_token_gains_and_where_that_is_not_seen():
    rows = []
    for bits, scales, tokens in product((8, 3), ("head", "token"), ("all", "all but the first")):
        cost = dict.fromkeys(("added loss", "added loss low", "added loss high"), 0.5 if scales == "head" else 0.25)
        change = {"above all rounded": -0.2, "above all rounded low": -0.3, "above all rounded high": 0.3 - 1.2 / bits}
        rows.append({"bits": bits, "one scale for each": scales, "rounded tokens": tokens, **cost, **change})
    said = quantised_answer(Table("", "", tuple(rows)))
    assert "0.250 [0.250, 0.250] at 8 bits and 0.250 [0.250, 0.250] at 3 bits." in said
    assert said.endswith("changes that by -0.200 [-0.300, -0.100] at 3 bits.")
    assert quantised_answer(Table("", "", tuple(rows[:4]))).endswith("nothing that these texts show.")


@pytest.mark.parametrize("bits", [(1,), (), (33,)])
def test_bits_that_no_integer_has_are_refused(bits):
    with pytest.raises(InputError, match="bits"):
        quantised_table(load("sinkinterp/demo-softmax"), tokens_of(5) % 16, bits)


def test_a_token_that_is_not_there_cannot_be_spared():
    subject = load("sinkinterp/demo-softmax")
    with pytest.raises(InputError, match="position"):
        subject.run(tokens_of(5) % 16, edits=[RoundedCache(4, *GRAINS["token"], (5,))])
