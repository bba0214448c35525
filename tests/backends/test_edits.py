"""Every site of an edit, on every architecture and backend; reads see what edits put there."""

import copy
from collections import defaultdict
from functools import partial

import pytest
import torch
from backends.own_modules import VOCAB as OWN_VOCAB, NanoGPT
from backends.zoo import VOCAB, model_of, subject_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.anatomy import blocks_of
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.backends.recorder import Recorder
from sinkinterp.interventions.changes import ClampNorm
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.patching import activations, patch
from sinkinterp.metrics.residuals import UPDATE_RANK


@pytest.mark.parametrize("backend", BACKENDS)
def test_edits_follow_each_other_and_reads_and_logits_see_the_last(backend):
    twice, more = iv.ChangeResidual(iv.Scale(2.0), layers=[3]), iv.ChangeResidual(lambda x: x + 1, layers=[3])
    subject = subject_of("gpt2", backend)

    def run(*edits):
        trace = subject.run(tokens_of(), reads={"x": RESIDUAL.read(torch.clone)}, edits=edits)
        return trace["x"][:, 3], trace.logits

    (plain, _), (first, logits), (second, _) = run(), run(twice, more), run(more, twice)
    torch.testing.assert_close((first, second), (2 * plain + 1, 2 * (plain + 1)))
    by_hand = subject.run(tokens_of(), edits=iv.ChangeResidual(iv.Put({3: 2 * plain + 1}), layers=[3])).logits
    torch.testing.assert_close(logits, by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_that_is_deaf_to_an_edit_is_refused_and_a_bridge_names_another_backend(backend, monkeypatch):
    honest = Recorder.output
    monkeypatch.setattr(Recorder, "output", lambda self, call, z: (honest(self, call, z), z)[call.layer == 2])
    message = refused(lambda: load(model_of("llama"), backend=backend), "attention output of block 2")
    assert ("use the Hugging Face backend" in message) == (backend == "transformer_lens")


def test_a_layer_that_gives_its_slot_all_attention_is_not_deaf():
    model = build(VARIANTS["sink_logit"])
    (logit,) = [p for name, p in model.named_parameters() if "logit" in name]
    with torch.no_grad():
        logit.fill_(40)  # e^40 to 1 against every token
    assert load(model).shape.n_layers == 1


SITES = (sites.RESIDUAL, sites.MLP, sites.QUERIES, sites.KEYS, sites.VALUES, sites.OUTPUT)
OF_MODULES = (sites.ATTENTION_INPUT, sites.NEURONS)  # found by the names that modules have in transformers
SUBJECTS = [(name, backend) for name in ("gpt2", "llama with grouped queries", "opt") for backend in BACKENDS]


def given(name, backend):
    """The subject, and 3 sequences of 7 ids."""
    if backend == "own":
        torch.manual_seed(0)
        return si.load(NanoGPT().eval()), torch.randint(OWN_VOCAB, (3, 7), generator=torch.Generator().manual_seed(0))
    return subject_of(name, backend), torch.randint(VOCAB, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "backend"), [*SUBJECTS, ("nanoGPT", "own")])
def test_a_read_returns_what_an_edit_put_there(name, backend):
    subject, ids = given(name, backend)
    for site in SITES if backend == "own" else SITES + OF_MODULES:
        plain = activations(iv.Change(site), subject, ids)
        assert all(x.abs().max() > 1e-3 for x in plain.values()), site
        zeroed = activations(iv.Change(site), subject, ids, edits=[iv.Change(site, iv.Zero())])
        assert all(x.eq(0).all() for x in zeroed.values()), site
        layer = sorted(plain)[-1]
        edit = iv.Change(site, iv.SetTo(0.75), layers=[layer], positions=[2])
        constant = activations(iv.Change(site), subject, ids, edits=[edit])
        assert constant[layer][..., 2, :].eq(0.75).all()
        assert constant[layer][..., 1, :].equal(plain[layer][..., 1, :])
    last = max(subject.shape.attention_layers)
    pattern = activations(iv.Change(sites.PATTERN), subject, ids, edits=[iv.RemoveColumn(positions=[0], layers=[last])])
    assert pattern[last][..., 1:, 0].eq(0).all()


@pytest.mark.parametrize(("name", "attention", "matrix"), [
    ("gpt2", "attn", "mlp.c_proj"), ("llama with grouped queries", "self_attn", "mlp.down_proj"),
    ("opt", "self_attn", "fc2"),
])  # fmt: skip
def test_attention_reads_its_input_and_the_output_matrix_the_neurons_on_every_backend(name, attention, matrix):
    model, seen = copy.deepcopy(subject_of(name, "huggingface").model), defaultdict(list)
    ids = given(name, "huggingface")[1]

    def keep(module, args, kwargs, site):
        seen[site].append(args[0] if args else kwargs["hidden_states"])

    for block in blocks_of(model):
        for site, module in {sites.ATTENTION_INPUT: attention, sites.NEURONS: matrix}.items():
            block.get_submodule(module).register_forward_pre_hook(partial(keep, site=site), with_kwargs=True)
    with torch.no_grad():
        model(ids)
    for backend in BACKENDS:
        subject = subject_of(name, backend)
        for site in OF_MODULES:
            read = subject.run(ids, reads={"x": iv.Change(site).read()})["x"]
            expected = torch.stack([x.view(*ids.shape, -1) for x in seen[site]], 1)
            torch.testing.assert_close(read, expected, rtol=1e-5, atol=1e-5)
        assert subject.shape.d_mlp == seen[sites.NEURONS][0].shape[-1]
        refused(partial(subject.run, ids, edits=[iv.Change(sites.NEURONS, iv.Zero(), dims=[subject.shape.d_mlp])]))


@pytest.mark.parametrize("site", OF_MODULES)
def test_a_site_that_a_model_does_not_show_is_refused_by_name(site):
    subject, ids = given("", "own")
    for wanted in ({"reads": {"x": iv.Change(site).read()}}, {"edits": [iv.Change(site, iv.Zero())]}):
        refused(partial(subject.run, ids, **wanted), f"not every block shows its {site.label}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_patch_takes_from_an_edited_run_is_edited(backend):
    subject, ids = given("gpt2", backend)
    zero, site = iv.ChangeOutputs(iv.Zero(), layers=[1]), iv.ChangeOutputs(layers=[1])
    put = patch(site, subject, ids, edits=[zero])
    patched = subject.run(ids, edits=[put]).logits
    torch.testing.assert_close(patched, subject.run(ids, edits=[zero]).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_an_edit_makes_write_one_direction_have_an_update_of_rank_one(backend):
    subject, ids = given("llama with grouped queries", backend)
    edits = [iv.ChangeOutputs(iv.SetTo(0.5))]
    report = si.measure(subject, ids, instruments=si.measurement.instruments.GEOMETRY, edits=edits)
    rank = report.extra(UPDATE_RANK)
    torch.testing.assert_close(rank, torch.ones_like(rank))
    assert si.measure(subject, ids, instruments=si.measurement.instruments.GEOMETRY).extra(UPDATE_RANK).mean() > 1.3


def test_queries_that_a_model_scales_before_the_call_are_shown_as_they_were():
    model, reads = model_of("opt"), {"q": lambda call: call.q}
    seen = []
    handle = model.model.decoder.layers[1].self_attn.q_proj.register_forward_hook(lambda *args: seen.append(args[2]))
    trace = load(model).run(tokens_of(), reads=reads)
    handle.remove()
    torch.testing.assert_close(trace["q"][:, 1].transpose(1, 2).flatten(2), seen[-1])


OPERATIONS = (iv.Zero(), iv.SetTo(0.7), iv.Scale(2.0), ClampNorm(0.1), iv.MeanOfOthers(), iv.SwapWith(1, 4))


@pytest.mark.parametrize("site", [*SITES, sites.PATTERN], ids=repr)
def test_every_operation_means_the_same_on_every_backend_also_where_queries_are_scaled_before_the_call(site):
    subjects = [subject_of("opt", backend) for backend in BACKENDS]
    for operation in OPERATIONS:
        first, *others = (x.run(tokens_of(), edits=[iv.Change(site, operation, layers=[1])]).logits for x in subjects)
        for other in others:
            torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-5)
