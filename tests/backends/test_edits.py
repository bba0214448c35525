"""Every site of an edit, on every architecture and backend."""

from dataclasses import replace

import pytest
import torch
from backends.zoo import ATTENTION_LAYERS, model_of, subject_of, tokens_of
from refusals import refused

from sinkinterp.attention.kernels import Kernel, Sigmoid, Unit
from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends import hooks
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.metrics.importance import importance, slot_importance
from sinkinterp.metrics.residuals import vector_norms

POSITIONS = torch.arange(17)
# test_interventions.py edits every architecture; here are edits that a user wrote
NAMES = ("gpt2", "llama with grouped queries", "gemma2 with softcap", "gpt-oss with sink logits")
NAMES += ("jamba with mamba layers",)


def edit_of(**methods):
    """An edit with these functions as methods; such a class is what a user writes."""
    return type("Mine", (Edit,), {name: staticmethod(method) for name, method in methods.items()})()


def drop_first_column(call):
    """No attention to the first token, its share spread over the others."""
    pattern = call.pattern()
    pattern[:, :, 1:, pattern.shape[-1] - call.k.shape[2]] = 0
    return call.with_pattern(pattern / pattern.sum(-1, keepdim=True))


def sigmoid_in_layer_1(call):
    return replace(call, kernel=Kernel(similarity=Sigmoid(), normaliser=Unit())) if call.layer == 1 else call


SHRINK = edit_of(residual=lambda block, x: x if block != 2 else torch.cat((x[:, :1] / 3, x[:, 1:]), 1))
NEGATE = edit_of(residual=lambda block, x: -x if block == 3 else x)
DROP = edit_of(call=drop_first_column)
SILENCE = edit_of(output=lambda call, z: torch.cat((z[:, :1], torch.zeros_like(z[:, 1:2]), z[:, 2:]), 1))
NOTHING = edit_of(residual=lambda block, x: x, output=lambda call, z: z)


EDITS = (SHRINK, NEGATE, edit_of(call=sigmoid_in_layer_1), DROP, SILENCE)
READS = {"alpha": lambda call: importance(call, POSITIONS), "slot": slot_importance}


def answers(subject, *edits):
    trace = subject.run(tokens_of(), reads={**READS, "norm": RESIDUAL.read(vector_norms)}, edits=edits)
    return {**trace.answers, "logits": trace.logits}


@pytest.mark.parametrize("name", NAMES)
def test_edits_at_every_site_do_the_same_on_every_backend(name):
    subjects = [subject_of(name, backend) for backend in BACKENDS]
    plain = answers(subjects[0])
    for edit in EDITS:
        first, *others = (answers(subject, edit) for subject in subjects)
        assert (first["logits"] - plain["logits"]).abs().max() > 1e-3, edit
        for other in others:
            for read, value in first.items():
                worst = ((value - other[read]).abs() / value.abs().clamp(min=1)).max()
                assert worst < 1e-5, (edit, read, worst)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_that_changes_nothing_changes_no_bit(backend):
    subject = subject_of("llama with grouped queries", backend)
    plain, same = answers(subject), answers(subject, NOTHING)
    assert all(plain[name].equal(same[name]) for name in plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_edits_follow_each_other_and_reads_see_the_last(backend):
    subject = subject_of("gpt2", backend)
    seen = answers(subject, DROP, SILENCE)
    assert seen["alpha"][:, 0, :, 0].mul(17).sub(1).abs().max() < 1e-6  # only the first query is left
    once, twice = answers(subject, NEGATE), answers(subject, NEGATE, NEGATE)
    assert twice["logits"].equal(answers(subject)["logits"]) and not once["logits"].equal(twice["logits"])


def test_a_model_that_is_deaf_to_an_edit_is_refused_with_the_layer(monkeypatch):
    honest = hooks.Recorder.output
    monkeypatch.setattr(hooks.Recorder, "output", lambda self, call, z: (honest(self, call, z), z)[call.layer == 2])
    refused(lambda: load(model_of("llama")))


def test_only_attention_layers_are_edited_in_a_model_with_others():
    assert ATTENTION_LAYERS["jamba with mamba layers"] == (1,)
    edited = answers(subject_of("jamba with mamba layers"), SILENCE)
    assert edited["alpha"].shape[1] == 1


def test_a_layer_that_gives_its_slot_all_attention_is_not_deaf():
    model = build(VARIANTS["sink_logit"])
    (logit,) = [p for name, p in model.named_parameters() if "logit" in name]
    with torch.no_grad():
        logit.fill_(40)  # e^40 to 1 against every token
    assert load(model).shape.n_layers == 1
