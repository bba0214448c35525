"""Every outcome of every rule, from numbers worked by hand."""

from functools import partial

import pytest
from refusals import refused
from sinkinterp._experiments.shared import rules

from sinkinterp import table as c
from sinkinterp.runs.experiment import TRAINED, Outcome, Rule, Verdict, counted, standing
from sinkinterp.table import NULL, REASON, Table, at_this_loss, high_of, low_of

HOLDS, FAILS, UNDECIDED, NOT_ASKED = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.NOT_ASKED
CONFOUNDED, DIVERGED, SINK, NO_SINK = Outcome.CONFOUNDED, Outcome.DIVERGED, Outcome.SINK, Outcome.NO_SINK


def of_rows(rows):
    return Table.of("", "", tuple(rows))


def runs(**models):
    """A row per model and seed; each seed gives its columns, or the words of its failure."""
    rows = []
    for model, seeds in models.items():
        for seed, numbers in enumerate(seeds):
            state = {c.STATE: numbers} if isinstance(numbers, str) else {c.STATE: TRAINED, **numbers}
            rows.append({c.MODEL: model, c.SEED: seed, **state})
    columns = dict.fromkeys(name for row in rows for name in row)
    return of_rows({name: row.get(name) for name in columns} for row in rows)


def of_excess(*values, loss=2.0):
    return [{c.EXCESS: value, c.LOSS: loss} for value in values]


@pytest.mark.parametrize(
    ("high", "low", "outcome"),
    [
        (of_excess(0.30, 0.30, 0.30, 0.30, 0.30), of_excess(0.2, 0.2, 0.2, 0.2, 0.29), HOLDS),
        (of_excess(0.30, 0.30, 0.30, 0.30, 0.28), of_excess(0.2, 0.2, 0.2, 0.2, 0.29), UNDECIDED),
        (of_excess(0.24, 0.24, 0.24), of_excess(0.2, 0.2, 0.2), UNDECIDED),  # .04 on average
        (of_excess(0.2, 0.2, 0.2), of_excess(0.27, 0.26, 0.28), FAILS),
        (of_excess(0.2, 0.2, 0.2), of_excess(0.24, 0.23, 0.25), UNDECIDED),  # lower, but by .04 only
        (of_excess(0.25, 0.3, 0.5), of_excess(0.2, 0.2, 0.2), UNDECIDED),  # all are higher; the interval is wider
        (of_excess(0.5, 0.5, 0.5), of_excess(0.2, 0.2, 0.2, loss=2.041), CONFOUNDED),  # the stronger learned more
        (of_excess(0.5, 0.5, 0.5), of_excess(0.2, 0.2, 0.2, loss=2.039), HOLDS),
        (of_excess(0.5, 0.5, 0.5), of_excess(0.2, 0.2, 0.2, loss=1.5), HOLDS),  # it learned less
        (of_excess(0.2, 0.2, 0.2, loss=2.041), of_excess(0.5, 0.5, 0.5), CONFOUNDED),
        (of_excess(0.2, 0.2, 0.2, loss=1.5), of_excess(0.5, 0.5, 0.5), FAILS),
        (of_excess(0.5, 0.5), of_excess(0.2, 0.2), UNDECIDED),  # two seeds decide nothing
        (of_excess(*[0.5] * 5), [*of_excess(*[0.2] * 4), *of_excess(0.2, loss=2.1)], CONFOUNDED),  # .02 +- .0555 above
        (of_excess(*[0.5] * 5), [*of_excess(*[0.2] * 4), *of_excess(0.9, loss=2.1)], UNDECIDED),
        (of_excess(*[0.5] * 5), [*of_excess(*[0.2] * 3), *of_excess(0.2, 0.2, loss=1.9)], HOLDS),  # -.04 +- .068
        (of_excess(0.5, 0.5, 0.5), [*of_excess(0.2, loss=1.9), *of_excess(0.2, loss=2.1)], UNDECIDED),
        (of_excess(*[0.5] * 4), [*of_excess(0.2, 0.2, loss=1.9), *of_excess(0.2, 0.2, loss=2.1)], CONFOUNDED),
        ([*of_excess(0.5, 0.5), "the loss is nan at step 3"], of_excess(0.2, 0.2, 0.2), DIVERGED),
    ],
)
def test_a_direction_holds_where_all_seeds_agree_at_equal_loss(high, low, outcome):
    assert rules.higher("a", than="b").verdict(runs(a=high, b=low)).outcome is outcome


@pytest.mark.parametrize(
    ("one", "other", "outcome"),
    [
        (of_excess(0.20, 0.21, 0.22), of_excess(0.20, 0.22, 0.21), HOLDS),
        (of_excess(0.20, 0.21, 0.22), of_excess(0.40, 0.41, 0.42), FAILS),
        (of_excess(0.20, 0.30, 0.40), of_excess(0.20, 0.30, 0.40), UNDECIDED),  # as alike as can be, and too scattered
        (of_excess(0.20, 0.21), of_excess(0.20, 0.21), UNDECIDED),
        (of_excess(0.20, 0.21, 0.22, loss=9.0), of_excess(0.20, 0.22, 0.21, 0.2), HOLDS),  # seeds are no pairs
    ],
)
def test_models_are_alike_where_the_interval_of_the_difference_is_within_the_margin(one, other, outcome):
    assert rules.alike("a", than="b", quantity=c.EXCESS).verdict(runs(a=one, b=other)).outcome is outcome
    assert rules.alike("b", than="a", quantity=c.EXCESS).verdict(runs(a=one, b=other)).outcome is outcome


def test_the_reason_gives_difference_agreement_and_losses_which_may_differ_where_the_paper_compares_them():
    table = runs(a=of_excess(0.5, 0.4, 0.6, loss=2.5), b=of_excess(0.2, 0.2, 0.2))
    verdict = rules.higher("a", than="b", at_equal_loss=False).verdict(table)
    assert verdict.outcome is HOLDS and verdict.reason.startswith("mean difference 0.3 [")
    assert verdict.reason.endswith("3 of 3 seeds agree, losses differ by 0.5 [0.5, 0.5] nats")


def test_seeds_are_paired_by_their_number_and_not_by_the_order_of_the_rows():
    a, b = of_excess(0.1, 0.2, 0.3), of_excess(0.04, 0.14, 0.24)
    table = runs(a=a, b=b)
    turned = of_rows(table.records()[::-1])
    assert rules.higher("a", than="b").verdict(table) == rules.higher("a", than="b").verdict(turned)
    assert rules.higher("a", than="b").verdict(table).outcome is HOLDS


def of_alpha(*lows, loss=2.0):
    return [{c.ALPHA_1: low + 0.01, low_of(c.ALPHA_1): low, NULL: 0.2, c.LOSS: loss} for low in lows]


@pytest.mark.parametrize(
    ("rule", "alphas", "outcome"),
    [
        (rules.has_sink, (0.3, 0.3, 0.3, 0.3, 0.195), HOLDS),
        (rules.has_sink, (0.3, 0.3, 0.3, 0.195, 0.195), UNDECIDED),
        (rules.has_sink, (0.3, 0.195, 0.195, 0.195, 0.195), FAILS),  # means lie above the null, intervals do not
        (rules.has_sink, (0.3, 0.3), UNDECIDED),
        (rules.has_sink, (0.24, 0.24, 0.24), FAILS),  # above the null of .2, but not by .05
        (rules.has_no_sink, (0.24, 0.195, 0.195, 0.195, 0.3), HOLDS),
        (rules.has_no_sink, (0.195, 0.195, 0.195, 0.3, 0.3), UNDECIDED),
        (rules.has_no_sink, (0.3, 0.3, 0.3, 0.3, 0.195), FAILS),
        (rules.has_no_sink, (0.195, 0.195), UNDECIDED),
    ],
)
def test_a_sink_is_there_or_lacks_in_four_of_five_seeds(rule, alphas, outcome):
    assert rule("a").verdict(runs(a=of_alpha(*alphas))).outcome is outcome


@pytest.mark.parametrize(
    ("at_loss", "absent", "stronger"),
    [
        ((0.4, 0.4, 0.4), HOLDS, HOLDS),  # the baseline had a sink already at that loss
        ((0.22, 0.4, 0.4), CONFOUNDED, CONFOUNDED),  # not in every seed of three; .24 higher, within .26
        ((0.22, 0.22, 0.22), CONFOUNDED, HOLDS),  # it had none, and yet more by .12
        ((0.12, 0.12, 0.12), CONFOUNDED, CONFOUNDED),  # more by .02
        ((None, 0.4, 0.4), CONFOUNDED, CONFOUNDED),
    ],
)
def test_a_worse_loss_explains_nothing_where_the_baseline_had_its_sink_at_that_loss(at_loss, absent, stronger):
    """A null of .2, a baseline of .5 and a model of .1 whose loss is a tenth higher."""
    base = {c.ALPHA_1: 0.5, c.EXCESS: 0.3, NULL: 0.2, c.LOSS: 2.0}
    worse = [{c.ALPHA_1: 0.1, c.EXCESS: -0.1, NULL: 0.2, c.LOSS: 2.2, at_this_loss("a"): alpha} for alpha in at_loss]
    table = runs(a=[base] * 3, b=worse)
    assert rules.has_no_sink("b", baseline="a").verdict(table).outcome is absent
    assert rules.higher("a", than="b").verdict(table).outcome is stronger
    without = of_rows({k: v for k, v in row.items() if k != at_this_loss("a")} for row in table.records())
    for rule in (rules.has_no_sink("b", baseline="a"), rules.higher("a", than="b")):
        assert rule.verdict(without).outcome is CONFOUNDED


def test_a_sink_is_confounded_where_the_loss_is_worse_and_its_absence_where_the_loss_may_be():
    def model(alpha, *losses):
        return [row for loss in losses for row in of_alpha(alpha, loss=loss)]

    table = runs(
        base=of_alpha(*[0.3] * 3),
        less=model(0.1, 2.05, 2.05, 2.05),
        equal=model(0.1, 2.03, 2.03, 2.03),
        more=model(0.1, 1.5, 1.5, 1.5),
        scattered=model(0.1, 2.0, 2.0, 2.1),  # .033 +- .143 above
        sink_at_less=model(0.3, 2.05, 2.05, 2.05),
        sink_scattered=model(0.3, 2.0, 2.0, 2.1),
    )
    expected = {"less": CONFOUNDED, "equal": HOLDS, "more": HOLDS, "scattered": CONFOUNDED}
    assert {name: rules.has_no_sink(name, baseline="base").verdict(table).outcome for name in expected} == expected
    lacking = {HOLDS: FAILS, CONFOUNDED: CONFOUNDED}
    assert {name: rules.has_sink(name, baseline="base").verdict(table).outcome for name in expected} == {
        name: lacking[outcome] for name, outcome in expected.items()
    }
    assert rules.has_sink("sink_at_less", baseline="base").verdict(table).outcome is CONFOUNDED
    assert rules.has_sink("sink_scattered", baseline="base").verdict(table).outcome is HOLDS
    assert rules.has_sink("less").verdict(table).outcome is FAILS


NO_HEAD, SOME_HEADS = {c.SINK_1: 0.03, low_of(c.SINK_1): 0.02}, {c.SINK_1: 0.2, low_of(c.SINK_1): 0.17}
STRONG_HEAD = {c.ALPHA_HEAD: 0.4, low_of(c.ALPHA_HEAD): 0.38, c.NULL_HEAD: 0.2}
WEAK_HEAD = {c.ALPHA_HEAD: 0.25, low_of(c.ALPHA_HEAD): 0.24, c.NULL_HEAD: 0.2}


@pytest.mark.parametrize("hidden", [SOME_HEADS, STRONG_HEAD])
def test_a_sink_head_beside_an_averse_one_is_not_the_absence_of_a_sink(hidden):
    """Table 14: sigmoid at rate x 2.5 has Sink_1 of 3.5, 17, 20, 2.5, 38% and a mean alpha_1 below its null."""
    lacking, mixed = ({**of_alpha(0.13)[0], **NO_HEAD, **WEAK_HEAD, **more} for more in ({}, hidden))
    table = runs(a=[lacking, mixed, mixed, lacking, mixed], b=[lacking] * 4 + [mixed])
    assert [rules.has_no_sink(name).verdict(table).outcome for name in "ab"] == [UNDECIDED, HOLDS]
    assert [rules.has_sink(name).verdict(table).outcome for name in "ab"] == [UNDECIDED, FAILS]
    assert "3 more have a sink in some heads: Sink_1" in rules.has_no_sink("a").verdict(table).reason
    rate, excess = ("20.0%", "0.050") if hidden is SOME_HEADS else ("3.0%", "0.200")  # that which decided is printed
    said = f"; 1 more has a sink in some heads: Sink_1 {rate}, strongest head over its null {excess}"
    assert rules.has_no_sink("b").verdict(table).reason.endswith(said)


def test_a_mean_above_its_null_is_a_sink_whatever_the_rate():
    table = runs(a=[{**of_alpha(0.3)[0], **NO_HEAD}] * 5)
    assert rules.has_sink("a").verdict(table).outcome is HOLDS
    assert rules.has_no_sink("a").verdict(table).outcome is FAILS


def test_a_model_without_a_claim_is_judged_sink_or_no_sink():
    table = runs(a=of_alpha(*[0.3] * 5), b=of_alpha(*[0.1] * 5), c=of_alpha(*[0.1] * 5, loss=3.0))
    outcomes = [rules.sink_or_none(name, baseline="a").verdict(table).outcome for name in "abc"]
    assert outcomes == [SINK, NO_SINK, CONFOUNDED]


MISSPELT = [
    *(rules.higher("a", than="x"), rules.higher("x", than="a"), rules.has_no_sink("a", baseline="x")),
    *(rule("x") for rule in (rules.has_sink, rules.has_no_sink, rules.sink_or_none, rules.training_fails)),
    rules.sink_at("x", (1,)),
]


@pytest.mark.parametrize("rule", MISSPELT, ids=lambda rule: rule.claim)
def test_a_rule_about_a_model_without_rows_is_an_error(rule):
    refused(lambda: rule.verdict(runs(a=[{**of_alpha(0.1)[0], **of_excess(0.1)[0]}] * 5)), "rule")


def test_bounds_of_a_cell_that_is_missing_are_not_asked():
    row = {c.MODEL: "m", c.SEED: None, "edit": "a", "x": float("nan")}
    verdict = rules.within("", "x", {"edit": "a"}, high=0.05).verdict(of_rows((row,)))
    assert verdict.outcome is Outcome.NOT_ASKED


NUMBERLESS = [rules.higher("a", than="b"), rules.has_sink("a"), rules.has_no_sink("a"), rules.sink_at("a", (1,))]


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("rule", NUMBERLESS, ids=lambda rule: rule.claim)
def test_a_rule_about_rows_without_numbers_is_an_error(rule, missing):
    empty = dict.fromkeys((c.ALPHA_1, c.EXCESS, c.STRONGEST, c.ALPHA_THERE, c.NULL_THERE, NULL), missing) | {
        c.LOSS: 2.0
    }
    refused(lambda: rule.verdict(runs(a=[empty] * 5, b=[{**empty, c.EXCESS: 0.1}] * 5)))


def test_seeds_that_are_not_those_of_the_other_model_or_come_twice_are_an_error():
    table = runs(a=of_excess(*[-0.5] * 7, 0.5, 0.5, 0.5), b=of_excess(0.2, 0.2, 0.2))
    for rule in (rules.higher("a", than="b"), rules.higher("b", than="a"), rules.has_no_sink("a", baseline="b")):
        refused(
            partial(rule.verdict, of_rows({c.ALPHA_1: 0.1, NULL: 0.1, c.SINK_1: 0.0, **row} for row in table.records()))
        )
    twice = runs(a=of_excess(0.5, 0.5, 0.5), b=of_excess(0.2, 0.2, 0.2))
    refused(lambda: rules.higher("a", than="b").verdict(of_rows((*twice.records(), twice.records()[0]))), "rows")


def test_comparisons_of_trainings_that_failed_decide_nothing():
    table = runs(a=[*of_excess(2.0), "loss is nan"], b=of_excess(1.0, 1.0))
    assert rules.above("", c.EXCESS, {c.MODEL: "a"}, {c.MODEL: "b"}, by=(c.SEED,)).verdict(table).outcome is DIVERGED
    assert rules.within("", c.EXCESS, {c.MODEL: "a"}, low=0).verdict(table).outcome is DIVERGED
    refused(lambda: rules.times(-1))


def test_a_baseline_of_two_seeds_is_an_error_and_one_that_diverged_decides_nothing():
    table = runs(a=of_alpha(*[0.1] * 5), few=of_alpha(0.3, 0.3), ended=[*of_alpha(0.3, 0.3), "loss is nan"])
    refused(lambda: rules.has_no_sink("a", baseline="few").verdict(table), "few")
    assert rules.has_no_sink("a", baseline="ended").verdict(table).outcome is DIVERGED
    one_seed = runs(a=of_alpha(0.1, loss=3.0), b=of_alpha(0.3))
    assert rules.has_no_sink("a", baseline="b").verdict(one_seed).outcome is UNDECIDED


@pytest.mark.parametrize(
    ("outcomes", "heading"),
    [
        ((HOLDS, FAILS, HOLDS, HOLDS), "3 of 4 rules hold"),
        ((HOLDS, NOT_ASKED, FAILS), "1 of 2 rules hold"),
        ((HOLDS, HOLDS), "all 2 rules hold"),
        ((HOLDS, NOT_ASKED), "the rule holds"),
        *((outcomes, "") for outcomes in ((NOT_ASKED,), (), (SINK, NO_SINK))),
    ],
)
def test_the_heading_counts_the_rules_that_hold(outcomes, heading):
    assert standing([Verdict("", outcome, "") for outcome in outcomes]) == heading


def test_a_sink_stands_at_one_of_the_positions_and_above_its_null_there():
    def at(position, alpha=0.4):
        return {c.STRONGEST: position, c.ALPHA_THERE: alpha, c.NULL_THERE: 0.3}

    table = runs(a=[at(2)] * 4 + [at(1)], b=[at(2, 0.2)] * 5, c=[at(3)] * 2 + [at(1)] * 3, d=[at(2, 0.34)] * 5)
    outcomes = [rules.sink_at(name, (2, 3)).verdict(table).outcome for name in "abcd"]
    assert outcomes == [HOLDS, FAILS, UNDECIDED, FAILS]  # the last is above its null, but not by .05


def test_failed_trainings_are_counted():
    table = runs(a=["loss is inf"] * 4 + [{c.LOSS: 2.0}], b=[{c.LOSS: 2.0}] * 5)
    assert rules.training_fails("a").verdict(table).outcome is HOLDS
    assert rules.training_fails("b").verdict(table).outcome is FAILS
    reason = rules.has_sink("a").verdict(table).reason
    assert reason == "4 trainings failed, such as a, seed 0: loss is inf"


def with_interval(model, edit, value, low, high):
    return {c.MODEL: model, c.SEED: None, "edit": edit, "x": value, low_of("x"): low, high_of("x"): high}


@pytest.mark.parametrize(
    ("other", "options", "outcome"),
    [
        ((0.3, 0.2, 0.39), {}, HOLDS),
        ((0.3, 0.2, 0.41), {}, UNDECIDED),
        ((0.7, 0.61, 0.8), {}, FAILS),
        ((0.3, 0.2, 0.39), {"bound": rules.times(2.0)}, UNDECIDED),  # 0.4 to 0.78 beside 0.4 to 0.6
        ((0.3, 0.2, 0.34), {"bound": rules.plus(0.05)}, HOLDS),
        ((0.3, 0.2, 0.36), {"bound": rules.plus(0.05)}, UNDECIDED),
    ],
)
def test_intervals_that_overlap_decide_nothing(other, options, outcome):
    rows = (with_interval("m", "a", 0.5, 0.4, 0.6), with_interval("m", "b", *other))
    rule = rules.above("", "x", {"edit": "a"}, {"edit": "b"}, **options)
    assert rule.verdict(of_rows(rows)).outcome is outcome


def test_a_rule_that_is_not_asked_gives_its_reason():
    assert rules.not_asked("big models have more", "the toy is small").verdict(runs()).reason == "the toy is small"
    for shows, outcome in ((True, HOLDS), (False, FAILS), (None, UNDECIDED)):
        assert Rule("", lambda table, shows=shows: (shows, "why")).verdict(runs()).outcome is outcome


def test_the_other_cell_may_stand_in_another_column():
    cells = (("a", 0.5, 0.1), ("b", 0.9, 0.2))
    table = of_rows({c.MODEL: "m", c.SEED: None, "edit": edit, "x": x, "y": y} for edit, x, y in cells)
    for other, outcome in (("y", HOLDS), (None, FAILS)):
        assert rules.above("", "x", {"edit": "a"}, {"edit": "b"}, other_column=other).verdict(table).outcome is outcome


@pytest.mark.parametrize(
    ("values", "outcome"), [((0.7, 1.2), HOLDS), ((0.7, 1.45), UNDECIDED), ((0.7, 1.45, 1.7), FAILS), ((), NOT_ASKED)]
)
def test_a_claim_about_models_holds_for_all_and_fails_for_one(values, outcome):
    rows = tuple(with_interval(f"m{i}", "a", v, v - 0.1, v + 0.1) for i, v in enumerate(values))
    assert rules.within("", "x", {"edit": "a"}, low=0.5, high=1.5).verdict(of_rows(rows)).outcome is outcome


def test_models_are_never_compared_with_each_other_and_many_comparisons_are_counted():
    rows = (with_interval("m", "a", 0.5, 0.4, 0.6), with_interval("n", "b", 0.1, 0.1, 0.1))
    assert rules.above("", "x", {"edit": "a"}, {"edit": "b"}).verdict(of_rows(rows)).outcome is NOT_ASKED
    rows = tuple(with_interval(f"m{i}", "a", v, v, v) for i, v in enumerate([0.7, 0.8, 0.9, 0.2]))
    verdict = rules.within("", "x", {"edit": "a"}, low=0.5).verdict(of_rows(rows))
    assert verdict.outcome is FAILS
    assert verdict.reason == "fails in 1, holds in 3 of 4 comparisons; for example m3, 0.2 [0.2, 0.2]"


def test_a_rule_for_each_model_passes_over_models_that_have_no_number_and_is_not_asked_where_none_has():
    rule = rules.of_each(rules.within("the loss is at most 2", c.LOSS, {}, high=2.0))
    assert rule.verdict(runs(a=[{c.LOSS: 1.0}], b=[{c.LOSS: None}])).outcome is HOLDS
    assert rule.verdict(runs(a=[{c.LOSS: 3.0}], b=[{c.LOSS: None}])).outcome is FAILS
    assert rule.verdict(runs(a=[{c.LOSS: None}], b=[{c.LOSS: None}])).outcome is NOT_ASKED


def edited(**left):
    """A row of an edit by model: x is below 1 with it, and the check says what is left of the entry."""
    return of_rows({c.MODEL: name, c.SEED: None, "x": 0.5, "left": entry} for name, entry in left.items())


@pytest.mark.parametrize(
    ("left", "bound", "outcome"),
    [
        ({"a": 0.0, "b": 99.0}, 1.0, HOLDS),
        ({"a": 0.0, "b": 103_763.0}, 1.0, Outcome.REFUSED),  # it holds in the other, and nobody knows of this one
        ({"a": 103_763.0, "b": 101.0}, 1.0, Outcome.REFUSED),
        ({"a": 0.0, "b": 103_763.0}, 0.4, FAILS),  # one counterexample that was edited is enough
    ],
)
def test_no_verdict_is_given_where_the_edit_left_what_it_should_take_away(left, bound, outcome):
    rule = rules.checked(rules.within("x is low", "x", {}, high=bound), "left", {}, high=100.0)
    verdict = rule.verdict(edited(**left))
    assert verdict.outcome is outcome
    assert ("refused: in b left is 1.038e+05, not at most 100" in verdict.reason) is (left["b"] > 1e5)


def test_set_ups_and_what_a_check_refused_do_not_count():
    holds, refused_one = (Verdict("", outcome, "") for outcome in (HOLDS, Outcome.REFUSED))
    of_setup = rules.setup(rules.within("", "x", {}, high=1.0)).verdict(edited(a=0.0))
    assert of_setup.is_setup and of_setup.outcome is HOLDS
    assert counted([holds, of_setup, refused_one]) == [holds] and standing([holds, of_setup]) == "the rule holds"


def test_rows_that_do_not_say_what_their_edit_did_have_no_verdict():
    rule = rules.checked(rules.within("", "x", {}, high=1.0), "left, not measured", {}, high=100.0)
    verdict = rule.verdict(edited(a=0.0))
    assert verdict.outcome is Outcome.REFUSED and verdict.reason.startswith("refused: not checked")


@pytest.mark.parametrize(("high", "outcome"), [(1.0, Outcome.REFUSED), (0.4, FAILS)])
def test_a_model_whose_rows_lack_the_check_is_refused_and_named_before_one_that_fails(high, outcome):
    rule = rules.checked(rules.within("", "x", {}, high=high), "left", {}, high=100.0)
    verdict = rule.verdict(edited(a=0.0, b=None))
    assert verdict.outcome is outcome
    assert verdict.reason.startswith("refused: in b not checked")
    assert ("; fails: a, 0.5" in verdict.reason) is (outcome is FAILS)


def test_an_empty_row_of_a_model_that_lacks_what_is_edited_needs_no_check():
    table = edited(a=0.0, b=None)
    table = table.with_rows({**row, REASON: "" if row[c.MODEL] == "a" else "no bias"} for row in table.records())
    assert rules.checked(rules.within("", "x", {}, high=1.0), "left", {}, high=100.0).verdict(table).outcome is HOLDS


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"a": 0.5, "b": 1e-7}, HOLDS), ({"a": 5.0, "b": 1e-7}, FAILS), ({"a": 1e-7, "b": 0.0}, NOT_ASKED)],
)
def test_a_model_in_which_an_edit_changes_nothing_is_not_asked(changes, outcome):
    verdict = rules.changing(rules.within("", "left", {}, high=1.0), "left", {}).verdict(edited(**changes))
    assert verdict.outcome is outcome
    assert "not asked: in b the edit changes nothing" in verdict.reason
