"""What edits of genuine models did, in the stored rows; the values are those of plain transformers.

Their softmax was written out. Docstrings, T=64; n=16, 12 or 8. Two are measured again where `make models` made them.
"""

import pytest
from pages.shipped import by_stem

import sinkinterp as si
from experiments.shared.effects import LEFT, MASSIVE_TOKENS, NONE, Effects, Entry
from sinkinterp.backends.files.named_models import downloads
from sinkinterp.data.choices import Bos
from sinkinterp.interventions import ChangeResidual, RemoveColumn, Zero
from sinkinterp.metrics.residuals import LEAST
from sinkinterp.runs.case import open_case

SMOLLM2, GEMMA, QWEN = "local/smollm2-135m-instruct", "local/gemma3-270m", "local/qwen2.5-coder-0.5b"
ZERO, ONCE = "massive entries to zero", "massive entries to zero before their first block alone"
POINTS = 0.02  # by which rates may differ from the values: other texts of the same kind; more where these are six


def row(stem, **where):
    (found,) = by_stem()[stem].table.where(**where).records()
    return found


@pytest.mark.parametrize(
    ("edit", "sink", "cost"),
    [
        (NONE, 0.750, 0),
        (ZERO, 0.188, 3.02),
        (ONCE, 0.730, 0.1),
        ("control: others to zero", 0.751, 0),
        ("control: ten others to zero", 0.736, -0.007),
    ],
)
def test_gemmas_massive_entries_at_zero_before_every_block_take_its_sink(edit, sink, cost):
    found = row("removing_massive", model=GEMMA, edit=edit)
    assert found["Sink_1"] == pytest.approx(sink, abs=POINTS)
    assert found["loss change"] == pytest.approx(cost, abs=0.1)


def test_an_edit_before_one_block_leaves_gemmas_entry_and_one_before_every_block_does_not():
    assert row("removing_massive", model=GEMMA, edit=ONCE)[LEFT] > 1000 * LEAST
    assert {row("removing_massive", model=model, edit=ZERO)[LEFT] for model in (SMOLLM2, GEMMA, QWEN)} == {0}


def test_qwens_sink_needs_its_massive_entries():
    assert row("removing_massive", model=QWEN, edit=ZERO)["Sink_1"] == pytest.approx(0.035, abs=POINTS)


EVERYWHERE, BEHIND = "loss, first token hidden in all layers", "loss, first token hidden behind its writer"


@pytest.mark.parametrize(
    ("model", "everywhere", "second", "behind", "left"),
    [(SMOLLM2, 0.10, 0.758, 1.25, 0), (QWEN, 0.10, 0.560, 0.59, 0.049)],
)
def test_hidden_everywhere_the_first_token_leaves_its_sink_to_the_second(model, everywhere, second, behind, left):
    found = row("atlas_of_models", model=model)
    assert found[EVERYWHERE] == pytest.approx(everywhere, abs=0.03)
    assert found[f"{EVERYWHERE}: Sink_2 then"] == pytest.approx(second, abs=0.04)
    assert found[BEHIND] == pytest.approx(behind, abs=0.2)
    assert found[f"{BEHIND}: Sink_2 then"] == pytest.approx(left, abs=POINTS)
    assert found["loss, 11th hidden in all layers"] == pytest.approx(0.08, abs=0.02)


def test_a_start_that_a_model_was_not_trained_with_has_its_loss_beside_it():
    gemma, qwen = (row("atlas_of_models", model=model) for model in (GEMMA, QWEN))
    assert gemma["loss without BOS"] == pytest.approx(7.17, abs=0.5) and gemma["loss with BOS"] == pytest.approx(
        4.16, abs=0.1
    )
    assert qwen["loss with BOS"] - qwen["loss without BOS"] == pytest.approx(0.62, abs=0.15)
    assert qwen["Sink_2 with BOS"] == pytest.approx(0.132, abs=0.06)


@pytest.mark.parametrize(
    ("part", "edit", "sink", "massive"),
    [
        ("all", NONE, 0.551, 1.0),
        ("all", "b_Q = 0", 0.002, None),
        ("all", "control of b_Q = 0", 0.198, None),
        ("the writer's layer", "b_Q = 0", None, 22.0),
        ("behind the writer", "b_Q = 0", 0.025, 1.9),
    ],
)
def test_query_biases_make_qwens_sink_behind_the_writer_and_disperse_it_in_the_writers_layer(part, edit, sink, massive):
    found = row("what_biases_do", row="edit", part=part, edit=edit)
    assert sink is None or found["Sink_1"] == pytest.approx(sink, abs=POINTS)
    assert massive is None or found[MASSIVE_TOKENS] == pytest.approx(massive, abs=1.0)


def made(model):
    name = model.removeprefix("local/")
    return pytest.mark.skipif(not (downloads() / name).is_dir(), reason=f"needs {name}: run make models")


@made(GEMMA)
def test_gemmas_entry_is_written_again_behind_one_edit():
    case = open_case(GEMMA)
    token_set = case.tokens((3, 64), bos=Bos.ALWAYS)
    edits = {
        name: [[ChangeResidual(Zero(), layers=layers, positions=[0], dims=[163, 400])]]
        for name, layers in (("once", [1]), ("every", range(18)))
    }
    rows = Effects(entries=(Entry(0, 163), Entry(0, 400))).rows(case.subject, token_set, edits)
    before, once, every = (found["Sink_1"] for found in rows)
    assert rows[1][LEFT] > 50_000 and rows[2][LEFT] == 0
    assert before > 0.7 and once > 0.65 and every < 0.25


@made(SMOLLM2)
def test_the_second_token_becomes_smollm2s_sink_where_the_first_is_hidden_from_all_layers():
    case = open_case(SMOLLM2)
    tokens = case.tokens((3, 64), bos=Bos.NEVER)
    everywhere, behind = (
        si.measure(case.subject, tokens, edits=[RemoveColumn(layers=layers)]) for layers in (None, range(12, 30))
    )
    assert everywhere.sink_rate(1).mean > 0.6 and behind.sink_rate(1).mean < 0.05
