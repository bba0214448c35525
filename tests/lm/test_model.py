import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sinkinterp.adapters.huggingface import HuggingFaceSubject
from sinkinterp.attention.kernels import Kernel, Sigmoid, Unit
from sinkinterp.attention.slots import KeySlot, LearnedRow
from sinkinterp.errors import InputError
from sinkinterp.lm.attention import AttentionSpec
from sinkinterp.lm.ffn import SwiGLU
from sinkinterp.lm.hub import to_llama
from sinkinterp.lm.model import LMSpec, SinkConfig, build
from sinkinterp.lm.positions import NoPosition
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement import measure
from sinkinterp.spec import Spec

SIZES = {"vocab": 97, "d_model": 42, "n_heads": 3, "n_layers": 2, "n_ctx": 19, "ffn": SwiGLU(37)}
SPECS = {name: replace(spec, **SIZES) for name, spec in VARIANTS.items()} | {
    "no position": LMSpec(position=NoPosition(), **SIZES),
    "sigmoid with kv slot": LMSpec(
        attention=AttentionSpec(Kernel(similarity=Sigmoid(), normaliser=Unit()), slots=KeySlot(v=LearnedRow())), **SIZES
    ),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def tokens():
    return torch.randint(97, (2, 13), generator=torch.Generator().manual_seed(1))


@every_spec
def test_logits_are_finite_and_every_trained_parameter_learns(spec):
    model = build(spec)
    output = model(tokens(), labels=tokens())
    assert output.logits.shape == (2, 13, 97) and output.logits.isfinite().all()
    output.loss.backward()
    idle = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not idle
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


@every_spec
def test_no_variant_sees_the_future(spec):
    model, later = build(spec), tokens()
    later[:, 7:] = (later[:, 7:] + 1) % 97
    torch.testing.assert_close(model(tokens()).logits[:, :7], model(later).logits[:, :7])


@every_spec
def test_a_spec_survives_json(spec):
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@every_spec
def test_a_checkpoint_survives_auto_classes_bit_for_bit(spec, tmp_path):
    model = build(spec)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.lm == spec
    assert loaded(tokens()).logits.equal(model(tokens()).logits)


@every_spec
def test_generating_with_the_cache_gives_the_tokens_of_full_passes(spec):
    model = build(spec)
    greedy = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached, full = (model.generate(tokens(), use_cache=use, **greedy) for use in (True, False))
    assert cached.shape == (2, 18) and cached.equal(full)


@every_spec
def test_right_padding_changes_no_token_before_it(spec):
    model, mask = build(spec), torch.ones(2, 13, dtype=torch.long)
    mask[:, 9:] = 0
    padded = model(tokens(), attention_mask=mask).logits[:, :9]
    torch.testing.assert_close(padded, model(tokens()[:, :9]).logits)


@every_spec
def test_measured_importance_is_that_of_the_patterns_the_model_returns(spec):
    model = build(spec)
    report = measure(HuggingFaceSubject(model), tokens())
    patterns = torch.stack(model(tokens(), output_attentions=True).attentions, 1)[..., -13:]
    watchers = patterns.ne(0).sum(-2)
    torch.testing.assert_close(report.raw_importance, patterns.sum(-2) / watchers, rtol=0, atol=1e-6)


@every_spec
def test_the_number_of_parameters_follows_a_formula(spec):
    d, width, table, slot = 42, 37, ["softmax", "sigmoid", "k_bias", "window"], {"k_bias": 1, "sigmoid with kv slot": 2}
    name = next(n for n, s in SPECS.items() if s is spec)
    block = 4 * d * d + 3 * d * width + 2 * d + slot.get(name, 0) * d
    want = 2 * 97 * d + 2 * block + d + (19 * d if name in table else 0)
    assert sum(p.numel() for p in build(spec).parameters() if p.requires_grad) == want


def test_the_default_variant_is_llama():
    model = build(SPECS["llama"])
    llama = to_llama(model)
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama.eval()(tokens()).logits, model.eval()(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "k_bias", "window"])
def test_what_is_not_llama_is_not_exported(name):
    with pytest.raises(InputError, match="Llama"):
        to_llama(build(SPECS[name]))


def test_one_seed_gives_one_model_and_leaves_the_callers_randomness_alone():
    before = torch.get_rng_state()
    first, again, other = (build(SPECS["softmax"], seed).lm_head.weight for seed in (3, 3, 4))
    assert first.equal(again) and not first.equal(other) and torch.get_rng_state().equal(before)


def test_too_many_tokens_for_the_context_are_refused():
    with pytest.raises(InputError, match="context of 19"):
        build(SPECS["softmax"])(torch.zeros(1, 20, dtype=torch.long))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="multiple"):
        LMSpec(d_model=42, n_heads=5)


def test_an_attention_implementation_that_would_ignore_slots_and_kernels_is_refused():
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        AutoModelForCausalLM.from_config(SinkConfig(spec=SPECS["k_bias"].to_dict()), attn_implementation="sdpa")
