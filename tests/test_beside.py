"""SAELens and kvpress work on a model between two measurements: `make test-beside` has them in one environment."""

import pytest
import torch
from backends.zoo import model_of, tokens_of

import sinkinterp as si

kvpress, sae_lens = (pytest.importorskip(name) for name in ("kvpress", "sae_lens"))


@torch.no_grad()
def test_a_press_and_an_autoencoder_meet_the_model_that_is_measured():
    model, tokens = model_of("llama with grouped queries"), tokens_of(length=24)
    before = si.measure(model, tokens)
    with kvpress.StreamingLLMPress(compression_ratio=0.5, n_sink=2)(model):
        assert model(tokens[:1], use_cache=True).past_key_values.get_seq_length() == 12
    states = si.hidden_states(model, tokens)
    config = sae_lens.StandardSAEConfig(d_in=states.shape[-1], d_sae=7)
    assert sae_lens.SAE.from_dict(config.to_dict())(states).shape == states.shape
    assert si.measure(model, tokens) == before
