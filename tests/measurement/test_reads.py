"""Any function of an attention call is a read, on every backend."""

import pytest
import torch
from backends.zoo import ATTENTION_LAYERS, CONFIGS, model_of, tokens_of

import sinkinterp as si
from sinkinterp.metrics import massive, norms, qk

CALLS = {"angles": qk.qk_angles, "norm products": qk.qk_norm_products}
RESIDUALS = {"peak": massive.peak, "peak over median": massive.peak_over_median, "kurtosis": massive.kurtosis}


@pytest.mark.parametrize("backend", ["nnsight", "transformer_lens"])
@pytest.mark.parametrize("name", CONFIGS)
def test_geometry_and_massive_activations_are_the_same_on_every_backend(name, backend):
    model = model_of(name)
    ours, theirs = (
        si.load(model, backend=b).run(tokens_of(), calls=CALLS, residuals=RESIDUALS) for b in (backend, "huggingface")
    )
    for read in CALLS:
        assert ours.calls[read].shape == (5, len(ATTENTION_LAYERS[name]), 4, 2)
        torch.testing.assert_close(ours.calls[read], theirs.calls[read], rtol=1e-5, atol=1e-5)
    for read in RESIDUALS:
        assert ours.residuals[read].shape == (5, 4)
        torch.testing.assert_close(ours.residuals[read], theirs.residuals[read], rtol=1e-5, atol=1e-5)


def test_a_planted_spike_is_a_massive_activation_from_its_block_on():
    model = model_of("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.bias[7] = 5000.0
    reads = {"massive": lambda x: massive.is_massive(x).any(-1).any(-1), "norm": norms.vector_norms}
    found = si.load(model).run(tokens_of(), residuals=reads).residuals["massive"]
    assert found.tolist() == [[False, False, True, True]] * 5
    assert massive.lifetime(found[0]).first == 2
