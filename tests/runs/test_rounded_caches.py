"""Rounded caches: the gains are differences of costs, and rules about them say what planted rows hold."""

import pytest

from sinkinterp._experiments import load_module
from sinkinterp.applications.quantising import cache_table
from sinkinterp.backends.load import load
from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import Outcome, Scope
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import ALPHA_1, MODEL, RESIDUAL_RATIO, SEED, Table, high_of, low_of

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")


@pytest.fixture
def rounded():
    return load_module("rounded_caches")


def test_a_gain_is_what_a_spared_token_takes_off_the_cost(rounded):
    subject = load("sinkinterp/demo-softmax")
    costs = cache_table(subject, Inputs(16, 13).token_set(subject, subject.name).tokens, bits=(4,))
    head = costs.where(**{"one scale for each": "head"})
    cells, by_hand = rounded._cells(head), {row["rounded tokens"]: row["added loss"] for row in head.records()}
    assert cells["added loss"] == by_hand["all"]
    for gain, spared in ((rounded.FIRST, "all but the first"), (rounded.SECOND, "all but the second")):
        assert cells[gain] == pytest.approx(by_hand["all"] - by_hand[spared], abs=1e-7)
        assert cells[low_of(gain)] <= cells[gain] <= cells[high_of(gain)]


def rows(rounded, gain, cost):
    """Three seeds of every model; `gain` and `cost` say what alpha_1 makes of them."""
    for i, arm in enumerate(rounded.arms(Scope(Scale.DEMO))):
        for seed in range(3):
            alpha = (i * 5 % 14) / 14 + seed / 100
            quantities = {
                "added loss": cost(i, alpha),
                rounded.FIRST: gain(i, alpha),
                rounded.SECOND: (i % 3 - 1) / 1e3,
                RESIDUAL_RATIO: 2 + i % 4,
            }
            ends = {end(name): value for name, value in quantities.items() for end in (low_of, high_of)}
            yield {MODEL: arm.name, SEED: seed, "one scale for each": "head", ALPHA_1: alpha, **quantities, **ends}


@pytest.mark.parametrize(
    "gain, cost, outcomes",
    [
        (lambda i, alpha: 0.01 + alpha, lambda i, alpha: -alpha, [Outcome.HOLDS, Outcome.HOLDS, Outcome.HOLDS]),
        (lambda i, alpha: -0.01 - i % 2, lambda i, alpha: alpha, [Outcome.FAILS, Outcome.FAILS, Outcome.FAILS]),
    ],
)
def test_the_rules_tell_a_gain_that_follows_the_sink_from_one_that_does_not(rounded, gain, cost, outcomes):
    table = Table.of("", "", tuple(rows(rounded, gain, cost)))
    assert [rule.verdict(table).outcome for rule in rounded.EXPERIMENT.rules] == outcomes
    assert len(rounded.draw(table).data) == 3
