"""Rounded keys and values are those of the model's own cache, and what only the first token loses is found there."""

from itertools import product

import pytest
import torch
from backends.zoo import subject_of, tokens_of
from refusals import refused
from transformers import AutoModelForCausalLM, DeepseekV3Config
from transformers.cache_utils import DynamicCache, DynamicLayer

from sinkinterp.applications.quantising import CACHE_GRAINS, RoundedCache, Scales, cache_answer, cache_table
from sinkinterp.backends.load import load
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import Table

AXES = {"head": ((2, 3), (2, 3)), "token": ((3,), (3,)), "channel of keys, token of values": ((2,), (3,))}
GROUP = (Scales((-2,), 4, offset=True), Scales((-1,), 3, offset=True))  # of 11 tokens, and of 16 dimensions


def rounded(x, axes, kept):
    """By hand, to 4 bits: numbers that share a scale have 7 steps to the largest of them, those of `kept` left out."""
    out, others = x.clone(), [i for i in range(x.shape[2]) if i != kept]
    step = x[:, :, others].abs().amax(axes, keepdim=True) / 7
    out[:, :, others] = (x[:, :, others] / step).round() * step
    return out


def rounded_in_groups(x, axis, group, kept):
    """By hand, to 4 bits: 15 steps from the smallest to the largest of so many in a row, those of `kept` left out."""
    out = x.clone()
    for text, head in product(*map(range, x.shape[:2])):
        plane = out[text, head] if axis == 3 else out[text, head].T
        for line, column in enumerate(plane):
            for start in range(0, len(column), group):
                of = [i for i in range(start, min(start + group, len(column))) if (line if axis == 3 else i) != kept]
                if of:
                    low, step = column[of].min(), (column[of].max() - column[of].min()) / 15
                    plane[line, of] = low + step * ((column[of] - low) / step).round() if step > 0 else column[of]
    return out


@pytest.mark.parametrize("kept", [0, 6, None])
@pytest.mark.parametrize("scales", [*AXES, "group"])
def test_the_edit_gives_the_logits_of_a_cache_that_returns_its_keys_and_values_rounded(scales, kept):
    class Layer(DynamicLayer):
        def update(self, *args, **kwargs):
            held = super().update(*args, **kwargs)
            if scales == "group":
                return rounded_in_groups(held[0], 2, 4, kept), rounded_in_groups(held[1], 3, 3, kept)
            return tuple(rounded(x, axes, kept) for x, axes in zip(held, AXES[scales], strict=True))

    subject, tokens = subject_of("llama with grouped queries"), tokens_of(11)
    cache = DynamicCache(config=subject.model.config)
    cache.layers = [Layer() for _ in cache.layers]
    with torch.no_grad():
        expected = subject.model(tokens, past_key_values=cache).logits
    edit = RoundedCache(4, *(GROUP if scales == "group" else CACHE_GRAINS[scales]), None if kept is None else (kept,))
    torch.testing.assert_close(subject.run(tokens, edits=[edit]).logits, expected, atol=1e-5, rtol=1e-5)
    assert (expected - subject.run(tokens).logits).abs().max() > 1e-3


def test_where_one_scale_serves_a_head_only_the_twins_sink_loses_by_three_bits():
    subject = load("sinkinterp/demo-softmax")
    table = cache_table(subject, Inputs(16, 256).token_set(subject, subject.name).tokens, bits=(3,))
    rows = {(row["one scale for each"], row["rounded tokens"]): row for row in table.records()}
    assert rows["head", "all"]["added loss low"] > 0.03 > 0.01 > rows["head", "all but the first"]["added loss"]
    assert rows["head", "all but the first"]["above all rounded high"] < -0.03
    assert abs(rows["head", "all but the second"]["above all rounded"]) < 0.01
    assert rows["token", "all"]["added loss"] < 0.01
    best = min((row["added loss"], scales) for (scales, spared), row in rows.items() if "second" not in spared)[1]
    (cost,) = table.where(**{"one scale for each": best, "rounded tokens": "all"}).texts()
    assert f"{cost['added loss']} at 3 bits (one scale for each {best}" in cache_answer(table)


def test_the_answer_names_the_best_scales_and_what_sparing_the_first_token_changes_where_that_is_seen():
    rows = []
    for bits, scales, tokens in product((8, 3), ("head", "token"), ("all", "all but the first", "all but the second")):
        cost = 0.5 if (bits, scales) == (8, "head") else 0.25  # at 3 bits the head is best where the first is spared
        cost -= 0.2 if (bits, scales, tokens) == (3, "head", "all but the first") else 0.3 * ("second" in tokens)
        costs = dict.fromkeys(("added loss", "added loss low", "added loss high"), cost)
        change = {"above all rounded": -0.2, "above all rounded low": -0.3, "above all rounded high": 0.3 - 1.2 / bits}
        rows.append({"bits": bits, "one scale for each": scales, "rounded tokens": tokens, **costs, **change})
    assert cache_answer(Table.of("", "", tuple(rows))).endswith(
        "best scales, 0.250 [0.250, 0.250] at 8 bits (one scale for each token) and 0.250 [0.250, 0.250] at 3 bits "
        "(one scale for each head; to leave the first token as it is changes that by -0.200 [-0.300, -0.100])."
    )
    assert cache_answer(Table.of("", "", tuple(rows[:6]))).endswith("gains nothing that these texts show.")


def test_bits_that_are_asked_for_twice_are_tried_once():
    table = cache_table(load("sinkinterp/demo-softmax"), tokens_of(5) % 16, bits=(3, 3))
    assert len(table.frame) == len(CACHE_GRAINS) * 3 and cache_answer(table).count(" at 3 bits") == 1


@pytest.mark.parametrize(("edit", "message"), {
    lambda: RoundedCache(4, *CACHE_GRAINS["token"], (5,)): "there is no position 5",
    lambda: RoundedCache(4, *CACHE_GRAINS["token"], (0.5,)): "kept of RoundedCache",
    lambda: RoundedCache(4, *CACHE_GRAINS["token"], (True,)): "kept of RoundedCache",
    lambda: RoundedCache(1, *CACHE_GRAINS["token"]): "bits",
    lambda: RoundedCache(4, "head", "head"): "of type Scales",
    lambda: Scales((0, -2, -1)): "over positions",
    lambda: Scales((-1,), group=0): "group",
}.items())  # fmt: skip
def test_a_cache_that_cannot_be_rounded_is_refused(edit, message):
    refused(lambda: load("sinkinterp/demo-softmax").run(tokens_of(5) % 16, edits=[edit()]), message)


def test_a_cache_of_a_latent_is_refused():
    config = DeepseekV3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=97,
        intermediate_size=32, q_lora_rank=8, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1,
    )  # fmt: skip
    refused(lambda: cache_table(load(AutoModelForCausalLM.from_config(config)), tokens_of(5) % 16))
