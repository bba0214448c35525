"""Planted outliers are found, and what rounding loses with them and without is exact, in caches as a cache rounds."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused
from torch.nn.utils.parametrizations import weight_norm
from transformers import AutoModelForCausalLM, DeepseekV3Config
from transformers.cache_utils import DynamicCache, DynamicLayer

import sinkinterp as si
from sinkinterp.applications.outliers import norm_limit
from sinkinterp.applications.quantising import (
    BOTH,
    CACHE_GRAINS,
    DIMS,
    NOTHING,
    RANDOM_DIMS,
    RANDOM_TOKENS,
    TOKENS,
    Quantise,
    RoundedCache,
    Scales,
    _quantised_map,
    activations_table,
    cache_answer,
    cache_table,
    fake_quantised,
    left_out,
    others,
    quantised_weights,
    weights_table,
    worth_trying,
)
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.anatomy import linear_maps
from sinkinterp.lm.model import build
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import Table

LONG = 5  # a token id


@pytest.fixture
def planted():
    """A model whose token `LONG` has a long embedding and whose dimension 3 is large, with texts of both."""
    subject, tokens = subject_of("llama with grouped queries"), tokens_of()
    weight = subject.model.get_input_embeddings().weight
    saved = weight.detach().clone()
    tokens = tokens.clone()
    tokens[tokens == LONG] = LONG + 1
    tokens[1, 4] = tokens[3, 0] = LONG
    with torch.no_grad():
        weight[:, 3] = 60 * saved.std() * saved[:, 3].sign()
        weight[LONG] = saved[LONG] * 100 * weight.norm(dim=-1).median() / saved[LONG].norm()
    yield subject, tokens
    with torch.no_grad():
        weight.copy_(saved)


def test_a_token_and_a_dimension_planted_in_a_model_are_found_where_they_are(planted):
    subject, tokens = planted
    found = si.mask(subject, tokens)
    assert found.tokens[:, 0].equal(tokens == LONG)
    plain = si.mask(subject, tokens[[0, 2, 4]])
    assert plain.dims[0] == (3,) and not plain.tokens[:, 0].any()
    x = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][:, 0]
    assert found.keep(0)(x).equal(tokens != LONG) and found.keep(0)(x[1]).equal(tokens[1] != LONG)
    block = found.to_dict()["blocks"][0]
    assert block["tokens"] == [[1, 4], [3, 0]] and "first tokens" in found.answer()
    row = found.table().records()[0]
    assert row["first"] == pytest.approx(1 / 5) and found.plot().data


def test_in_double_precision_every_row_is_what_transformers_hooks_give(planted):
    """In fp32 the last digits decide single roundings, which later blocks carry on: rows of few texts then differ."""
    model, tokens = deepcopy(planted[0].model).double(), planted[1]
    subject = si.load(model)
    found = si.mask(subject, tokens)
    limits = torch.tensor(found.limits, dtype=torch.float64)

    def loss(rounded=None):
        def before(block, x):
            long = x.norm(dim=-1, keepdim=True) > limits[block]
            large = torch.isin(torch.arange(x.shape[-1]), torch.tensor(found.dims[block], dtype=torch.long))
            return x if rounded is None else rounded(x, long, large)

        parts = [*model.model.layers, model.model.norm]
        hooks = [part.register_forward_pre_hook(lambda _, x, i=i: (before(i, x[0]), *x[1:])) for i, part in
                 enumerate(parts)]  # fmt: skip
        with torch.no_grad():
            scores = model(tokens).logits[:, :-1].log_softmax(-1)
        for hook in hooks:
            hook.remove()
        return -scores.gather(-1, tokens[:, 1:, None])[..., 0].mean(1)

    for row in activations_table(subject, tokens, found).records():
        bits, grain = row["quantised"].removeprefix("int").split(" per ")
        levels, axes = 2 ** (int(bits) - 1) - 1, {"tensor": (1, 2), "token": (2,), "channel": (1,)}[grain]

        def rounded(x, long, large, levels=levels, axes=axes, name=row["left out"]):
            kept = (long & (name in (TOKENS, BOTH))) | (large & (name in (DIMS, BOTH)))
            scale = x.masked_fill(kept, 0).abs().amax(axes, keepdim=True).clamp(min=1e-300) / levels
            return torch.where(kept, x, (x / scale).round() * scale)

        if row["left out"] not in (RANDOM_TOKENS, RANDOM_DIMS):
            assert row["added loss"] == pytest.approx((loss(rounded) - loss()).mean().item(), abs=1e-6), row


def test_random_ones_are_as_many_and_never_the_chosen():
    chosen = torch.zeros(7, 23, dtype=torch.bool)
    chosen[:, 0], chosen[3, 5:9] = True, True
    drawn = others(chosen, -1, seed=1)
    assert drawn.sum(1).equal(chosen.sum(1)) and not (drawn & chosen).any()
    assert others(torch.ones(1, 3, dtype=torch.bool), -1).sum() == 0


def test_what_is_left_out_of_a_quantisation_stays_and_rounds_nothing_else(planted):
    subject, tokens = planted
    found = si.mask(subject, tokens)
    x = subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][:, 0]
    long, edits = tokens == LONG, {n: Quantise(4, (-2, -1), left) for n, left in left_out(found).items()}
    kept = edits[TOKENS].residual(0, x)
    assert kept[long].equal(x[long]) and not kept[~long].equal(x[~long])
    error = {n: (edit.residual(0, x) - x)[~long].norm() for n, edit in edits.items()}
    assert error[TOKENS] < 0.5 * error[NOTHING] and error[RANDOM_TOKENS] > 0.9 * error[NOTHING]
    assert set(worth_trying(found)) <= {NOTHING, TOKENS, RANDOM_TOKENS, DIMS, RANDOM_DIMS, BOTH}
    empty = replace(found, tokens=torch.zeros_like(found.tokens), dims=((),) * len(found.dims))
    assert worth_trying(empty) == [NOTHING]
    assert len(activations_table(subject, tokens, empty).records()) == 6


@pytest.mark.parametrize("name", ["llama with grouped queries", "gpt2", "qwen3-moe", "gpt-oss with sink logits"])
def test_quantised_weights_are_those_of_all_linear_maps_and_are_put_back_to_the_bit(name):
    subject, tokens = subject_of(name), tokens_of()
    own = {key: (weight, weight._version) for key, weight in subject.model.named_parameters()}
    before = {key: weight.clone() for key, weight in subject.model.state_dict().items()}
    nothing = left_out(si.mask(subject, tokens))[NOTHING]
    with pytest.raises(KeyError), quantised_weights(subject, 4, (-1,), nothing) as error:
        inside = {key: weight.clone() for key, weight in subject.model.state_dict().items()}
        raise KeyError
    errors = []
    for key, weight in before.items():
        is_map = weight.ndim > 1 and (".layers." in key or ".h." in key)
        is_map &= not any(part in key for part in ("router", "mlp.gate.", "proj_bias"))
        assert inside[key].equal(weight) != is_map, key
        if is_map:
            is_transposed = name == "gpt2" or ("oss" in name and "experts" in key)
            errors.append(error_by_hand(weight.mT if is_transposed else weight))
    assert error == pytest.approx(sum(errors) / len(errors), rel=1e-5)
    assert all(weight.equal(before[key]) for key, weight in subject.model.state_dict().items())
    for key, weight in subject.model.named_parameters():
        assert weight is own[key][0] and weight._version == own[key][1]  # not even written and put back


@pytest.mark.parametrize("name", si.VARIANTS)
def test_the_linear_maps_of_a_variant_are_its_linear_layers_and_no_slot(name):
    """A slot has a key and a value for each head, of the shape of a stack of matrices with one row."""
    for block in build(si.VARIANTS[name]).model.layers:
        layers = {id(module) for module in block.modules() if isinstance(module, torch.nn.Linear)}
        assert {id(one.module) for one in linear_maps(block)} == layers


def test_weights_that_are_computed_or_offloaded_are_refused_and_the_model_stays_as_it_was():
    for change, words in ((weight_norm, "weight norm; remove"), (lambda part: part.to("meta"), "offloaded")):
        model, tokens = model_of("qwen2"), tokens_of()
        subject, last = si.load(model), model.model.layers[-1].self_attn.k_proj
        found = si.mask(subject, tokens)
        change(last)
        state = model.state_dict(keep_vars=True)
        refused(partial(weights_table, subject, tokens, found), words)
        assert all(value is state[name] for name, value in model.state_dict(keep_vars=True).items())


def error_by_hand(weight, levels=7):
    scale = weight.abs().amax(-1, keepdim=True) / levels
    return (((weight / scale).round() * scale - weight).square().sum() / weight.square().sum()).item()


def test_rounding_in_half_precision_is_that_of_full_precision():
    x = 300 * torch.randn(7, 91, generator=torch.Generator().manual_seed(3))  # the squares' sum exceeds fp16's largest
    rounded = fake_quantised(x.half().float(), 8, (-1,))
    assert fake_quantised(x.half(), 8, (-1,)).equal(rounded.half())
    weight = torch.nn.Linear(91, 7, bias=False).half().requires_grad_(False).weight
    weight.copy_(x)
    assert error_by_hand(x.half().float(), 127) > 1e-6
    _, found = _quantised_map(weight, 8, (-1,), lambda block, row: torch.zeros_like(row, dtype=torch.bool), (0, 91))
    assert found == pytest.approx(error_by_hand(x.half().float(), 127), rel=1e-4)


def test_a_model_without_maps_in_floating_point_is_refused(monkeypatch):
    subject, tokens = subject_of("gpt2"), tokens_of()
    found = si.mask(subject, tokens)
    monkeypatch.setattr("sinkinterp.applications.quantising.linear_maps", lambda block: iter(()))
    refused(lambda: weights_table(subject, tokens, found), "floating-point")


@pytest.mark.parametrize("times", [1.01, 1.2, 3.0, 10.0, 41.0])
def test_tokens_are_those_that_the_rule_of_dictionary_learning_removes(times):
    norms = torch.randn(31, 67, 53, generator=torch.Generator().manual_seed(0)).norm(dim=-1)
    norms[:7, 0] *= 40
    removed = norms > norms.median() * times  # of the whole batch, as in its ActivationBuffer
    assert (norms > norm_limit(norms, times)).equal(removed) and (times > 3 or removed.sum() >= 7)


def test_rounding_is_to_the_levels_of_the_largest_magnitude():
    x = torch.tensor([[7.0, 3.4, -1.0], [0.7, 0.34, -0.1]])
    whole, rows, columns = (fake_quantised(x, 4, over) for over in ((-2, -1), (-1,), (-2,)))
    torch.testing.assert_close(whole, torch.tensor([[7.0, 3, -1], [1, 0, 0]]))
    torch.testing.assert_close(rows, torch.tensor([[7.0, 3, -1], [0.7, 0.3, -0.1]]))
    assert columns[0].equal(x[0]) and fake_quantised(0 * x, 8, (-1,)).equal(0 * x)


def test_delimiters_are_known_by_their_text_alone():
    torch.manual_seed(0)
    model, ids = NanoGPT().eval(), torch.tensor([[3, 1, 4, 0, 4]])
    letters = (lambda text: ["!.abc".index(letter) for letter in text], lambda ids: "".join("!.abc"[i] for i in ids))
    with_words, without = (si.mask(si.load(model, tokenizer=words), ids) for words in (letters, None))
    assert with_words.kinds.tolist() == [[0, 1, 3, 1, 2]] and "delimiter: no letter or digit" in with_words.note
    assert without.kinds.tolist() == [[0, 3, 3, 3, 2]] and "not told from others without a tokenizer" in without.note


# Keys and values

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
    subject = si.load("sinkinterp/demo-softmax")
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
    table = cache_table(si.load("sinkinterp/demo-softmax"), tokens_of(5) % 16, bits=(3, 3))
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
    refused(lambda: si.load("sinkinterp/demo-softmax").run(tokens_of(5) % 16, edits=[edit()]), message)


def test_a_cache_of_a_latent_is_refused():
    config = DeepseekV3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=97,
        intermediate_size=32, q_lora_rank=8, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1,
    )  # fmt: skip
    refused(lambda: cache_table(si.load(AutoModelForCausalLM.from_config(config)), tokens_of(5) % 16))
