"""Tolerances are shares of the size of what they compare: what is accepted does not depend on the scale of a head."""

import itertools
from functools import cache

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import CONFIGS, model_of, subject_of, tokens_of
from refusals import refused
from transformer_lens.model_bridge import sources

import sinkinterp as si
from sinkinterp.attention.shapes import Gap
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import BACKENDS
from sinkinterp.measurement.parity import parity

SCALES = (1e3, 1e-3)
every_scale = pytest.mark.parametrize("scale", SCALES)
# every architecture at both scales, and the backends by turns
PAIRS = [(name, scale) for name in CONFIGS for scale in SCALES]
BY_TURNS = [(*pair, backend) for pair, backend in zip(PAIRS, itertools.cycle(BACKENDS), strict=False)]


@torch.no_grad()
def scaled(model, scale):
    """The model, whose logits are `scale` times as large before a softcap."""
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight * scale)  # no longer tied to the embedding
    model.config.tie_word_embeddings = False
    return model


@cache
def plain_importance(name, backend):
    return si.measure(subject_of(name, backend), tokens_of(), progress=False).importance


@pytest.mark.parametrize(("name", "scale", "backend"), BY_TURNS)
def test_the_scale_of_a_head_changes_no_acceptance(name, scale, backend):
    subject = si.load(scaled(model_of(name), scale), backend=backend)
    assert subject.shape == subject_of(name, backend).shape
    importance = si.measure(subject, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, plain_importance(name, backend), rtol=0, atol=1e-6)


@every_scale
def test_the_gate_of_parity_is_relative(scale):
    rows = parity(scaled(model_of("llama"), scale), "llama").records()
    assert all(row["verdict"] == "agrees" and row["largest number"] >= 0 for row in rows)


@every_scale
def test_patching_accepts_every_scale(scale):
    model = scaled(model_of("llama"), scale)
    clean, corrupted = tokens_of()[:1], tokens_of()[1:2]
    shares = [
        si.activation_patching(each, clean, corrupted, metric=lambda logits: logits[:, -1, 3], progress=False)
        for each in (model, model_of("llama"))
    ]
    for ours, theirs in zip(*(table.frame["restored"].tolist() for table in shares), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("scale", (1.0, *SCALES))
def test_a_bridge_that_is_wrong_is_refused_at_every_scale_with_the_difference_and_the_size(scale, monkeypatch):
    model = scaled(model_of("llama"), scale)
    honest = sources.build_bridge_from_module

    def damaged(copied, *args, **kwargs):
        with torch.no_grad():
            copied.model.layers[1].mlp.down_proj.weight[3] += 0.05
        return honest(copied, *args, **kwargs)

    monkeypatch.setattr(sources, "build_bridge_from_module", damaged)
    refused(lambda: si.load(model, backend="transformer_lens"))


@pytest.mark.parametrize("scale", (1.0, *SCALES))
def test_a_backend_that_is_wrong_is_refused_at_every_scale(scale, monkeypatch):
    honest = HuggingFaceSubject._pass

    def wrong(self, tokens, recorder, **positions):
        return honest(self, tokens, recorder, **positions) * 1.001

    monkeypatch.setattr(HuggingFaceSubject, "_pass", wrong)
    refused(lambda: si.load(scaled(model_of("llama"), scale)))


@every_scale
def test_the_scale_of_an_own_module_changes_no_acceptance(scale):
    torch.manual_seed(0)
    model = NanoGPT().eval()
    plain = si.load(model).shape
    with torch.no_grad():
        model.norm.weight.mul_(scale)
        model.norm.bias.mul_(scale)
    assert si.load(model).shape == plain


def test_a_gap_by_hand():
    right = torch.tensor([3.0, -4.0])
    gap = Gap.of(torch.tensor([3.0, -4.5]), right)
    assert gap == Gap(0.5, 4.0) and gap.is_within(0.125) and not gap.is_within(0.12)
    assert str(gap) == "off by 0.5 where the largest is 4"
    assert Gap.of(right[:1], right).difference == torch.inf
    assert Gap.of(torch.tensor([torch.nan]), torch.tensor([1.0])).difference == torch.inf
    assert Gap.of(torch.zeros(3), torch.zeros(3)).is_within(1e-9)
