"""Rules of single experiments, on rows worked by hand: which models they judge, and what they leave undecided."""

import pytest
import torch
from refusals import refused

from sinkinterp._experiments import load_module
from sinkinterp.attention.slots import SlotRow
from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import GIVEN, Outcome, Scope, load_experiment
from sinkinterp.table import ALPHA_1, ALPHA_HEAD, INPUT, MODEL, NULL, SEED, SINK_1, STRONGEST, Table, high_of, low_of

HOLDS, FAILS, UNDECIDED, NOT_ASKED = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.NOT_ASKED


def with_interval(column, value, half=0.01):
    return {column: value, low_of(column): value - half, high_of(column): value + half}


def outcomes(name, rows):
    return [verdict.outcome for verdict in load_experiment(name).verdicts(Table.of("", "", tuple(rows)))]


def inputs_of(model, positions, **rates):
    """Rows of Table 1 without BOS."""
    about = {MODEL: model, SEED: None, "positions": positions, "BOS": "none"}
    return [{**about, INPUT: name, **with_interval(SINK_1, rate)} for name, rate in rates.items()]


def test_table_1_asks_of_repeated_tokens_what_the_kind_of_positions_makes_of_them():
    table01 = load_module("table01_inputs")
    gpt2_xl = inputs_of("openai-community/gpt2-xl", table01.TABLE, natural=0.77, random=0.70, repeated=0.6228)
    mistral = inputs_of("mistralai/Mistral-7B-v0.1", table01.NO_TABLE, natural=0.97, random=0.75, repeated=0.02)
    assert outcomes("table01_inputs", gpt2_xl) == [HOLDS, NOT_ASKED, HOLDS, NOT_ASKED]
    assert outcomes("table01_inputs", mistral) == [HOLDS, HOLDS, NOT_ASKED, NOT_ASKED]
    assert outcomes("table01_inputs", [*gpt2_xl, *mistral])[:3] == [HOLDS, HOLDS, HOLDS]
    lost = inputs_of("a", table01.TABLE, natural=0.77, random=0.70, repeated=0.02)
    assert outcomes("table01_inputs", lost)[2] is FAILS


@pytest.mark.parametrize(
    ("longest", "ratio", "outcome"), [(1, 2.5, HOLDS), (1, 1.9, FAILS), (2, 2.5, FAILS), (None, None, NOT_ASKED)]
)
def test_the_sink_token_of_a_prefix_is_long_if_no_token_is_longer_and_it_is_twice_the_others(longest, ratio, outcome):
    prefix = load_module("figure05_prefix")
    long = {} if longest is None else {prefix.LONGEST: longest, prefix.RATIO: ratio}
    rows = [{MODEL: "prefix 2", SEED: seed, STRONGEST: 1, **long} for seed in range(5)]
    assert prefix._is_long(2).verdict(Table.of("", "", rows)).outcome is outcome


@pytest.mark.parametrize(("chat", "outcome"), [(0.88, HOLDS), (0.70, FAILS), (0.80, UNDECIDED)])
def test_the_second_of_two_models_is_judged_as_the_chat_model_of_the_first(chat, outcome):
    rows = [row for name, rate in (("base", 0.9), ("chat", chat)) for row in inputs_of(name, "no table", natural=rate)]
    assert outcomes("table01_inputs", rows)[-1] is outcome
    assert outcomes("table01_inputs", rows[:1])[-1] is NOT_ASKED


def test_pairs_of_base_and_chat_are_known_among_the_papers_models():
    table01 = load_module("table01_inputs")
    models = table01.MODELS[Scale.PAPER]
    assert {name for pair in table01.CHAT_OF.items() if pair[0] in models for name in pair} <= set(models)
    rows = [row for name in models for row in inputs_of(name, "no table", natural=0.9)]
    assert outcomes("table01_inputs", rows)[-1] is HOLDS


PAPERS = {
    "table01_inputs": 9, "table07_position_swap": 3, "figure02_norms_angles": 5, "figure03_thresholds": 4,
    "figure04_scale_ladder": 32, "figure09_domains": 4, "figure10_downstream": 23, "figure19_heads": 32,
}  # fmt: skip


def onsets(**steps):
    """Histories of 800 steps in which alpha_1 rises at a step; None is never."""
    return [
        {MODEL: f"rate x {rate}", SEED: seed, "step": at, "alpha_1": 0.4 if came else 0.1, NULL: 0.211}
        for rate, seeds in zip(("1", "0.5", "0.25"), steps.values(), strict=True)
        for seed, step in enumerate(seeds)
        for at in range(0, 801, 50)
        for came in (step is not None and at >= step,)
    ]


@pytest.mark.parametrize(
    ("whole", "half", "quarter", "outcome"),
    [
        ([350, 400, 400], [500, 550, 600], [700, 700, 800], HOLDS),
        ([700, 700, 800], [500, 550, 600], [350, 400, 400], FAILS),
        ([350, 400, 400], [500, 550, 600], [500, 500, 550], UNDECIDED),  # 7.2% of all reorderings are as late
        ([15, 15, 10], [15, 20, 15], [15, 25, 20], UNDECIDED),  # 4.2%, which is above 2.5%
        ([350, 400, 400], [500, 550, 600], [None, None, 700], UNDECIDED),
        ([350, 400, 400], [500, 550, None], [700, 750, None], HOLDS),  # the median has come
    ],
)
def test_a_sink_that_never_comes_is_not_a_late_one(whole, half, quarter, outcome):
    assert outcomes("figure04_dynamics", onsets(whole=whole, half=half, quarter=quarter))[1] is outcome


def test_the_ranks_of_steps_are_as_rare_as_all_reorderings_say():
    later, earlier = load_module("figure04_dynamics")._by_chance([[15, 15, 10], [15, 20, 15], [15, 25, 20]])
    assert later == pytest.approx(70 / 1680, abs=0.006) and earlier == pytest.approx(1670 / 1680, abs=0.006)


def test_orders_of_chats_and_models_that_are_not_there_decide_nothing():
    steady = [{"step": step, "grad_norm": 1.0, "valid_loss": 5.0 - step / 100} for step in (0, 40, 80)]
    names = load_module("figure30_fine_tuning").MODELS
    chats = [{MODEL: name, SEED: seed, **row} for name in names for seed in range(5) for row in steady]
    assert outcomes("figure30_fine_tuning", chats) == [UNDECIDED, UNDECIDED, NOT_ASKED]
    ratios = [{MODEL: name, "ratio": ratio} for name, ratio in (("a", 164.0), ("b", 18.0))]
    assert outcomes("figure07_norm_ratios", ratios) == [HOLDS, NOT_ASKED]


def test_a_repeated_token_is_a_sink_by_the_line_of_every_other_sink():
    def heads(alpha):
        cells = {"largest distance": 0.0, "states differ by": 0.0}
        return [{"proposition": str(i), SEED: 0, ALPHA_HEAD: 0.211 if i < 4 else alpha, **cells} for i in range(1, 5)]

    assert outcomes("propositions", heads(0.26))[-2:] == [HOLDS, HOLDS]
    assert outcomes("propositions", heads(0.27))[-2:] == [HOLDS, FAILS]  # uniform attention gives .211


def sized(name, rate, accuracy=0.5):
    nulls = {"chance": 0.25, NULL: 0.07}
    rates = {**with_interval(SINK_1, rate), **with_interval(ALPHA_1, rate)}
    return {MODEL: name, SEED: None, **rates, **with_interval("accuracy", accuracy), **nulls}


def test_the_ladder_judges_the_models_that_it_was_given():
    pythias = [sized("EleutherAI/pythia-1.4b", 0.6), sized("EleutherAI/pythia-14m", 0.2)]
    assert outcomes("figure04_scale_ladder", pythias) == [HOLDS, HOLDS]
    assert outcomes("figure04_scale_ladder", [sized("a/pythia-1b", 0.3), sized("a/pythia-70m", 0.6)]) == [HOLDS, FAILS]
    assert outcomes("figure04_scale_ladder", [sized("gpt2", 0.02)]) == [NOT_ASKED, NOT_ASKED]  # one size


def test_a_task_compares_the_sizes_of_a_family():
    gpt2 = [sized("openai-community/gpt2-xl", 0.7, 0.5), sized("openai-community/gpt2", 0.5, 0.3)]
    assert outcomes("figure10_downstream", gpt2)[::3] == [HOLDS, HOLDS]
    less_accurate = [sized("openai-community/gpt2-xl", 0.7, 0.3), sized("openai-community/gpt2", 0.5, 0.5)]
    assert outcomes("figure10_downstream", less_accurate)[::3] == [HOLDS, FAILS]
    chats = [sized("meta-llama/Llama-2-7b-chat-hf", 0.7), sized("meta-llama/Llama-2-7b-hf", 0.7)]
    assert outcomes("figure10_downstream", chats)[3] is NOT_ASKED


def test_one_kind_of_text_differs_from_nothing():
    rates = {f"Sink_1 at {epsilon}": 0.5 for epsilon in (0.2, 0.3, 0.4)}
    rows = [{MODEL: "m", SEED: None, "text": kind, **rates} for kind in ("prose", "random tokens")]
    assert outcomes("figure09_domains", rows) == [UNDECIDED] * 3


def test_a_rule_asks_every_model_by_itself():
    def layers(name, *alphas):
        return [{MODEL: name, SEED: None, "layer": i, "alpha_1": alpha} for i, alpha in enumerate(alphas)]

    rising, falling = layers("a", 0.1, 0.5, 0.5, 0.5), layers("b", 0.5, 0.1, 0.1, 0.1)
    assert outcomes("figure19_heads", rising) == [HOLDS]
    assert outcomes("figure19_heads", rising + falling) == [FAILS]


def test_the_papers_models_are_those_of_its_tables_and_figures():
    """Gu et al. 2025, Tables 1, 7 and 8, Figures 2, 9, 10 and 19 to 24; Jamba for Figures 25 to 27."""
    models = {name: load_module(name).MODELS[Scale.PAPER] for name in PAPERS}
    assert {name: len(models[name]) for name in PAPERS} == PAPERS
    table08 = set(models["figure04_scale_ladder"])
    assert len(table08) == 32 and all(set(chosen) <= table08 for chosen in models.values())
    assert {"ai21labs/Jamba-v0.1", "ai21labs/AI21-Jamba-1.5-Mini"} <= set(models["figure19_heads"])
    assert models["table07_position_swap"][0] == models["table01_inputs"][0] == "openai-community/gpt2-xl"
    published = load_module("figure04_scale_ladder").REPORTED
    for model, numbers in load_module("table01_inputs").REPORTED.items():
        assert numbers["natural"] in published.values() and numbers.get("chat", 0.77) in published.values(), model


def test_a_model_overfits_where_its_held_out_loss_rises_and_leaves_that_of_training_behind():
    def history(name, valid, train):
        rows = zip((0, 50, 100), valid, train, (0.0, 0.02, 0.2), strict=True)
        named = ({"step": step, "valid_loss": v, "train_loss": t, "sink_1": sink} for step, v, t, sink in rows)
        return [{MODEL: name, SEED: seed, **row} for row in named for seed in range(3)]

    over, plain = ((4.0, 2.5, 3.0), (None, 2.4, 1.0)), ((4.0, 2.5, 2.4), (None, 2.5, 2.4))
    worse = ((4.0, 2.5, 3.0), (None, 2.5, 3.0))  # both losses rise: it diverges, it does not overfit
    few = [*history("100 sequences", *over), *history("1000 sequences", *worse), *history("all", *plain)]
    assert outcomes("figure28_overfitting", few) == [HOLDS, FAILS, HOLDS, FAILS, FAILS, HOLDS]


def test_a_random_key_is_as_long_as_the_trained_one(make_call):
    slot = SlotRow(torch.randn(6, 1, 5), torch.ones(6, 1, 5))
    edit = load_module("section7_removed_biases").RandomKey
    first, second = (edit(seed).call(make_call(slot=slot)).slot for seed in (0, 1))
    torch.testing.assert_close(first.key.norm(dim=-1), slot.key.norm(dim=-1))
    assert first.value is slot.value and not first.key.equal(second.key) and not first.key.equal(slot.key)
    refused(lambda: edit(0).call(make_call()))


def test_smoke_has_no_verdict_unless_the_user_names_the_models():
    experiment, table = load_experiment("figure04_scale_ladder"), Table.of("", "", (sized("gpt2", 0.5),))
    assert experiment.verdicts(table, Scope(Scale.SMOKE).label) == []
    assert Scope(Scale.SMOKE, models=["gpt2"]).label == GIVEN
    assert len(experiment.verdicts(table, GIVEN)) == len(experiment.verdicts(table, Scale.REAL)) == 2
