"""Scores of thousands and of billions: weights stay as exact as eager attention's, and never exceed 1."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import sinkinterp as si
from sinkinterp.attention.call import LARGE, SHORT, AttentionCall
from sinkinterp.attention.slots import SinkLogit, SlotRow

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def qwen(size):
    """A tiny Qwen2 whose queries and keys have biases of this size."""
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES)).eval()
    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            torch.nn.init.normal_(linear.bias, std=size)
    return model


@torch.no_grad()
def eager_importance(model, tokens):
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(tokens, output_attentions=True).attentions, 1)
    model.set_attn_implementation("sdpa")
    return attentions.double().sum(3) / torch.arange(tokens.shape[1], 0, -1)


@pytest.mark.parametrize("length", [17, SHORT + 13])
@pytest.mark.parametrize("size", [1, 100, 300])
def test_importance_is_at_most_three_times_as_far_off_as_eagers(size, length):
    model, tokens = qwen(size), torch.randint(0, 101, (3, length))
    reports = [si.measure(model, tokens, positions=at, progress=False) for at in (None, 0)]
    eager = eager_importance(model, tokens)
    exact = eager_importance(model.double(), tokens)
    error = 3 * (eager - exact).abs().max().item() + 1e-6
    for report in reports:
        alpha = report.importance.double()
        assert (alpha - exact[..., : alpha.shape[-1]]).abs().max().item() < error


@pytest.mark.parametrize("length", [17, SHORT + 13])
@pytest.mark.parametrize("scale", [1.0, LARGE, 1e9])
def test_no_weight_exceeds_one_whatever_the_scores(make_call, scale, length):
    call = make_call(queries=length, scale=scale)
    first = call.keys[:1]
    for weights in (call.weights_at(first), call.weights_at(), call.pattern()):
        assert weights.isfinite().all() and weights.min() >= 0 and weights.max() <= 1
    most = torch.arange(length, 0, -1) * (1 + 1e-6)
    for masses in (call.column_mass(), call.column_mass(first)):
        assert (masses <= most[: masses.shape[-1]]).all()


FIELDS = {
    "causal": {},
    "a window": {"mask": torch.ones(1, 1, SHORT + 13, SHORT + 13, dtype=torch.bool).tril().triu(-50)},
    "a bias": {"bias": -torch.arange(SHORT + 13.0).expand(1, 6, SHORT + 13, -1)},
    "a slot": {"slot": SlotRow(torch.ones(6, 1, 5), torch.ones(6, 1, 5))},
    "a sink logit": {"slot": SinkLogit(torch.full((6,), 3000.0))},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_large_weights_of_a_few_keys_are_the_kernels_own_without_a_whole_row(make_call, monkeypatch, fields):
    call, keys = make_call(queries=SHORT + 13, scale=10 * LARGE, **fields), torch.tensor([7, 0])
    want = call.pattern()[..., -(SHORT + 13) :][..., keys].sum(2)
    monkeypatch.setattr(AttentionCall, "runs", None)
    torch.testing.assert_close(call.column_mass(keys), want, rtol=0, atol=2e-3)
    assert call.is_fused and "_sums" not in vars(call)
