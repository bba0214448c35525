"""What edits leave of a sink and of the loss."""

import pytest
import torch
from sinkinterp._experiments.shared.cases import OUR_SEQUENCES, open_case

import sinkinterp as si
from experiments import normalisation_patch
from experiments.shared.effects import (
    ENTRIES,
    LEFT,
    LOSS_CHANGE,
    MASSIVE_TOKENS,
    NONE,
    OTHER,
    OTHER_AT,
    OTHER_EXCESS,
    REASON,
    Effects,
    Entry,
    without,
)
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.progress import silent
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import ChangeResidual, Scale, Zero, ZeroKeyBias
from sinkinterp.metrics.instruments import LOSS
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS

TOKENS = torch.randint(1024, (5, 13), generator=torch.Generator().manual_seed(3))
EDIT = ChangeResidual(Scale(3.0), layers=[1], positions=[0])


@pytest.fixture(scope="module")
def subject():
    return si.load("sinkinterp/text-softmax-48k")


@pytest.fixture(scope="module")
def rows(subject):
    edits = {"scaled": [[EDIT]], "mean": [[], [EDIT]], "biases": [[ZeroKeyBias()]]}
    effects = Effects(positions=(0, 3), layers=(1, 2), epsilon=0.1)
    return {row["edit"]: row for row in effects.rows(subject, TokenSet.of(TOKENS), edits)}


def test_the_first_row_is_the_untouched_model(rows):
    assert next(iter(rows)) == NONE and rows[NONE][LOSS_CHANGE] == 0


def test_effects_are_those_of_a_measurement_in_the_chosen_layers(subject, rows):
    report = si.measure(subject, TOKENS, edits=[EDIT], instruments=[LOSS])
    alpha = report.importance[:, 1:, :, 3]
    assert rows["scaled"]["alpha_4"] == pytest.approx(alpha.mean().item(), abs=1e-6)
    assert rows["scaled"]["Sink_4"] == pytest.approx((alpha > 0.1).float().mean().item(), abs=1e-6)
    assert rows["scaled"]["null alpha_4"] == pytest.approx(report.null[:, 1:, :, 3].mean().item(), abs=1e-6)


def test_predictions_at_the_edited_positions_do_not_count(subject, rows):
    losses = [si.measure(subject, TOKENS, edits=edits, instruments=[LOSS]) for edits in ([], [EDIT])]
    before, after = (report.extra(NEXT_TOKEN_LOSS)[:, [1, 2, *range(4, 12)]].mean().item() for report in losses)
    assert rows[NONE]["loss"] == pytest.approx(before, abs=1e-5)
    assert rows["scaled"][LOSS_CHANGE] == pytest.approx(after - before, abs=1e-5) and abs(after - before) > 1e-3


def test_several_runs_count_by_their_mean(rows):
    for quantity in ("alpha_1", "loss"):
        mean = (rows[NONE][quantity] + rows["scaled"][quantity]) / 2
        assert rows["mean"][quantity] == pytest.approx(mean, abs=1e-6)


def test_what_a_model_lacks_is_an_empty_row_with_a_reason(rows):
    assert rows["biases"]["Sink_1"] is None and rows["biases"][REASON] == "layer 0 has no such bias to zero"
    assert all(row[REASON] == "" for name, row in rows.items() if name != "biases")


def test_the_strongest_other_position_is_that_of_a_measurement(subject, rows):
    report = si.measure(subject, TOKENS, edits=[EDIT])
    alphas, nulls = (values[:, 1:].mean((0, 1, 2)) for values in (report.importance, report.null))
    seen = [p for p in range(11) if p not in (0, 3)]  # 3 of 13 queries see the 11th
    at = max(seen, key=alphas.__getitem__)
    row = rows["scaled"]
    assert (row[OTHER_AT], row[OTHER]) == (at + 1, pytest.approx(alphas[at].item(), abs=1e-6))
    assert row[OTHER_EXCESS] == pytest.approx((alphas[at] - nulls[at]).item(), abs=1e-6)
    assert row[MASSIVE_TOKENS] == 0


@pytest.mark.parametrize(("layers", "is_gone"), [([1], False), ([1, 2], True)])
def test_an_entry_that_a_later_block_writes_again_is_seen_behind_one_edit(subject, layers, is_gone):
    zero = ChangeResidual(Zero(), layers=layers, positions=[0], dims=[5])
    row = Effects(entries=(Entry(0, 5, 1),)).rows(subject, TokenSet.of(TOKENS), {"zero": [[zero]]})[1]
    by_block = [float(x) for x in str(row[ENTRIES]).partition(": ")[2].split()]
    assert len(by_block) == 3 and by_block[1] == 0 and by_block[0] != 0
    assert (row[LEFT] == 0) is is_gone and row[LEFT] == pytest.approx(abs(by_block[2]), rel=0.01)


def test_columns_are_left_out_by_the_beginning_of_their_names():
    assert without([{"raw a": 1, "a": 2, "b": 3}], "raw ", "b") == [{"a": 2}]


def test_normalisation_patches_read_the_untouched_model_once(monkeypatch):
    untouched, run = [], HuggingFaceSubject.run

    def counted(self, tokens, *, edits=(), **options):
        untouched.extend([] if edits else tokens.tolist())
        return run(self, tokens, edits=edits, **options)

    monkeypatch.setattr(HuggingFaceSubject, "run", counted)
    table = normalisation_patch.measure(open_case("sinkinterp/demo-softmax"), silent)
    assert len(untouched) == OUR_SEQUENCES and len(table.frame["layers"].tolist()) > 10
