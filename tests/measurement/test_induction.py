"""Induction scores: an independent computation from whole patterns, and uniform attention."""

import pytest
import torch
from backends.zoo import subject_of

import sinkinterp as si
from sinkinterp.attention import sites
from sinkinterp.interventions import Change, SetTo
from sinkinterp.measurement.watching import induction, induction_scores, uniform_induction
from sinkinterp.metrics.metric import Metric


@pytest.mark.parametrize("name", ["gpt2", "llama with grouped queries", "gpt-oss with sink logits"])
@pytest.mark.parametrize("length", [8, 13])
def test_scores_are_those_of_the_whole_pattern(name, length):
    subject = subject_of(name)
    half = torch.randint(subject.shape.vocab, (3, length // 2), generator=torch.Generator().manual_seed(5))
    scores = induction_scores(subject, 3, length, seed=5)
    weights = si.attention_weights(subject, torch.cat((half, half), 1))  # sequence layer head query key
    h = length // 2
    expected = torch.stack([weights[..., i, i - h + 1] for i in range(h, 2 * h)]).mean(0)
    torch.testing.assert_close(scores, expected.float())


def test_uniform_attention_has_the_score_of_the_null():
    subject = subject_of("gpt2")
    half = torch.randint(subject.shape.vocab, (2, 5))
    metric, zero = Metric("induction", sites.CALL, induction), Change(sites.QUERIES, SetTo(0.0))
    scores = si.measure(subject, torch.cat((half, half), 1), edits=zero, instruments=[(metric,)]).extra(metric)
    torch.testing.assert_close(scores, torch.full_like(scores, uniform_induction(11)))
