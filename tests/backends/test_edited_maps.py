"""Edits of weights reach the map that a layer really computes with, and nothing of a model is written."""

import copy

import pytest
import torch
import torch.nn.functional as F
from backends.test_beside_eager import Int8Linear
from backends.zoo import bare_logits, everything_of, model_of, tokens_of
from refusals import refused
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.checks import InputError
from sinkinterp.interventions.attention_layers import BlindKeys

TOKENS, NAME, MAPS = tokens_of(), "qwen2", ("q_proj", "k_proj", "v_proj")
EDITS = {
    "q_proj": [iv.ZeroQueryBias()],
    "k_proj": [iv.ZeroKeyBias(), BlindKeys([3, 40, 41])],
    "v_proj": [iv.ZeroValueBias()],
}


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Computed(nn.Linear):
    """Its weight and bias are made in the forward pass."""

    def forward(self, x):
        return F.linear(x, 3 * self.weight, 0.5 - self.bias)


def computed(linear):
    made = Computed(linear.in_features, linear.out_features)
    made.load_state_dict(linear.state_dict())
    return made


def parametrised(linear):
    parametrize.register_parametrization(linear, "weight", Twice())
    return parametrize.register_parametrization(linear, "bias", Twice())


KINDS = {
    "weight norm": parametrizations.weight_norm,
    "parametrised": parametrised,
    "computed": computed,
    "packed": Int8Linear,
}


def attentions(model):
    return [layer.self_attn for layer in model.model.layers]


def replaced(model, change, maps=MAPS):
    """A copy of the model whose maps are changed, each by the function."""
    model = copy.deepcopy(model)
    for attention in attentions(model):
        for name in maps:
            setattr(attention, name, change(getattr(attention, name)))
    return model


def plain(linear, edits=()):
    """The `nn.Linear` that computes what a map does, edited by hand."""
    with torch.no_grad():
        bias = linear(torch.zeros(1, 48))[0]
        made = nn.Linear(48, len(bias))
        made.weight.copy_((linear(torch.eye(48)) - bias).T)
        made.bias.copy_(bias)
        for edit in edits:
            if isinstance(edit, BlindKeys):
                made.weight[:, list(edit.dims)] = 0
            else:
                made.bias.zero_()
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_is_that_of_the_linear_map_that_a_layer_computes_whatever_it_keeps(kind, backend):
    model = replaced(model_of(NAME), KINDS[kind])
    subject = load(model, backend=backend)
    for name, edits in EDITS.items():
        oracle = replaced(model, lambda linear, edits=edits: plain(linear, edits), [name])
        expected = si.measure(load(oracle), TOKENS)
        before = everything_of(model)
        found = si.measure(subject, TOKENS, edits=edits)
        torch.testing.assert_close(found.importance, expected.importance, rtol=2e-5, atol=1e-6)
        assert (found.importance - si.measure(subject, TOKENS).importance).abs().max() > 1e-4
        assert everything_of(model) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fused_map_is_edited_in_patched_blocks_of_every_backend_as_in_a_run(backend):
    subject = load(model_of("gpt2"), backend=backend)
    expected = subject.run(TOKENS, edits=[iv.ZeroQueryBias(), iv.ZeroQueryBias(), BlindKeys([3])]).logits
    given = {"huggingface": lambda: subject.model, "nnsight": lambda: subject._envoy}
    wrapped = given.get(backend, lambda: subject.bridge)()
    before = everything_of(subject.model)
    with si.patched(wrapped, iv.ZeroQueryBias()), si.patched(wrapped, iv.ZeroQueryBias(), BlindKeys([3])):
        found = bare_logits(subject.model, TOKENS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert everything_of(subject.model) == before


def test_an_edit_of_one_of_the_layers_that_share_a_projection_leaves_the_other_as_it_is():
    model = copy.deepcopy(model_of(NAME))
    first, second, _ = attentions(model)
    second.k_proj = first.k_proj
    for layer in (0, 1):
        edits = [iv.ZeroKeyBias(layers=[layer]), BlindKeys([5], layers=[layer])]
        own = copy.deepcopy(model)
        attentions(own)[layer].k_proj = plain(first.k_proj, [iv.ZeroKeyBias(), BlindKeys([5])])
        expected = bare_logits(own, TOKENS)
        torch.testing.assert_close(load(model).run(TOKENS, edits=edits).logits, expected, rtol=0, atol=1e-6)
        with si.patched(model, *edits):
            torch.testing.assert_close(bare_logits(model, TOKENS), expected, rtol=0, atol=1e-6)


def test_one_module_that_makes_queries_and_keys_is_no_map_of_keys():
    model = copy.deepcopy(model_of("llama"))
    for attention in attentions(model):
        attention.q_proj = attention.k_proj
    refused(lambda: load(model).run(TOKENS, edits=[BlindKeys([3])]))


def test_a_cast_and_a_step_of_training_inside_a_patched_block_stay_and_the_edit_goes():
    model = copy.deepcopy(model_of(NAME))
    expected = copy.deepcopy(model).to(torch.bfloat16)
    with si.patched(model, iv.ZeroKeyBias()):
        edited = bare_logits(model, TOKENS)
        model.to(torch.bfloat16)
        torch.testing.assert_close(bare_logits(model, TOKENS).float(), edited, rtol=0, atol=0.1)
        with torch.no_grad():
            for own in (model, expected):
                for attention in attentions(own):
                    attention.k_proj.bias.add_(0.5)
        assert (bare_logits(model, TOKENS).float() - edited).abs().max() < 0.1
    assert everything_of(model) == everything_of(expected)
    assert bare_logits(model, TOKENS).equal(bare_logits(expected, TOKENS))


def test_the_weight_of_a_map_is_computed_only_where_an_edit_asks_for_it():
    model, rows = copy.deepcopy(model_of(NAME)), []
    for attention in attentions(model):
        run = attention.k_proj.forward
        attention.k_proj.forward = lambda x, run=run: (rows.append(x.shape[:-1].numel()), run(x))[1]
    subject, n = load(model), TOKENS.numel()
    for edit, expected in ((iv.ZeroKeyBias(), {n, 3}), (BlindKeys([3]), {n, 3, 48})):
        rows.clear()
        subject.run(TOKENS, edits=[edit])
        assert set(rows) == expected


def test_a_large_bias_does_not_round_a_weight_away_in_bfloat16():
    model = copy.deepcopy(model_of(NAME))
    with torch.no_grad():
        for attention in attentions(model):
            attention.k_proj.bias.add_(50)
    model.to(torch.bfloat16)
    own = copy.deepcopy(model)
    with torch.no_grad():
        for attention in attentions(own):
            attention.k_proj.weight[:, ::2] = 0
    found, expected = (
        load(m).run(TOKENS, reads={"k": lambda call: call.k}, edits=edits)["k"][:, 0].float()
        for m, edits in ((model, [BlindKeys(range(0, 48, 2))]), (own, []))
    )
    assert (found - expected).abs().mean() < 0.5  # one step of bfloat16 at 50 is 0.25


class Bent(nn.Linear):
    def forward(self, x):
        return super().forward(x).tanh()


def test_a_map_that_is_not_linear_is_refused_by_name_where_its_weights_are_edited():
    bent = replaced(model_of(NAME), lambda linear: Bent(linear.in_features, linear.out_features), maps=("k_proj",))
    subject = load(bent)
    subject.run(TOKENS, edits=[iv.ChangeKeys(iv.Zero()), iv.ZeroQueryBias()])
    refused(lambda: subject.run(TOKENS, edits=[iv.ZeroKeyBias()]))


def test_a_projection_whose_module_does_not_run_is_refused_by_name():
    model = copy.deepcopy(model_of(NAME))
    for attention in attentions(model):
        inner = attention.k_proj
        attention.k_proj = copy.deepcopy(inner)
        attention.forward = lambda *args, attention=attention, inner=inner, **kwargs: _with(
            attention, inner, *args, **kwargs
        )
    refused(lambda: load(model).run(TOKENS, edits=[iv.ZeroKeyBias()]))
    with pytest.raises(InputError, match="key weights of layer 0"), si.patched(model, iv.ZeroKeyBias()):
        raise AssertionError


def _with(attention, inner, *args, **kwargs):
    """The attention's own forward pass with another module for keys."""
    kept, attention.k_proj = attention.k_proj, inner
    try:
        return type(attention).forward(attention, *args, **kwargs)
    finally:
        attention.k_proj = kept
