import pytest
import torch
from lm.family import SPECS, logits_of, model_of, tokens
from refusals import refused
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sinkinterp.attention.slots import KeySlot
from sinkinterp.lm.attention import AttentionSpec
from sinkinterp.lm.block import SinkToken
from sinkinterp.lm.config import LMSpec, SinkConfig
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS, variants


def test_the_default_variant_is_llama():
    model = build(SPECS["llama"])
    llama = model.to_llama()
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama.eval()(tokens()).logits, model.eval()(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(SPECS) - {"llama"}))
def test_what_is_not_llama_is_not_exported(name):
    refused(lambda: model_of(name).to_llama())


def test_one_seed_gives_one_model_and_leaves_the_callers_randomness_alone():
    before = torch.get_rng_state()
    first, again, other = (build(SPECS["softmax"], seed).lm_head.weight for seed in (3, 3, 4))
    assert first.equal(again) and not first.equal(other) and torch.get_rng_state().equal(before)


K_BIAS, TOO_MANY = SinkConfig(spec=SPECS["k_bias"].to_dict()), torch.zeros(1, 20, dtype=torch.long)
REFUSED = [
    (lambda: build(SPECS["softmax"])(TOO_MANY), "context of 19"),
    (lambda: LMSpec(d_model=42, n_heads=5), "multiple"),
    (lambda: AutoModelForCausalLM.from_config(K_BIAS, attn_implementation="sdpa"), "scaled_dot_product_attention"),
    (lambda: LMSpec(before=SinkToken(), attention=AttentionSpec(slots=KeySlot())), "NoSlots"),  # two kinds of slot
]


@pytest.mark.parametrize(("refused", "message"), REFUSED)
def test_models_that_would_compute_something_else_are_refused(refused, message):
    with pytest.raises(ValueError, match=message):
        refused()


def test_every_row_of_the_study_is_made_of_any_base():
    base = LMSpec(vocab=97, d_model=112, n_layers=2, n_heads=8, n_ctx=19)
    rows = variants(base)
    assert rows["softmax"] == rows["rotary"] == rows["heads_8"] == rows["llama"] == base
    assert set(VARIANTS) <= set(rows)
    assert all(spec.vocab == 97 and spec.n_layers == 2 for spec in rows.values())


def test_a_model_with_more_symbols_has_a_loss_and_survives_a_checkpoint(tmp_path):
    model = build(SPECS["softmax"])
    model.resize_token_embeddings(101)
    last = torch.full((1, 4), 100)
    assert model(last, labels=last).loss.isfinite()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == loaded.config.lm.vocab == 101
    assert all(ours.equal(theirs) for ours, theirs in zip(model.parameters(), loaded.parameters(), strict=True))


@torch.no_grad()
def test_transformers_forms_of_asking_for_outputs_are_understood():
    model, logits = model_of("softmax"), logits_of("softmax")
    assert model(tokens(), return_dict=False)[0].equal(logits)
    torch.testing.assert_close(model(tokens(), logits_to_keep=torch.tensor([2, 7])).logits, logits[:, [2, 7]])


def test_a_static_cache_is_refused():
    refused(lambda: model_of("softmax").generate(tokens(), max_new_tokens=2, cache_implementation="static"))
