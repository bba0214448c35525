"""Models at the edge of what can be measured: weights of zeros, no blocks, weights that are no plain tensors."""

import pytest
import torch
from backends.own_modules import VOCAB as OWN_VOCAB, Litgpt, NanoGPT
from backends.zoo import VOCAB, model_of
from refusals import refused

import sinkinterp as si
from sinkinterp.interventions import ZeroKeyBias
from sinkinterp.measurement.parity import dense_patterns

TOKENS = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def zeroed(name, *parts):
    """A model in which the weights and biases of modules whose names end so are zeros."""
    model = model_of(name)
    chosen = [module for path, module in model.named_modules() if path.endswith(parts)]
    assert chosen
    for weight in (weight for module in chosen for weight in module.parameters()):
        weight.zero_()
    return model


@pytest.mark.parametrize("backend", ["huggingface", "transformer_lens", "nnsight"])
@pytest.mark.parametrize(("name", "parts"), {
    "no attention": ("gpt2", ("attn.c_proj",)),
    "in one block": ("gpt2", ("h.1.attn.c_proj",)),
    "identity": ("llama", ("o_proj", "down_proj")),
    "no logits": ("llama", ("lm_head",)),
}.values(), ids=str)  # fmt: skip
def test_weights_of_zeros_are_measured_as_eager_attention_has_them(name, parts, backend):
    model = zeroed(name, *parts)
    expected = dense_patterns(model, TOKENS)
    report = si.measure(si.load(model, backend=backend), TOKENS)
    watchers = torch.arange(11, 0, -1)
    assert torch.allclose(report.importance, expected.sum(-2) / watchers, atol=1e-5)


@pytest.mark.parametrize(("kind", "ending"), [(NanoGPT, "attn.c_proj.weight"), (Litgpt, "o_proj.weight")])
def test_a_module_of_ones_own_may_begin_with_output_projections_of_zeros(kind, ending):
    module = kind().eval()
    projections = [weight for name, weight in module.named_parameters() if name.endswith(ending)]
    for weight in projections:
        weight.data.zero_()
    assert projections
    tokens = TOKENS % OWN_VOCAB
    report = si.measure(si.load(module), tokens)
    assert not any(weight.any() for weight in projections)
    for weight in projections:  # the first layer's attention does not depend on what it returns
        weight.data.normal_()
    assert torch.allclose(report.importance[:, 0], si.measure(si.load(module), tokens).importance[:, 0], atol=1e-6)


def test_an_edit_that_is_lost_in_a_block_that_does_mix_positions_is_still_refused(monkeypatch):
    """A model that computes attention by itself beside the interface: what the interface returns is dropped."""
    model = model_of("llama")
    attention = model.model.layers[1].self_attn
    plain, inside = attention.forward, attention.o_proj.forward
    attention.o_proj.forward = lambda x: inside(torch.ones_like(x))
    attention.forward = lambda hidden_states, *args, **kwargs: (
        plain(hidden_states, *args, **kwargs)[0] + hidden_states.cumsum(1), None
    )  # fmt: skip
    refused(lambda: si.load(model), "block 1")


def test_a_model_without_blocks_is_refused():
    model = model_of("llama")
    model.model.layers, model.config.num_hidden_layers = torch.nn.ModuleList(), 0
    refused(lambda: si.load(model), "no blocks")


def test_an_embedding_without_its_sizes_is_refused_by_name():
    model = model_of("llama")

    model.set_input_embeddings(torch.nn.Sequential(model.get_input_embeddings()))
    refused(lambda: si.load(model), "Sequential")


def test_weights_in_several_processes_are_refused_where_they_are_edited():
    model = model_of("qwen2")
    subject = si.load(model)
    model.model.layers[1].self_attn.k_proj.weight.device_mesh = "as a DTensor has it"
    refused(lambda: subject.run(TOKENS, edits=[ZeroKeyBias()]), "DTensor")
    subject.run(TOKENS)
