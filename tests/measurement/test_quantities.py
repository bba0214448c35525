"""Quantities of chosen layers and heads; `test_beside_eager` holds that they are those of transformers."""

import math
import pickle

import pytest
import torch
from backends.zoo import subject_of
from refusals import refused

import sinkinterp as si
from sinkinterp.metrics.estimates import Estimate, rate
from sinkinterp.metrics.instruments import ALL

TOKENS = torch.randint(64, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def name(request):
    return request.param


def test_chosen_layers_are_those_among_all(name):
    subject, last = subject_of(name), [2, 0]
    weights, x = si.attention_weights(subject, TOKENS), si.hidden_states(subject, TOKENS)
    assert si.attention_weights(subject, TOKENS, layers=last).equal(weights[:, last])
    assert si.hidden_states(subject, TOKENS, layers=1).equal(x[:, 1:2])


def test_lengths_and_cosines_have_the_axes_of_their_signatures(name):
    subject, report = subject_of(name), si.measure(subject_of(name), TOKENS)
    shape = subject.shape
    for norms, of_report in ((si.key_norms, report.key_norms), (si.value_norms, report.value_norms)):
        assert norms(subject, TOKENS).shape == (shape.n_layers, shape.n_kv_heads, 11)
        torch.testing.assert_close(norms(subject, TOKENS, layers=1), of_report.mean(0)[1:2])
        assert norms(report).equal(of_report.nanmean(0))
    cosines = si.qk_cosines(subject, TOKENS, position=4)
    assert cosines.shape == (shape.n_layers, shape.n_heads, 11)
    assert cosines[..., :4].isnan().all() and cosines[..., 4:].abs().le(1 + 1e-6).all()
    alone = si.qk_angles(subject, TOKENS[:1], position=4)
    torch.testing.assert_close(alone.deg2rad().cos(), si.qk_cosines(subject, TOKENS[:1], position=4), equal_nan=True)


def test_a_rate_is_of_the_chosen_layers_or_heads_and_of_one_epsilon(name):
    subject, report = subject_of(name), si.measure(subject_of(name), TOKENS)
    assert si.sink_rate(subject, TOKENS) == report.sink_rate() == si.sink_rate(report)
    alpha = report.alpha(2)
    epsilon = alpha.flatten().sort().values[alpha.numel() // 2 - 1 :][:2].mean().item()  # at an alpha, rounding decides
    above = (alpha > epsilon).double()
    assert si.sink_rate(report, position=2, epsilon=epsilon) == rate(above.mean((1, 2)).float())
    assert si.sink_rate(report, position=2, epsilon=epsilon, layers=1).mean == pytest.approx(above[:, 1].mean().item())
    heads = [(0, 3), (1, 2), (1, 0)]
    chosen = torch.stack([above[:, layer, head] for layer, head in heads], 1)
    found = si.sink_rate(subject, TOKENS, position=2, epsilon=epsilon, heads=heads)
    assert found.mean == pytest.approx(chosen.mean().item())


def test_what_is_not_there_is_refused(name):
    subject, report = subject_of(name), si.measure(subject_of(name), TOKENS, instruments=ALL)
    for heads in ([0, 1], [(0, 99)], [(99, 0)], [(0, 1, 2)]):
        refused(lambda heads=heads: si.sink_rate(report, heads=heads), "head")
    for function in (si.key_norms, si.massive_activations, si.loss, si.hidden_states):
        with pytest.raises(TypeError):
            function(subject, TOKENS, epsilon=0.5)
    with pytest.raises(TypeError):
        si.sink_rate(report, 0.3, 2)


def test_an_estimate_is_compared_by_value_printed_formatted_and_pickled():
    whole, one = Estimate(0.8, 0.714, 0.873), Estimate(0.5, math.nan, math.nan)
    assert (repr(whole), str(whole), f"{whole:.0%}") == ("0.8 [0.714, 0.873]",) * 2 + ("80% [71%, 87%]",)
    assert (repr(one), f"{one:.1%}", float(one)) == ("0.5", "50.0%", 0.5)
    for estimate in (whole, one):
        again = pickle.loads(pickle.dumps(estimate))
        assert again == estimate and hash(again) == hash(estimate)
    assert whole != one != 0.5
