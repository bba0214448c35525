"""Where massive activations are found, on numbers made by hand."""

import pytest
import torch

import sinkinterp as si
from experiments.shared.massive import chosen_dims, massive_dims
from sinkinterp.backends.files.named_models import downloads
from sinkinterp.data.token_sources import random_tokens

SEQUENCES, BLOCKS, DIMS = 3, 5, 7


def entries(**by_place):
    """Zeros but for bBdD=value, in all sequences."""
    x = torch.zeros(SEQUENCES, BLOCKS, DIMS)
    for place, value in by_place.items():
        x[:, int(place[1]), int(place[3])] = value
    return x


def test_dims_are_those_that_are_massive_in_most_sequences_of_some_block():
    first = entries(b1d0=600.0, b2d4=-900.0, b2d6=700.0, b3d4=-950.0, b3d6=650.0)
    massive = torch.zeros_like(first, dtype=torch.bool)
    massive[:, 2:4, 4] = True
    massive[0, 2, 6] = massive[0, 1, 0] = True  # in one sequence of three
    place = chosen_dims(first, massive)
    assert (place.dims, place.onset, place.tallest, place.massive) == ((4,), 2, 3, True)
    massive[1, 2, 6] = massive[1, 1, 0] = True
    place = chosen_dims(first, massive)
    assert (place.dims, place.onset) == ((4, 6, 0), 1) and place.largest[:3] == (4, 6, 0)


def test_without_a_massive_one_it_is_the_largest_dimension_of_the_tallest_block():
    first = entries(b1d3=5.0, b4d2=-8.0, b4d5=6.0)
    place = chosen_dims(first, torch.zeros_like(first, dtype=torch.bool))
    assert (place.dims, place.onset, place.tallest, place.massive) == ((2,), 4, 4, False)
    assert place.largest[:2] == (2, 5) and "none is massive" in place.line()


def test_controls_are_as_many_other_dimensions():
    first = entries(b2d4=-900.0, b2d6=700.0)
    place = chosen_dims(first, first.abs() > 600)
    drawn = [place.others(seed) for seed in range(20)]
    assert place.dims == (4, 6) and all(len(set(dims)) == 2 and not {4, 6} & set(dims) for dims in drawn)
    assert len(set(drawn)) > 1 and place.others(3) == drawn[3]


@pytest.mark.skipif(
    not (downloads() / "smollm2-135m-instruct").is_dir(), reason="needs local/smollm2-135m-instruct: run make models"
)
def test_smollm2_has_one_massive_dimension():
    place = massive_dims(si.load("local/smollm2-135m-instruct"), random_tokens(49_152, 32, 5))
    assert (place.dims, place.onset, place.massive) == ((507,), 12, True)
