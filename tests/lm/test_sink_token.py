from dataclasses import replace

import pytest
import torch
from lm.family import SPECS, tokens

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.lm.block import Nothing, SinkToken
from sinkinterp.lm.model import build
from sinkinterp.measurement.measure import measure

NAMES = ["no_position", "sinusoidal", "softmax", "llama", "post_norm", "sigmoid", "mlp_kernel_norm", "softpick"]
NAMES += ["linear_norm", "sigmoid_p2", "gated", "v_bias", "qk_norm", "heads_added"]


def with_and_given(name):
    """A model with a sink token, and one that is given the same vector as its first embedding."""
    spec = replace(SPECS[name], before=SinkToken(0.7))
    model, plain = build(spec), build(replace(spec, before=Nothing(), n_ctx=20))
    weights = model.state_dict()
    vector = weights.pop("model.before.weight")
    plain.load_state_dict(weights)
    return model, plain, torch.cat((vector.expand(2, -1, -1), model.model.embed_tokens(tokens())), 1)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_sink_token_is_a_first_embedding_exactly(name):
    model, plain, embeddings = with_and_given(name)
    given = plain(inputs_embeds=embeddings).logits[:, 1:]
    torch.testing.assert_close(model(tokens()).logits, given, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_it_draws_is_reported_as_the_slots_and_position_zero_is_a_token():
    model, plain, embeddings = with_and_given("llama")
    report = measure(HuggingFaceSubject(model), tokens())
    patterns = torch.stack(plain(inputs_embeds=embeddings, output_attentions=True).attentions, 1)[..., 1:, :]
    torch.testing.assert_close(report.slot_importance, patterns[..., 0].mean(-1))
    torch.testing.assert_close(report.importance[..., 0], patterns[..., 1].mean(-1))


@torch.no_grad()
def test_its_own_residual_stream_can_be_followed():
    model, plain, embeddings = with_and_given("llama")
    states = plain.model(inputs_embeds=embeddings, output_hidden_states=True).hidden_states
    stream = model.model.before.stream(model.model.layers, model.model.position)
    assert stream.shape == (2, 42)
    torch.testing.assert_close(stream[0], states[1][0, 0])
