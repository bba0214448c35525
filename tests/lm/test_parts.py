import math
from dataclasses import replace

import pytest
import torch
from lm.family import SPECS, tokens
from refusals import refused

from sinkinterp.attention.slots import KeySlot
from sinkinterp.lm.attention import AttentionSpec, BucketIndex, Differential, Sinusoidal, T5Relative, buckets, slopes
from sinkinterp.lm.block import FFN, GatedFFN, Gelu, Relu, Swish
from sinkinterp.lm.model import TorchInit, WrittenInit, build
from sinkinterp.spec import Dims

DIMS = Dims(42, 3, 14, 19)
ACTS = {Relu(): torch.relu, Gelu(): lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2, Swish(): lambda x: x * x.sigmoid()}


@pytest.mark.parametrize("act", ACTS, ids=str)
def test_feed_forward_layers_are_their_formulas(act):
    x = torch.randn(2, 5, 42)
    plain, gated = FFN(37, act).build(DIMS), GatedFFN(37, act).build(DIMS)
    torch.testing.assert_close(plain(x), ACTS[act](x @ plain.up_proj.weight.T) @ plain.down_proj.weight.T)
    hidden = ACTS[act](x @ gated.gate_proj.weight.T) * (x @ gated.up_proj.weight.T)
    torch.testing.assert_close(gated(x), hidden @ gated.down_proj.weight.T)


def wide(name, **change):
    return build(replace(SPECS[name], vocab=997, d_model=192, n_layers=5, **change))


def test_the_written_initialisation_has_the_releases_deviations():
    model = wide("llama", init=WrittenInit(), ffn=GatedFFN(251))
    block = model.model.layers[2]
    for weight in (model.model.embed_tokens.weight, block.self_attn.o_proj.weight, model.lm_head.weight):
        assert weight.std().item() == pytest.approx((0.4 / 192) ** 0.5, rel=0.03)
    assert block.mlp.down_proj.weight.std().item() == pytest.approx(251**-0.5 / 5, rel=0.03)


@pytest.mark.parametrize("ffn", [FFN(251), GatedFFN(251, Gelu())], ids=str)
def test_no_other_feed_forward_layer_is_written_smaller_with_depth(ffn):
    down = wide("llama", init=WrittenInit(), ffn=ffn).model.layers[2].mlp.down_proj.weight
    assert down.std().item() == pytest.approx((0.4 / 251) ** 0.5, rel=0.03)


def test_the_effective_initialisation_is_pytorchs():
    model = wide("llama", init=TorchInit())
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.03)
    assert model.lm_head.weight.std().item() == pytest.approx(3**-0.5 * 192**-0.5, rel=0.03)


@torch.no_grad()
def test_post_norm_states_have_unit_root_mean_square_and_meet_no_final_norm():
    model = build(SPECS["post_norm"])
    output = model.model(tokens(), output_hidden_states=True)
    x = output.hidden_states[-1]
    torch.testing.assert_close(x.square().mean(-1), torch.ones(2, 13), rtol=1e-3, atol=1e-3)
    assert output.last_hidden_state.equal(x) and isinstance(model.model.norm, torch.nn.Identity)


@torch.no_grad()
def test_added_heads_are_concatenated_heads_whose_output_map_is_repeated():
    added = build(SPECS["heads_added"])
    weights = {n: w.repeat(1, 3) if "o_proj" in n else w for n, w in added.state_dict().items()}
    concatenated = build(SPECS["softmax"])
    concatenated.load_state_dict(weights)
    torch.testing.assert_close(added(tokens()).logits, concatenated(tokens()).logits)


@torch.no_grad()
def test_a_value_bias_is_what_a_value_projection_with_a_bias_adds():
    model, plain = build(SPECS["v_bias"]), build(SPECS["softmax"])
    weights = model.state_dict()
    biases = [weights.pop(f"model.layers.{i}.self_attn.v_bias.value") for i in (0, 1)]
    plain.load_state_dict(weights)
    for layer, bias in zip(plain.model.layers, biases, strict=True):
        layer.self_attn.v_proj.bias = torch.nn.Parameter(bias.flatten())  # rows that sum to one pass it on whole
    torch.testing.assert_close(model(tokens()).logits, plain(tokens()).logits)


@pytest.mark.parametrize(("name", "gate", "gated"), [("gated", "gate", "o"), ("gated_values", "v_gate", "v")])
@torch.no_grad()
def test_a_gate_whose_map_is_zero_halves_every_head_or_value(name, gate, gated):
    model, plain = build(SPECS[name]), build(SPECS["softmax"])
    weights = model.state_dict()
    for i in (0, 1):
        attention = f"model.layers.{i}.self_attn"
        weights.pop(f"{attention}.{gate}.gate_proj.weight").zero_()  # the model's own
        weights[f"{attention}.{gated}_proj.weight"] = weights[f"{attention}.{gated}_proj.weight"] / 2
    plain.load_state_dict(weights)
    torch.testing.assert_close(model(tokens()).logits, plain(tokens()).logits)


@pytest.mark.parametrize("name", ["gated_elements", "gated_values"])
@torch.no_grad()
def test_a_gate_of_elements_scales_each_by_its_own_number(name):
    attention = build(SPECS[name]).model.layers[0].self_attn
    gate = attention.gate if name == "gated_elements" else attention.v_gate
    gate.gate_proj.weight.zero_()[5, 0] = 2.0  # dimension 5 of head 0
    z, x = torch.ones(1, 2, 3, 14), torch.zeros(1, 2, 42)
    x[0, 1, 0] = 3.0
    expected = torch.full((1, 2, 3, 14), 0.5)
    expected[0, 1, 0, 5] = 1 / (1 + math.exp(-6.0))
    torch.testing.assert_close(gate(z, x), expected)


@torch.no_grad()
def test_differential_attention_is_its_formula():
    maps = Differential(start=0.6).build(Dims(8, 2, 2, 7))
    v = torch.arange(8.0).reshape(1, 2, 2, 2)
    assert maps.share(v).tolist() == [[[[0, 1, 2, 3]] * 2, [[4, 5, 6, 7]] * 2]]
    maps.plus.copy_(torch.tensor([[1.0, 0.0], [math.log(2), 5.0]]))  # exp(log 2) - exp(0) + 0.6 = 1.6
    maps.minus.zero_()
    z = torch.tensor([[[[10.0, 4.0, -2.0, 0.0], [5.0, 0.0, 0.0, 5.0]]]])
    difference = torch.tensor([2.0, 4.0, -2.0, -8.0])
    expected = 0.4 * difference / (88 / 4 + 1e-5) ** 0.5
    torch.testing.assert_close(maps(z)[0, 0, 0], expected)
    refused(lambda: Differential().build(Dims(9, 3, 3, 7)))
    refused(lambda: AttentionSpec(slots=KeySlot(), maps=Differential()))


@torch.no_grad()
def test_normed_queries_and_keys_do_not_feel_the_size_of_their_maps():
    model, scaled = build(SPECS["qk_norm"]), build(SPECS["qk_norm"])
    for layer in scaled.model.layers:
        layer.self_attn.q_proj.weight.mul_(7)
        layer.self_attn.k_proj.weight.mul_(7)
    torch.testing.assert_close(model(tokens()).logits, scaled(tokens()).logits, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_alpha_is_a_scale_of_the_value_maps():
    model, plain = build(SPECS["alpha_0.2"]), build(SPECS["softmax"])
    plain.load_state_dict(model.state_dict())
    for layer in plain.model.layers:
        layer.self_attn.v_proj.weight.mul_(0.2)  # equation 30
    torch.testing.assert_close(model(tokens()).logits, plain(tokens()).logits)


SMALL = Dims(6, 3, 2, 19)
IDS = torch.arange(7)[None]


def test_sinusoidal_positions_are_equation_5():
    added = Sinusoidal().build(SMALL).embed(torch.zeros(1, 7, 6), IDS)[0]
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
    assert BucketIndex().build(SMALL).bias(IDS, IDS)[0, 0, 6].tolist() == [6, 5, 4, 3, 2, 1, 0]
    ids = torch.arange(64)[None]
    bias = BucketIndex().build(SMALL).bias(ids, ids)[0, 0]
    pattern = bias.masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf).softmax(-1)
    assert pattern[:, 0].mean().item() == pytest.approx(0.334, abs=1e-3)


@pytest.mark.parametrize("kind", [T5Relative, BucketIndex])
def test_buckets_that_do_not_fit_are_refused(kind):
    refused(lambda: kind(32, 16), "reach")
