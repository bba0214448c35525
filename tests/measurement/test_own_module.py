"""A PyTorch module gives what the same weights give as a model of transformers: metrics and patches."""

import pytest
import torch
from backends.own_modules import VOCAB, Course, NanoGPT, attended, gpt2_of

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.measurement.patching import patch
from sinkinterp.metrics.instruments import INSTRUMENTS

ATTENTION = si.AttentionOf("blocks.*.attn", attended)
IDS, OTHERS = (torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


@pytest.fixture(scope="module", params=["nanoGPT", "course"])
def pair(request):
    """A module's subject, and that of the same weights in transformers."""
    torch.manual_seed(0)
    subject = (
        si.load(NanoGPT())
        if request.param == "nanoGPT"
        else si.load(Course(), parts=si.ModuleParts(attention=ATTENTION))
    )
    return subject, si.load(gpt2_of(subject.model))


def test_every_metric_of_a_module_is_that_of_its_twin(pair):
    assert set(INSTRUMENTS) >= {"GEOMETRY", "MASSIVE", "MAPS", "LOSS"}
    ours, theirs = (si.measure(subject, IDS, instruments=list(INSTRUMENTS.values())) for subject in pair)
    assert len(ours.extras) > 10
    torch.testing.assert_close(ours.tensors(), theirs.tensors(), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("site", [iv.ChangeResidual(), iv.ChangeOutputs(), iv.ChangeMLP(), iv.Change(sites.PATTERN)])
def test_patches_of_a_module_restore_what_those_of_its_twin_do(pair, site):
    ours, theirs = (si.activation_patching(subject, IDS, OTHERS, site=site, progress=False) for subject in pair)
    for mine, other in zip(ours.numbers("restored"), theirs.numbers("restored"), strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
    logits = [subject.run(OTHERS, edits=[patch(site, subject, IDS)]).logits for subject in pair]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
