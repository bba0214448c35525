import pytest
import torch
from lm.family import SPECS, model_of, tokens
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sinkinterp.attention.slots import KeySlot
from sinkinterp.errors import InputError
from sinkinterp.lm.attention import AttentionSpec
from sinkinterp.lm.config import LMSpec, SinkConfig
from sinkinterp.lm.model import build
from sinkinterp.lm.sink_token import SinkToken
from sinkinterp.lm.variants import VARIANTS, variants


def test_the_default_variant_is_llama():
    model = build(SPECS["llama"])
    llama = model.to_llama()
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama.eval()(tokens()).logits, model.eval()(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(SPECS) - {"llama"}))
def test_what_is_not_llama_is_not_exported(name):
    with pytest.raises(InputError, match="Llama"):
        model_of(name).to_llama()


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


def test_two_kinds_of_slot_at_once_are_refused():
    with pytest.raises(ValueError, match="NoSlots"):
        LMSpec(before=SinkToken(), attention=AttentionSpec(slots=KeySlot()))


def test_every_row_of_the_study_is_made_of_any_base():
    base = LMSpec(vocab=97, d_model=112, n_layers=2, n_heads=8, n_ctx=19)
    rows = variants(base)
    assert rows["softmax"] == rows["rotary"] == rows["heads_8"] == rows["llama"] == base
    assert set(VARIANTS) <= set(rows)
    assert all(spec.vocab == 97 and spec.n_layers == 2 for spec in rows.values())
