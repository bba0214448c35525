"""Activation patching between inputs and between checkpoints, exact and to first order."""

from functools import partial

import pytest
import torch
from backends.zoo import LEARNED_POSITIONS, model_of, subject_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp._experiments import load_module
from sinkinterp.attention import sites
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.measurement import measure as batching
from sinkinterp.measurement.patching import activations, attribution, gradients, mean_patch, patch, patches  # fmt: skip
from sinkinterp.metrics.metric import next_token_loss

TOKENS, OTHERS = tokens_of(11), tokens_of(12)[:, 1:]
SITES = (
    iv.ChangeResidual, iv.ChangeMLP, partial(iv.Change, sites.QUERIES), iv.ChangeKeys, iv.ChangeValues,
    iv.ChangeOutputs, partial(iv.Change, sites.PATTERN),
)  # fmt: skip
NAMES = ["gpt2", "llama with grouped queries", "gpt-oss with sink logits"]


def logits(subject, tokens, *edits):
    return subject.run(tokens, edits=edits).logits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_patching_every_residual_gives_the_logits_of_the_source(name, backend):
    subject = subject_of(name, backend)
    theirs = logits(subject, OTHERS)
    assert logits(subject, TOKENS, patch(iv.ChangeResidual(), subject, OTHERS)).equal(theirs)
    last = patch(iv.ChangeResidual(layers=[subject.shape.n_layers]), subject, OTHERS)
    assert logits(subject, TOKENS, last).equal(theirs)


def test_a_measurement_in_batches_patches_every_sequence_with_its_own(monkeypatch):
    subject, site = subject_of("gpt2"), iv.ChangeKeys(layers=[1])
    edit = patch(site, subject, OTHERS)
    whole = si.measure(subject, TOKENS, edits=[edit])
    monkeypatch.setattr(batching, "sequences_per_pass", lambda subject, length: 3)
    torch.testing.assert_close(patch(site, subject, OTHERS).operation.values, edit.operation.values)
    monkeypatch.setattr(batching, "sequences_per_pass", lambda subject, length: 2)
    torch.testing.assert_close(si.measure(subject, TOKENS, edits=[edit]).importance, whole.importance)


def test_one_run_of_the_source_gives_an_edit_for_every_place():
    subject = subject_of("llama with grouped queries")
    cells = patches(iv.ChangeMLP(positions=[0, 5]), subject, OTHERS)
    assert [(cell.layers, cell.positions) for cell in cells] == [((i,), (p,)) for i in range(3) for p in (0, 5)]
    site = iv.ChangeOutputs(layers=[1], positions=[2])
    heads = patches(site, subject, OTHERS)
    assert [cell.heads for cell in heads] == [((1, h),) for h in range(4)]
    whole = logits(subject, TOKENS, patch(site, subject, OTHERS))
    torch.testing.assert_close(logits(subject, TOKENS, *heads), whole)


def test_means_are_of_the_first_position_and_of_all_others():
    subject = subject_of("gpt2")
    (values,) = mean_patch(iv.ChangeResidual(layers=[2]), subject, TOKENS).operation.values.values()
    held = activations(iv.ChangeResidual(layers=[2]), subject, TOKENS)[2]
    torch.testing.assert_close(values[0, 0], held[:, 0].mean(0))
    for position in (1, 7, 10):
        torch.testing.assert_close(values[0, position], held[:, 1:].mean((0, 1)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_attribution_is_patching_where_all_is_linear(backend):
    """The last residual of a model without a final norm: its score is linear, so the first order is everything."""
    model = model_of("llama")
    model.model.norm = torch.nn.Identity()
    subject, site = load(model, backend=backend), iv.ChangeResidual(layers=[3])
    weights = torch.randn(97, generator=torch.Generator().manual_seed(2))

    def score(logits, tokens):
        return (logits @ weights).sum(1)

    source = activations(site, subject, OTHERS)
    first_order = attribution(site, subject, TOKENS, source, score)[3]
    before = score(logits(subject, TOKENS), TOKENS)
    for position in (0, 3, 10):
        (cell,) = patches(iv.ChangeResidual(layers=[3], positions=[position]), subject, OTHERS)
        exact = score(logits(subject, TOKENS, cell), TOKENS) - before
        torch.testing.assert_close(first_order[:, position], exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("site", SITES[:-1])
def test_attribution_of_a_small_step_is_the_change_it_makes(site):
    subject, step = subject_of("gpt2"), 1e-3
    own, theirs = (activations(site(layers=[1]), subject, tokens)[1] for tokens in (TOKENS, OTHERS))
    near = {1: own + step * (theirs - own)}

    def score(logits, tokens):
        return logits.double().logsumexp(-1).sum(1)

    first_order = attribution(site(layers=[1]), subject, TOKENS, near, score)[1].flatten(1).sum(1)
    edit = si.interventions.Put(near)
    exact = score(logits(subject, TOKENS, site(edit, layers=[1])), TOKENS) - score(logits(subject, TOKENS), TOKENS)
    torch.testing.assert_close(first_order, exact.float(), rtol=0.05, atol=2e-5)


@pytest.mark.parametrize("name", LEARNED_POSITIONS)
def test_the_effective_position_is_what_the_first_feed_forward_makes_of_a_position_alone(name):
    subject = subject_of(name)
    circuit = load_module("gpt2_circuit")
    edit = circuit.swap_effective_position(subject, 0, 3, 11)
    raw = circuit.swap_raw_position(subject, 0, 3, 11)
    (added,), (plain,) = edit.operation.values.values(), raw.operation.values.values()
    offset, table = {"gpt2": (0, "transformer.wpe"), "opt": (2, "model.decoder.embed_positions")}[name]
    rows = subject.model.get_submodule(table).weight[offset : offset + 11]
    torch.testing.assert_close(plain[0, 0], (rows[3] - rows[0]).detach())
    assert added[:, [1, 2, 4, 10]].eq(0).all() and added[0, 0].equal(-added[0, 3])
    if name == "gpt2":
        block = subject.model.transformer.h[0]
        alone = rows + block.attn.c_proj.bias
        effective = (alone + block.mlp(block.ln_2(alone))).detach()
        torch.testing.assert_close(added[0, 0], effective[3] - effective[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama with grouped queries"])
def test_gradients_are_those_of_plain_transformers(name):
    model = model_of(name).eval()
    out = model(TOKENS, labels=TOKENS, output_hidden_states=True)
    expected = torch.autograd.grad(out.loss * len(TOKENS), out.hidden_states[:-1])  # the mean of equal lengths
    found = gradients(
        iv.ChangeResidual(), load(model), TOKENS, lambda logits, ids: next_token_loss(logits, ids).mean(1)
    )
    for layer, of_layer in enumerate(expected):
        torch.testing.assert_close(found[layer], of_layer, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("use", [activations, patch, patches, mean_patch])
def test_a_site_that_changes_something_is_refused_where_it_would_only_be_read(use):
    refused(lambda: use(iv.ChangeResidual(iv.Zero(), layers=[1]), subject_of("gpt2"), TOKENS), "Zero")


def test_attribution_reads_the_layers_of_its_site_of_all_that_were_taken():
    subject = subject_of("llama")
    source = activations(iv.ChangeResidual(), subject, TOKENS.roll(1, 0))
    whole, some = (attribution(site, subject, TOKENS, source, lambda logits, tokens: logits[:, -1, 5])
                   for site in (iv.ChangeResidual(), iv.ChangeResidual(layers=[1])))  # fmt: skip
    assert list(some) == [1]
    torch.testing.assert_close(some[1], whole[1])
    refused(lambda: attribution(iv.ChangeResidual(), subject, TOKENS, source, lambda logits: logits), "logits")
