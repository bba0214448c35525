"""First tokens and sinks that were planted are found, and caches equal what they stand for."""

import pytest
import torch
from backends.zoo import subject_of, tokens_of

from sinkinterp.applications import eviction
from sinkinterp.backends.load import load
from sinkinterp.runs.inputs import Inputs

GROUPED = "llama with grouped queries"


@pytest.mark.parametrize("name, needed", [("demo-softmax", 1), ("demo-k_bias", 0)])
def test_the_twin_whose_sink_is_a_token_must_keep_it_and_the_twin_with_key_biases_nothing(name, needed):
    subject = load(f"sinkinterp/{name}")
    tokens = Inputs(16, 256).token_set(subject, subject.name).tokens
    losses = eviction.first_token_losses(subject, tokens, (6,), kept=(0, 1, 2))
    zero, one, _ = losses.table().records()
    assert abs(one["added loss"]) < 1e-3 and "cannot" not in losses.answer()
    assert (zero["added loss low"] > 0.002) == bool(needed)
    errors = eviction.heads_table(subject, tokens, 6, tolerance=0.5, kept=(0, 1, 2)).records()[0]
    assert errors["fewest first tokens"] == needed
    if needed:
        assert errors["control error with 1"] > 2 * errors["error with 1"]


def test_without_a_first_token_is_always_tried():
    losses = eviction.first_token_losses(subject_of("llama"), tokens_of(13), (6,), kept=(2,))
    assert sorted({n for _, n in losses.added}) == [0, 2] and losses.answer()


def test_the_recommendation_is_the_fewest_beside_which_more_gain_less_than_a_hundredth():
    noise = torch.linspace(-1e-3, 1e-3, 7)
    planted = {0: 0.9, 1: 0.125, 2: 0.105, 4: 0.1, 8: 0.1}
    losses = eviction.Losses({(64, n): loss + noise for n, loss in planted.items()}, {}, "")
    sentence = losses.answer()
    assert (
        sentence.startswith("Keep 2 first tokens: a window of 64")
        and "adds 0.105 [" in sentence
        and "without any 0.9 [" in sentence
    )


def losses_of(**added):
    """Losses of four texts, by first tokens kept: k0, k1, ..."""
    by = {(8, int(name[1:])): torch.tensor(values) for name, values in added.items()}
    return eviction.Losses(by, {}, "")


def test_the_answer_says_what_the_texts_can_tell():
    wide, flat = [-0.5, 0.5, 0.4, -0.4], [0.0, 0.001, 0.0, 0.001]
    assert losses_of(k0=[1.0, 1.1, 0.9, 1.0], k1=flat, k4=flat).answer().startswith("Keep 1 first token: a window of 8")
    assert losses_of(k0=flat, k1=flat).answer().startswith("Keep no first tokens: ")
    assert (
        losses_of(k0=wide, k1=flat, k4=flat).answer().startswith("These 4 texts do not tell; give more. With 1 first")
    )
    unsure = losses_of(k0=[1.0, 1.1, 0.9, 1.0], k1=flat, k4=[0.3, -0.1, 0.1, -0.2], k8=[0.3, -0.2, 0.2, -0.1]).answer()
    assert unsure.startswith(
        "These 4 texts do not tell; give more. With 1 first token a window of 8 then adds 0.0005 ["
    )
    assert losses_of(k0=[0.0], k1=[0.1]).answer().startswith("One text does not tell; give more. With no first tokens")
    by_means = losses_of(k0=[1.0, 1.1, 0.9, 1.0], k1=[0.03, -0.02, 0.02, -0.01], k4=flat, k8=flat).answer()
    assert by_means.startswith("Keep 4 first tokens: ") and "By the means alone 1 will do" in by_means
    most = losses_of(k0=[1.0, 1.1, 0.9, 1.0], k1=[0.5, 0.6, 0.4, 0.5], k4=flat).answer()
    assert most.startswith("Keep 4 first tokens, or more, which were not tried: ")
