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


NEEDED, WIDE, FLAT = [1.0, 1.1, 0.9, 1.0], [-0.5, 0.5, 0.4, -0.4], [0.0, 0.001, 0.0, 0.001]
UNSURE = {4: [0.3, -0.1, 0.1, -0.2], 8: [0.3, -0.2, 0.2, -0.1]}
HUNDREDTH = {n: [loss - 1e-3, loss + 1e-3] for n, loss in {0: 0.9, 1: 0.125, 2: 0.105, 4: 0.1, 8: 0.1}.items()}


@pytest.mark.parametrize(
    ("added", "words"),
    [  # what each number of first tokens adds, text by text
        (HUNDREDTH, ("Keep 2 first tokens:", "adds 0.105 [", "without any 0.9 [")),
        ({0: NEEDED, 1: FLAT, 4: FLAT}, ("Keep 1 first token:",)),
        ({0: FLAT, 1: FLAT}, ("Keep no first tokens:",)),
        ({0: WIDE, 1: FLAT, 4: FLAT}, ("4 texts do not tell", "With 1 first token")),
        ({0: NEEDED, 1: FLAT, **UNSURE}, ("4 texts do not tell", "With 1 first token", "adds 0.0005 [")),
        ({0: [0.0], 1: [0.1]}, ("One text does not tell", "With no first tokens")),
        ({0: NEEDED, 1: [0.03, -0.02, 0.02, -0.01], 4: FLAT, 8: FLAT}, ("Keep 4 first tokens:", "means alone 1 will")),
        ({0: NEEDED, 1: [0.5, 0.6, 0.4, 0.5], 4: FLAT}, ("Keep 4 first tokens, or more",)),
    ],
)
def test_the_answer_is_the_fewest_beside_which_more_gain_less_than_a_hundredth_or_what_texts_cannot_tell(added, words):
    answer = eviction.Losses({(8, n): torch.tensor(losses) for n, losses in added.items()}, {}, "").answer()
    assert all(word in answer for word in words), answer
