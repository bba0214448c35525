"""What functions of users return fits its place, or is refused with their name; what they are shown stays as it was."""

from functools import partial

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import WRONG, refused

import sinkinterp as si
from sinkinterp.attention.sites import CALL, RESIDUAL
from sinkinterp.interventions import ChangeResidual, ChangeValues, Put
from sinkinterp.interventions.changes import Operation
from sinkinterp.measurement.patching import attribution, mean_patch
from sinkinterp.metrics.metric import LogitsMetric, Metric

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")
TOKENS = tokens_of()[:4, :11]


@pytest.fixture(scope="module")
def subject():
    return si.load(model_of("gpt2"))


@pytest.mark.parametrize("wrong", WRONG)
def test_an_operation_that_does_not_fit_is_named(subject, wrong):
    mine = type("Mine", (Operation,), {"__call__": lambda self, layer, x: WRONG[wrong](x)})()
    said = {"None": "None", "a number": "a float"}.get(wrong, "")
    for change in (ChangeResidual(mine, positions=[2]), ChangeValues(mine, layers=[1])):
        refused(partial(si.measure, subject, TOKENS, edits=change, progress=False), "Mine", said)


BAD_METRICS = {
    "rows of the vocabulary": (None, lambda logits, tokens: logits.mean(1).T),
    "no axis of sequences": (RESIDUAL, lambda x: x.mean()),
    "a sequence less": (CALL, lambda call: call.q[1:].mean((1, 2, 3))),
    "None": (CALL, lambda call: None),
    "a number": (RESIDUAL, lambda x: 3.0),
    "changes queries": (CALL, lambda call: call.q.zero_().mean((1, 2, 3))),
    "changes outputs": (CALL, lambda call: call.output().mul_(2).mean((1, 2, 3))),
    "changes residuals": (RESIDUAL, lambda x: x.mul_(2).mean((1, 2))),
    "changes logits": (None, lambda logits, tokens: logits.mul_(2).mean((1, 2))),
    "changes tokens": (None, lambda logits, tokens: tokens.add_(1).float().mean(1)),
}


@pytest.mark.parametrize(("site", "read"), BAD_METRICS.values(), ids=BAD_METRICS)
def test_a_metric_that_does_not_fit_or_changes_what_it_reads_is_named(subject, site, read):
    metric = LogitsMetric("mine", read) if site is None else Metric("mine", site, read)
    refused(lambda: si.measure(subject, TOKENS, instruments=metric, progress=False), "metric")


def test_what_a_metric_does_to_normalisers_and_patterns_changes_no_other_number(subject):
    def spoil(call):
        call.log_normaliser().zero_()
        return call.pattern().zero_().sum((1, 2, 3))

    plain = si.measure(subject, TOKENS, progress=False)
    beside = si.measure(subject, TOKENS, instruments=Metric("spoil", CALL, spoil), progress=False)
    assert beside.importance.equal(plain.importance) and beside.raw_importance.equal(plain.raw_importance)


def test_activations_of_another_number_of_sequences_are_refused(subject):
    for values in (torch.zeros(5, 11, 48), torch.zeros(3, 11, 48)):
        refused(
            partial(si.measure, subject, TOKENS, edits=ChangeResidual(Put({1: values}), layers=[1]), progress=False),
            "Put",
        )


def test_scores_and_means_of_first_positions_that_do_not_fit_are_refused(subject):
    """A score gives a number per sequence, and positions count from 0."""
    site, source = ChangeResidual(layers=[1]), {1: torch.zeros(4, 11, 48)}
    refused(lambda: attribution(site, subject, TOKENS, source, lambda logits, tokens: logits.sum()))
    refused(lambda: mean_patch(ChangeResidual(layers=[1]), subject, TOKENS, first=-1), "first")
