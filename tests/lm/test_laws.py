"""What holds for every architecture of the study."""

import pytest
import torch
from lm.family import SPECS, logits_of, model_of, tokens
from transformers import AutoModelForCausalLM

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.files import data_of
from sinkinterp.lm.model import build, parameter_count
from sinkinterp.lm.variants import BASE, VARIANTS
from sinkinterp.measurement.measure import measure
from sinkinterp.spec import changed

every_name = pytest.mark.parametrize("name", SPECS)
PREFIX = {"prefix_2": 2, "prefix_5": 5, "as much again": 3}
WINDOW = {"window": 8, "much at once": 5}


@every_name
def test_logits_are_finite_and_every_trained_parameter_learns_and_their_number_follows_a_formula(name):
    model = build(SPECS[name])
    output = model(tokens(), labels=tokens())
    assert output.logits.shape == (2, 13, 97) and output.logits.isfinite().all()
    output.loss.backward()
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert not [n for n, grad in trained.items() if grad is None or grad.eq(0).all()]
    assert all(grad.isfinite().all() for grad in trained.values())
    assert sum(grad.numel() for grad in trained.values()) == formula(name)
    assert sum(p.numel() for p in model.parameters()) == parameter_count(SPECS[name])


def test_the_list_of_variants_says_how_each_is_made_of_softmax():
    changes = data_of("lm/changes.toml")
    assert [*changes] == [*VARIANTS]
    for name, line in changes.items():
        assert changed(BASE, [] if name == "softmax" else line.split()) == VARIANTS[name], name


@every_name
@torch.no_grad()
def test_no_variant_sees_the_future_but_within_a_prefix(name):
    later = tokens()
    later[:, 7:] = (later[:, 7:] + 1) % 97
    torch.testing.assert_close(logits_of(name)[:, :7], model_of(name)(later).logits[:, :7])
    second = tokens()
    second[:, 1] = (second[:, 1] + 1) % 97
    moved = (logits_of(name) - model_of(name)(second).logits)[:, 0].abs().max() > 1e-4
    assert moved == (name in PREFIX)


@every_name
@torch.no_grad()
def test_a_checkpoint_survives_auto_classes_bit_for_bit(name, tmp_path):
    model = model_of(name)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.lm == SPECS[name]
    ours, theirs = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (model, loaded))
    assert [(n, t.dtype) for n, t in ours.items()] == [(n, t.dtype) for n, t in theirs.items()]
    assert all(tensor.equal(theirs[n]) for n, tensor in ours.items())
    # what is loaded lies elsewhere in memory, where processors may add in another order
    torch.testing.assert_close(loaded(tokens()).logits, logits_of(name), rtol=1e-5, atol=1e-5)


@every_name
@torch.no_grad()
def test_the_cache_gives_the_logits_of_a_full_pass(name):
    model, cache, logits = model_of(name), None, []
    for part in tokens().split([6, 3, 1, 1, 2], 1):
        output = model(part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits)
    torch.testing.assert_close(torch.cat(logits, 1), logits_of(name), rtol=1e-4, atol=1e-5)


@every_name
@torch.no_grad()
def test_right_padding_changes_no_token_before_it(name):
    model, mask = model_of(name), torch.ones(2, 13, dtype=torch.long)
    mask[:, 9:] = 0
    padded = model(tokens(), attention_mask=mask).logits[:, :9]
    torch.testing.assert_close(padded, model(tokens()[:, :9]).logits)


@every_name
@torch.no_grad()
def test_measured_importance_is_that_of_the_patterns_the_model_returns(name):
    model = model_of(name)
    report = measure(HuggingFaceSubject(model), tokens())
    patterns = torch.stack(model(tokens(), output_attentions=True).attentions, 1)
    proxies = patterns.abs() / patterns.abs().sum(-1, keepdim=True).clamp(min=1e-30)
    watchers = torch.tensor([watchers_of(name, key) for key in range(13)])
    for read, weights in ((report.raw_importance, patterns), (report.importance, proxies)):
        torch.testing.assert_close(read, weights[..., -13:].sum(-2) / watchers, rtol=1e-4, atol=1e-6)
    has_slot = patterns.shape[-1] == 14
    assert (report.slot_importance is not None) == has_slot
    if has_slot:
        torch.testing.assert_close(report.slot_importance, proxies[..., 0].mean(-1), rtol=1e-4, atol=1e-6)


def watchers_of(name, key):
    if key < PREFIX.get(name, 0):
        return 13
    return min(13 - key, WINDOW.get(name, 13))


def formula(name):
    heads = {"heads_2": 2, "heads_4": 4, "heads_8": 8, "differential": 2}.get(name, 3)
    d = 14 * heads
    ffn = (2 if name in ("relu", "gelu", "swish") else 3) * d * 37
    output = 14 * d if name in ("heads_added", "much at once", "as much again") else d * d
    block = 3 * d * d + output + ffn + 2 * d + BY_LAYER.get(name, 0)
    untabled = ("llama", "no_position", "sinusoidal", "alibi", "bucket_index", "sigmoid with kv slot", "update norm")
    table = {"t5": 32 * 3, "sink_token": 20 * d, "much at once": 32 * 3, "as much again": 0}
    positions = 0 if name in untabled else table.get(name, 19 * d)
    last = 0 if name in ("post_norm", "much at once") else d
    return 2 * 97 * d + positions + 2 * block + last + (d if name in ("sink_token", "much at once") else 0)


BY_LAYER = {
    "kv_bias": 84, "kv_bias_shared": 28, "k_bias": 42, "k_bias_shared": 14, "v_bias": 42, "v_bias_shared": 14,
    "k_bias_e1": 42, "k_bias_5e1": 42, "k_bias_20e1": 42, "k_bias_even": 42, "k_bias_5even": 42, "k_bias_20even": 42,
    "k_bias_1d": 3, "k_bias_2d": 6, "k_bias_4d": 12, "k_bias_8d": 24, "mlp_kernel": 2 * 14**2,
    "mlp_kernel_norm": 2 * 14**2, "sink_logit": 3, "gated": 3 * 42,
    "gated_elements": 42**2, "gated_values": 42**2, "differential": 4 * 14 + 28, "qk_norm": 28,
    "sigmoid with kv slot": 84,
    "much at once": 28 + 42 + 3 * 42, "as much again": 28 + 42 + 3 * 42 + 2 * 14**2 + 3,
}  # fmt: skip


@pytest.mark.parametrize("name", ["alibi", "t5", "bucket_index", "llama"])
@torch.no_grad()
def test_relative_positions_do_not_mind_left_padding_with_a_cache(name):
    model, short = model_of(name), tokens()[:, 4:]
    mask = (torch.arange(13) >= 4).long().expand(2, -1)
    ids = (mask.cumsum(1) - 1).clamp(min=0)
    first = model(tokens()[:, :9], attention_mask=mask[:, :9], position_ids=ids[:, :9], use_cache=True)
    rest = model(
        tokens()[:, 9:], attention_mask=mask, position_ids=ids[:, 9:], past_key_values=first.past_key_values,
        use_cache=True,
    )  # fmt: skip
    torch.testing.assert_close(rest.logits, model(short).logits[:, 5:], rtol=1e-4, atol=1e-5)
