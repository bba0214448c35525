"""Passes run the blocks, and compute the logits, that somebody reads, and no others."""

from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from backends.zoo import model_of
from sinkinterp._experiments.shared.spread import changes

import sinkinterp as si
from sinkinterp.backends.anatomy import removed_after
from sinkinterp.backends.frozen import frozen
from sinkinterp.backends.load import load
from sinkinterp.interventions import ChangeMLP, ChangeResidual
from sinkinterp.measurement import measure as inputs
from sinkinterp.measurement.explaining import DRAWS
from sinkinterp.measurement.patching import logit_difference
from sinkinterp.measurement.path_patching import path_patching

T = 7
CLEAN, CORRUPTED = (torch.randint(89, (3, T), generator=torch.Generator().manual_seed(i)) for i in (1, 2))
EACH = 2 * len(CLEAN)  # passes of a place: every pair, patched from the clean run and from another pair's


@pytest.fixture
def subject(monkeypatch):
    monkeypatch.setitem(inputs.BUSY, "cpu", 1)  # one sequence a pass
    subject = load(model_of("llama with biases"))
    subject.run(CLEAN, blocks=range(1))  # tries once whether blocks can be left out
    return subject


@contextmanager
def counted(subject):
    """In how many sequences each layer attends, and of how many positions logits are computed, by `logits`."""
    counts = Counter()

    def attended(layer, module, args, output):
        counts[layer] += len(output[0])

    def predicted(module, args, output):
        counts["logits"] += output.shape[0] * output.shape[1]

    attention = [block.self_attn for block in subject.modules.blocks]
    hooks = [module.register_forward_hook(partial(attended, layer)) for layer, module in enumerate(attention)]
    with removed_after([*hooks, subject.model.lm_head.register_forward_hook(predicted)]):
        yield counts


def test_a_patch_runs_no_block_before_it(subject):
    with counted(subject) as counts:
        si.activation_patching(
            subject, CLEAN, CORRUPTED, site=ChangeResidual(), metric=logit_difference(11, 13), progress=False
        )
    assert counts[1] - counts[0] == counts[2] - counts[1] == EACH * T


def test_a_direct_path_runs_the_block_of_its_sender_alone(subject, monkeypatch):
    monkeypatch.setattr(si.measurement.activation_patching, "OTHERS", 0)
    with counted(subject) as counts:
        path_patching(
            subject, CLEAN, CORRUPTED, sender=ChangeMLP(layers=[1]), metric=logit_difference(11, 13), progress=False
        )
    assert counts[0] == counts[2] == counts[1] - EACH * T


def test_a_cut_runs_no_block_behind_its_head_and_logits_are_those_of_one_pass(subject):
    with counted(subject) as counts:
        answer = si.explain(subject, CLEAN, head=(1, 1), progress=False)
    assert len(answer.cuts.frame) == 4 and answer.path is None
    assert counts[1] - counts[2] == (1 + DRAWS) * len(CLEAN)
    assert counts["logits"] == len(CLEAN) * T + counts[1] - len(CLEAN)  # others compute the last position's


def test_reads_compute_no_logits(subject):
    with counted(subject) as counts:
        si.hidden_states(subject, CLEAN)
        si.attention_weights(subject, CLEAN)
        with frozen(subject, CLEAN):
            pass
    assert counts["logits"] == 3 * len(CLEAN)


def test_of_a_changed_text_no_logits_are_computed(subject):
    with counted(subject) as counts:
        changes(subject, CLEAN, CORRUPTED, 1)
    assert counts["logits"] == len(CLEAN) * (T + 1)


def test_a_trial_of_leaving_out_blocks_that_is_interrupted_tells_nothing():
    subject, runs = load(model_of("llama with biases")), []

    def interrupt(block, args):
        runs.append(block)
        if len(runs) == 2:
            raise KeyboardInterrupt

    with (
        removed_after([subject.modules.blocks[-1].register_forward_pre_hook(interrupt)]),
        pytest.raises(KeyboardInterrupt),
    ):
        subject.run(CLEAN, blocks=range(1, 2))
    assert "leaves_out_blocks" not in subject.__dict__
    subject.run(CLEAN, blocks=range(1, 2))
    assert subject.__dict__["leaves_out_blocks"] is True
