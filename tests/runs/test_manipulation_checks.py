"""What edits of genuine models did, in the stored rows; the values are those of plain transformers.

Their softmax was written out. Docstrings, T=64; n=16, 12 or 8. Two are measured again where `make models` made them.
"""

import re
from dataclasses import dataclass

import pytest
from pages.shipped import by_stem
from sinkinterp._experiments.shared.cases import open_case

import sinkinterp as si
from experiments.shared.effects import LEFT, MASSIVE_TOKENS, NONE, OTHER_EXCESS, Effects, Entry
from sinkinterp.attention.sites import RESIDUAL, Edit
from sinkinterp.backends.files.named_models import downloads
from sinkinterp.data.choices import Bos
from sinkinterp.interventions import ChangeResidual, RemoveColumn, Zero
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.residuals import LEAST
from sinkinterp.runs.experiment import Outcome

SMOLLM2, GEMMA, QWEN = "local/smollm2-135m-instruct", "local/gemma3-270m", "local/qwen2.5-coder-0.5b"
MOVED = "its key and value"
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


def test_qwens_sink_needs_its_massive_entries_whichever_way_they_are_edited():
    assert row("removing_massive", model=QWEN, edit=ONCE)["Sink_1"] == pytest.approx(0.033, abs=POINTS)
    assert row("removing_massive", model=QWEN, edit=ZERO)["Sink_1"] == pytest.approx(0.035, abs=POINTS)


@pytest.mark.parametrize(
    ("edit", "sink", "loss"),
    [
        (ZERO, 0.592, 16.7),
        ("massive entries to zero before all blocks", 0.359, 10.6),
        ("massive entries and the next largest to zero", 0.555, 14.0),
    ],
)
def test_smollm2s_number_depends_on_where_its_edit_begins_and_is_of_a_broken_model(edit, sink, loss):
    """The issue has 44.0% for both dimensions, 507 and 247. No choice of ours gave it; these two enclose it."""
    found = row("removing_massive", model=SMOLLM2, edit=edit)
    assert found["Sink_1"] == pytest.approx(sink, abs=POINTS) and found[LEFT] == 0
    assert (
        found["loss"] == pytest.approx(loss, abs=0.5) and row("removing_massive", model=SMOLLM2, edit=NONE)["loss"] < 4
    )


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


@pytest.mark.parametrize(
    ("stem", "column", "where", "cost"),
    [
        ("normalisation_patch", "loss change", {"edit": "first column dropped", "layers": "all"}, 0.98),
        ("atlas_of_models", "loss of a cache that keeps 0", {}, 1.78),
        ("removing_massive", "loss change", {"edit": ZERO}, 12.6),
        ("atlas_of_models", EVERYWHERE, {}, 0.10),
    ],
)
def test_the_four_other_costs_of_smollm2s_first_token_have_rows_of_their_own(stem, column, where, cost):
    assert row(stem, model=SMOLLM2, **where)[column] == pytest.approx(cost, rel=0.02, abs=0.03)


def test_a_dropped_or_a_hidden_column_leaves_another_sink_and_its_row_says_so():
    for model, dropped in ((SMOLLM2, 0.155), (QWEN, 0.077)):
        found = row("normalisation_patch", model=model, layers="all", edit="first column dropped")
        assert found[OTHER_EXCESS] == pytest.approx(dropped, abs=POINTS) and found["its position"] == 2


def test_a_dropped_column_fails_in_gemma_3_and_is_refused_where_the_second_token_is_a_sink_then():
    verdicts = by_stem()["normalisation_patch"].verdicts
    dropped = [verdict for verdict in verdicts if verdict.claim.startswith("first column dropped in all")]
    assert [verdict.outcome for verdict in dropped] == [Outcome.FAILS, Outcome.FAILS]
    for verdict in dropped:
        refused, _, failed = verdict.reason.partition("; fails: ")
        assert refused.startswith(f"refused: in {SMOLLM2}") and QWEN in refused and failed.startswith(GEMMA)


@pytest.mark.parametrize("model", [SMOLLM2, GEMMA, QWEN])
def test_a_first_token_as_short_as_the_others_does_not_keep_its_direction_so_its_rule_is_refused(model):
    found = row("removing_massive", model=model, edit="as long as the other tokens, in its direction")
    assert found["least cosine with the untouched token"] < 0.2
    assert found["largest length over the others' median"] == pytest.approx(1, abs=1e-3)
    verdict = by_stem()["removing_massive"].verdicts[-1]
    assert verdict.outcome is Outcome.REFUSED and model in verdict.reason


def test_every_bias_at_zero_and_its_control_say_how_many_tokens_are_massive():
    rows = by_stem()["what_biases_do"].table.where(row="edit").records()
    assert all(found[MASSIVE_TOKENS] is not None for found in rows)
    assert {found["edit"] for found in rows if found[MASSIVE_TOKENS] > 4} == {"b_Q = 0", "control of b_Q = 0"}


def test_over_mixing_counts_a_condition_as_no_sink_only_where_no_position_is_above_its_null():
    table = by_stem()["over_mixing"].table.where(place="last output")
    hidden = table.where(edit="every key that is a sink then hidden behind the writer").records()
    assert {found["model"] for found in hidden} == {SMOLLM2, GEMMA, QWEN}
    assert all(found[OTHER_EXCESS] <= 0.05 for found in hidden if found["input"] == "C4")
    everywhere = table.where(edit="first key hidden from all layers", input="C4", T=64).records()
    assert [found["its position"] for found in everywhere if found[OTHER_EXCESS] > 0.05] == [2, 2]
    controls = table.where(edit="control: another key hidden").records()
    for found, control in zip(hidden, controls, strict=True):
        assert found["times the first low"] > control["times the first high"]
        assert found["loss change low"] > control["loss change high"]


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
        ("the writer's layer", "b_Q = 0", None, 22.9),
        ("behind the writer", "b_Q = 0", 0.025, 1.9),
    ],
)
def test_query_biases_make_qwens_sink_behind_the_writer_and_disperse_it_in_the_writers_layer(part, edit, sink, massive):
    found = row("what_biases_do", row="edit", part=part, edit=edit)
    assert sink is None or found["Sink_1"] == pytest.approx(sink, abs=POINTS)
    assert massive is None or found[MASSIVE_TOKENS] == pytest.approx(massive, abs=0.2, rel=0.1)


def test_gemmas_sink_is_on_the_token_bos_in_tenth_place_too():
    found = row("windows_and_bos", start="BOS as token 10", T=64, layers="full", edit="none")
    assert found["BOS"] == pytest.approx(0.609, abs=0.01) and found["first token"] < 0.01


def test_a_slot_in_gemma_3_brings_back_the_loss_of_bos_where_there_was_no_sink_to_take():
    without, mended = (row("moved_sink", model=GEMMA, edit=edit) for edit in ("as it is, without BOS", MOVED))
    assert without["Sink_1"] == 0 and without["added loss"] == pytest.approx(7.17 - 4.16, abs=0.5)
    assert mended["added loss"] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("model", [SMOLLM2, QWEN])
def test_a_slot_stands_beside_a_prefix_token_on_the_same_tokens(model):
    (prefix,) = [
        row for row in by_stem()["moved_sink"].table.where(model=model).records() if "token that all" in row["edit"]
    ]
    assert prefix["added loss"] is not None and row("moved_sink", model=model, edit=MOVED)["added loss"] is not None


def test_int8_with_one_scale_a_text_stands_beside_a_scale_per_token_and_per_channel():
    printed = {}
    for stem, chapter in by_stem().items():
        rounded = set(chapter.table.frame.get("what is rounded", []))
        for name in [*chapter.table.frame, *filter(None, rounded)]:
            if re.search(r"(int8(?! weights)|residuals, 8 bits).* per tensor$", str(name)):
                printed[stem, name] = {str(name).replace("tensor", grain) for grain in ("token", "channel")} <= (
                    {*chapter.table.frame} | rounded
                )
    of_before = {"mended_models", "mended_sink", "remedies"}  # rows of rounding stand beside them, or no page prints it
    incomplete = {stem for (stem, _), is_complete in printed.items() if not is_complete}
    assert incomplete <= of_before < {stem for stem, _ in printed}


def made(model):
    name = model.removeprefix("local/")
    return pytest.mark.skipif(not (downloads() / name).is_dir(), reason=f"needs {name}: run make models")


@dataclass(frozen=True)
class LargestOfEachBlock(Edit):
    """Puts zero in the ten entries of the first token that are largest before each block from block 1 on."""

    dims: tuple[tuple[int, ...], ...]

    def residual(self, block, x):
        x = x.clone()
        if 0 < block < len(self.dims):
            x[:, 0, list(self.dims[block])] = 0
        return x


@pytest.fixture(scope="module")
def gemma():
    """Gemma 3 and four texts: rates and losses under an edit of its first token, BOS, hardly depend on the text."""
    case = open_case(GEMMA)
    token_set = case.tokens((4, 64), bos=Bos.ALWAYS)
    effects = Effects(entries=(Entry(0, 163), Entry(0, 400)))

    def read(*edits):
        report = effects.report(case.subject, token_set, edits)
        alpha, entries = report.alpha(), report.extras["entries"].mean(0)[:-1]
        loss = report.extra(NEXT_TOKEN_LOSS)[:, 1:].nanmean().item()
        rates = [(alpha[:, first:] > 0.3).float().mean().item() for first in (1, 5)]
        return {"rates": rates, "alpha": alpha[:, 1:].mean().item(), "loss": loss, "entries": entries}

    first = case.subject.run(token_set.tokens, reads={"x": RESIDUAL.read(lambda x: x[:, 0])})["x"].mean(0)
    return read, read(), tuple(tuple(x.abs().topk(10).indices.tolist()) for x in first[:-1])


def zero(layers, *dims):
    return ChangeResidual(Zero(), layers=layers, positions=[0], dims=dims)


@made(GEMMA)
@pytest.mark.timeout(400)
def test_gemmas_sink_goes_with_its_entries_at_zero_before_every_block(gemma):
    read, before, _ = gemma
    assert before["rates"] == pytest.approx([0.750, 0.817], abs=POINTS)
    assert before["alpha"] == pytest.approx(0.452, abs=POINTS)
    after = read(zero(range(18), 163, 400))
    assert after["rates"] == pytest.approx([0.188, 0.136], abs=POINTS)
    assert after["alpha"] == pytest.approx(0.169, abs=POINTS)
    assert after["loss"] - before["loss"] == pytest.approx(3.02, abs=0.8)  # of four texts
    assert not after["entries"].any()


@made(GEMMA)
@pytest.mark.timeout(400)
def test_gemmas_entry_is_written_again_behind_one_edit(gemma):
    read, before, _ = gemma
    once, at_five = read(zero([1], 163, 400)), read(zero([5], 163, 400))
    assert once["entries"].abs().max() > 50_000 and once["rates"][0] == pytest.approx(0.712, abs=2 * POINTS)
    assert at_five["rates"][0] == pytest.approx(0.647, abs=POINTS)
    assert at_five["loss"] - before["loss"] == pytest.approx(0.33, abs=0.15)


@made(GEMMA)
@pytest.mark.timeout(400)
def test_gemmas_ten_largest_entries_of_each_block_at_zero_leave_no_sink(gemma):
    read, before, dims = gemma
    after = read(LargestOfEachBlock(dims))
    assert after["rates"][0] == pytest.approx(0.044, abs=POINTS)
    assert after["loss"] - before["loss"] == pytest.approx(4.77, abs=0.8)


@pytest.fixture(scope="module")
def smollm2():
    case = open_case(SMOLLM2)
    token_set = case.tokens((16, 64), bos=Bos.NEVER)
    behind = tuple(range(12, 30))
    effects = Effects((0, 1), layers=behind, entries=(Entry(0, 507, 12),))
    (before,) = effects.rows(case.subject, token_set, {})

    def rates(*edits):
        return effects.rows(case.subject, token_set, {"edit": [edits]})[-1]

    everywhere = si.measure(case.subject, token_set, edits=[RemoveColumn()])
    return before, rates, everywhere


@made(SMOLLM2)
@pytest.mark.timeout(400)
def test_the_second_token_becomes_smollm2s_sink_where_the_first_is_hidden_from_all_layers(smollm2):
    _, rates, everywhere = smollm2
    assert everywhere.sink_rate(1).mean == pytest.approx(0.758, abs=POINTS)
    hidden = rates(RemoveColumn(layers=range(12, 30)))
    assert hidden["Sink_2"] < 0.01 and hidden[OTHER_EXCESS] < 0.05
    assert hidden["loss change"] == pytest.approx(1.25, abs=0.1)
    assert rates(RemoveColumn(positions=[10]))["loss change"] == pytest.approx(0.09, abs=0.01)


@made(SMOLLM2)
@pytest.mark.timeout(400)
def test_smollm2_keeps_more_than_half_of_its_sink_without_its_entry_however_often_it_is_edited(smollm2):
    before, rates, _ = smollm2
    every, once = rates(zero(range(12, 30), 507)), rates(zero([12], 507))
    assert before["Sink_1"] > 0.9 and every[LEFT] == 0 and once[LEFT] > LEAST
    assert every["Sink_1"] == pytest.approx(0.572, abs=POINTS)
    assert once["Sink_1"] == pytest.approx(0.548, abs=POINTS)
