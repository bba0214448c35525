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
from sinkinterp.backends.named_models import downloads
from sinkinterp.data.choices import Bos
from sinkinterp.interventions import ChangeResidual, RemoveColumn, Zero
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.residuals import LEAST
from sinkinterp.runs.experiment import Outcome

SMOLLM2, GEMMA, QWEN = "local/smollm2-135m-instruct", "local/gemma3-270m", "local/qwen2.5-coder-0.5b"
MOVED = "its key and value"
ENTRIES = "massive entries"
ZERO, ONCE = f"{ENTRIES} to zero", f"{ENTRIES} to zero before their first block alone"
POINTS = 0.02  # by which rates may differ from the values: other texts of the same kind; more where these are six


def row(stem, **where):
    (found,) = by_stem()[stem].table.where(**where).records()
    return found


EVERYWHERE, BEHIND = "loss, first token hidden in all layers", "loss, first token hidden behind its writer"
THEN, ELEVENTH = ": Sink_2 then", "loss, 11th hidden in all layers"
MASSIVE, ATLAS, BIASES, MOVES = "removing_massive", "atlas_of_models", "what_biases_do", "moved_sink"
DROPPED = {"edit": "first column dropped", "layers": "all"}
AT_TEN = {"start": "BOS as token 10", "T": 64, "layers": "full", "edit": "none"}
COST = "loss change"
CELLS = {  # a chapter, a row of it, and its cells: the value, within `POINTS`, or within what stands beside it
    "Gemma's massive entries at zero before every block take its sink": [
        (MASSIVE, {"model": GEMMA, "edit": NONE}, {"Sink_1": 0.750, COST: (0, 0.1)}),
        (MASSIVE, {"model": GEMMA, "edit": ZERO}, {"Sink_1": 0.188, COST: (3.02, 0.1)}),
        (MASSIVE, {"model": GEMMA, "edit": ONCE}, {"Sink_1": 0.730, COST: (0.1, 0.1)}),
        (MASSIVE, {"model": GEMMA, "edit": "control: others to zero"}, {"Sink_1": 0.751, COST: (0, 0.1)}),
        (MASSIVE, {"model": GEMMA, "edit": "control: ten others to zero"}, {"Sink_1": 0.736, COST: (-0.007, 0.1)}),
    ],
    "Qwen's sink needs its massive entries, whichever way they are edited": [
        (MASSIVE, {"model": QWEN, "edit": ONCE}, {"Sink_1": 0.033}),
        (MASSIVE, {"model": QWEN, "edit": ZERO}, {"Sink_1": 0.035}),
    ],
    # The issue has 44.0% for both dimensions, 507 and 247. No choice of ours gave it; the first two enclose it.
    "SmolLM2's number depends on where its edit begins, and is of a broken model": [
        (MASSIVE, {"model": SMOLLM2, "edit": ZERO}, {"Sink_1": 0.592, "loss": (16.7, 0.5), LEFT: 0}),
        (MASSIVE, {"model": SMOLLM2, "edit": f"{ENTRIES} to zero before all blocks"},
         {"Sink_1": 0.359, "loss": (10.6, 0.5), LEFT: 0}),
        (MASSIVE, {"model": SMOLLM2, "edit": f"{ENTRIES} and the next largest to zero"},
         {"Sink_1": 0.555, "loss": (14.0, 0.5), LEFT: 0}),
        (MASSIVE, {"model": SMOLLM2, "edit": NONE}, {"loss": (3.0, 1.0)}),
    ],
    "Hidden everywhere, the first token leaves its sink to the second": [
        (ATLAS, {"model": SMOLLM2}, {EVERYWHERE: (0.10, 0.03), EVERYWHERE + THEN: (0.758, 0.04), BEHIND: (1.25, 0.2),
                                     BEHIND + THEN: 0, ELEVENTH: 0.08}),
        (ATLAS, {"model": QWEN}, {EVERYWHERE: (0.10, 0.03), EVERYWHERE + THEN: (0.560, 0.04), BEHIND: (0.59, 0.2),
                                  BEHIND + THEN: 0.049, ELEVENTH: 0.08}),
    ],
    "The other costs of SmolLM2's first token have rows of their own": [
        ("normalisation_patch", {"model": SMOLLM2, **DROPPED}, {COST: (0.98, 0.03)}),
        (ATLAS, {"model": SMOLLM2}, {"loss of a cache that keeps 0": (1.78, 0.036)}),
        (MASSIVE, {"model": SMOLLM2, "edit": ZERO}, {COST: (12.6, 0.25)}),
    ],
    "A dropped or a hidden column leaves another sink, and its row says so": [
        ("normalisation_patch", {"model": SMOLLM2, **DROPPED}, {OTHER_EXCESS: 0.155, "its position": 2}),
        ("normalisation_patch", {"model": QWEN, **DROPPED}, {OTHER_EXCESS: 0.077, "its position": 2}),
    ],
    "A start that a model was not trained with has its loss beside it": [
        (ATLAS, {"model": GEMMA}, {"loss without BOS": (7.17, 0.5), "loss with BOS": (4.16, 0.1)}),
        (ATLAS, {"model": QWEN}, {"Sink_2 with BOS": (0.132, 0.06)}),
    ],
    "Query biases make Qwen's sink behind the writer, and disperse it in the writer's layer": [
        (BIASES, {"part": "all", "edit": NONE}, {"Sink_1": 0.551, MASSIVE_TOKENS: (1.0, 0.2)}),
        (BIASES, {"part": "all", "edit": "b_Q = 0"}, {"Sink_1": 0.002}),
        (BIASES, {"part": "all", "edit": "control of b_Q = 0"}, {"Sink_1": 0.198}),
        (BIASES, {"part": "the writer's layer", "edit": "b_Q = 0"}, {MASSIVE_TOKENS: (22.9, 2.29)}),
        (BIASES, {"part": "behind the writer", "edit": "b_Q = 0"}, {"Sink_1": 0.025, MASSIVE_TOKENS: (1.9, 0.2)}),
    ],
    "Gemma's sink is on the token BOS in tenth place too": [
        ("windows_and_bos", AT_TEN, {"BOS": (0.609, 0.01), "first token": (0, 0.01)}),
    ],
    "A slot in Gemma 3 brings back the loss of BOS where there was no sink to take": [
        (MOVES, {"model": GEMMA, "edit": "as it is, without BOS"}, {"Sink_1": 0, "added loss": (7.17 - 4.16, 0.5)}),
        (MOVES, {"model": GEMMA, "edit": MOVED}, {"added loss": (0, 0.05)}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rows", CELLS.values(), ids=CELLS)
def test_the_rows_of_the_book_hold_the_values(rows):
    for stem, where, cells in rows:
        found = row(stem, **where, **{"row": "edit"} if stem == BIASES else {})
        for column, value in cells.items():
            value, tolerance = value if isinstance(value, tuple) else (value, POINTS)
            assert found[column] == pytest.approx(value, abs=tolerance), (stem, where, column)


def test_an_edit_before_one_block_leaves_gemmas_entry_and_one_before_every_block_does_not():
    assert row(MASSIVE, model=GEMMA, edit=ONCE)[LEFT] > 1000 * LEAST
    assert {row(MASSIVE, model=model, edit=ZERO)[LEFT] for model in (SMOLLM2, GEMMA, QWEN)} == {0}


def test_qwen_loses_by_a_bos_that_it_was_not_trained_with():
    qwen = row(ATLAS, model=QWEN)
    assert qwen["loss with BOS"] - qwen["loss without BOS"] == pytest.approx(0.62, abs=0.15)


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
        is_wide = (found["model"], found["T"]) == (QWEN, 512)  # seven texts are too few there
        assert (found["times the first low"] > control["times the first high"]) != is_wide
        assert found["loss change low"] > control["loss change high"]


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
@pytest.mark.timeout(600)
def test_gemmas_sink_goes_with_its_entries_at_zero_before_every_block_and_not_before_one_alone(gemma):
    read, before, dims = gemma
    assert before["rates"] == pytest.approx([0.750, 0.817], abs=POINTS)
    assert before["alpha"] == pytest.approx(0.452, abs=POINTS)
    after = read(zero(range(18), 163, 400))
    assert after["rates"] == pytest.approx([0.188, 0.136], abs=POINTS)
    assert after["alpha"] == pytest.approx(0.169, abs=POINTS)
    assert after["loss"] - before["loss"] == pytest.approx(3.02, abs=0.8)  # of four texts
    assert not after["entries"].any()
    once, at_five = read(zero([1], 163, 400)), read(zero([5], 163, 400))
    assert once["entries"].abs().max() > 50_000 and once["rates"][0] == pytest.approx(0.712, abs=2 * POINTS)
    assert at_five["rates"][0] == pytest.approx(0.647, abs=POINTS)
    assert at_five["loss"] - before["loss"] == pytest.approx(0.33, abs=0.15)
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
@pytest.mark.timeout(600)
def test_smollm2s_second_token_becomes_its_sink_where_the_first_is_hidden_which_stays_without_its_entry(smollm2):
    before, rates, everywhere = smollm2
    assert everywhere.sink_rate(1).mean == pytest.approx(0.758, abs=POINTS)
    hidden = rates(RemoveColumn(layers=range(12, 30)))
    assert hidden["Sink_2"] < 0.01 and hidden[OTHER_EXCESS] < 0.05
    assert hidden["loss change"] == pytest.approx(1.25, abs=0.1)
    assert rates(RemoveColumn(positions=[10]))["loss change"] == pytest.approx(0.09, abs=0.01)
    every, once = rates(zero(range(12, 30), 507)), rates(zero([12], 507))
    assert before["Sink_1"] > 0.9 and every[LEFT] == 0 and once[LEFT] > LEAST
    assert every["Sink_1"] == pytest.approx(0.572, abs=POINTS)
    assert once["Sink_1"] == pytest.approx(0.548, abs=POINTS)
