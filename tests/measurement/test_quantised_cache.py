"""Rounded keys and values are those of the model's own cache, and what only the first token loses is found there."""

import pytest
import torch
from backends.zoo import subject_of, tokens_of

from sinkinterp.backends.load import load
from sinkinterp.errors import InputError
from sinkinterp.measurement.quantised_cache import GRAINS, RoundedCache, quantised_table
from sinkinterp.report.caches import quantised_answer
from sinkinterp.runs.inputs import Inputs

AXIS = {"head": (2, 3), "token": (3,), "channel": (2,)}


def rounded(x, axes, bits, kept):
    """By hand: each group of numbers that shares a scale has 2^(bits-1) - 1 steps to its largest, `kept` left out."""
    out, most = x.double().clone(), 2 ** (bits - 1) - 1
    others = [i for i in range(x.shape[2]) if i != kept]
    step = out[:, :, others].abs().amax(axes, keepdim=True) / most
    out[:, :, others] = (out[:, :, others] / step).round() * step
    return out.float()


@pytest.mark.parametrize("kept", [0, 6])
@pytest.mark.parametrize("keys, values", [("head", "head"), ("token", "token"), ("channel", "token")])
def test_keys_and_values_are_those_of_the_models_cache_rounded_by_hand(keys, values, kept):
    subject, tokens = subject_of("llama with grouped queries"), tokens_of(11)
    cache = subject.model(tokens, use_cache=True).past_key_values
    edit = RoundedCache(4, *GRAINS["channel of keys, token of values" if keys == "channel" else keys], (kept,))
    seen = subject.run(tokens, edits=[edit], calls={"k": lambda call: call.k, "v": lambda call: call.v}).calls
    first = cache.layers[0]  # later layers read what rounding changed
    torch.testing.assert_close(seen["k"][:, 0], rounded(first.keys, AXIS[keys], 4, kept), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen["v"][:, 0], rounded(first.values, AXIS[values], 4, kept), atol=1e-5, rtol=1e-5)


def test_where_one_scale_serves_a_head_only_the_twins_sink_loses_by_three_bits():
    subject = load("sinkinterp/demo-softmax")
    table = quantised_table(subject, Inputs(16, 256).token_set(subject, subject.name).tokens, bits=(3,))
    rows = {(row["one scale for each"], row["rounded tokens"]): row for row in table}
    assert rows["head", "all"]["added loss low"] > 0.03 > 0.01 > rows["head", "all but the first"]["added loss"]
    assert rows["head", "all but the first"]["above all rounded high"] < -0.03
    assert abs(rows["head", "all but the second"]["above all rounded"]) < 0.01
    assert rows["token", "all"]["added loss"] < 0.01
    assert quantised_answer(table).startswith("int3 keys and values, one scale for each token, add ")


@pytest.mark.parametrize("bits", [(1,), (), (33,)])
def test_bits_that_no_integer_has_are_refused(bits):
    with pytest.raises(InputError, match="bits"):
        quantised_table(load("sinkinterp/demo-softmax"), tokens_of(5) % 16, bits)
