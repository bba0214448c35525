"""The shapes that functions state are checked in these tests: see `conftest.py`."""

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, jaxtyped
from torch import Tensor


@jaxtyped(typechecker=beartype)  # ours in its place
def product(x: Float[Tensor, "row column"], y: Float[Tensor, " column"]) -> Float[Tensor, " row"]:
    return x @ y if len(x) > 2 else y


def test_sizes_are_the_same_in_all_arguments_and_in_the_result():
    ones = torch.ones
    assert product(ones(3, 5), ones(5)).tolist() == [5, 5, 5] == product(ones(3, 5), ones(5)).tolist()
    assert product(ones(7, 2), ones(2)).shape == (7,)  # sizes of another call
    for x, y in ((ones(3, 5), ones(7)), (ones(3, 5).long(), ones(5)), (ones(3), ones(3)), (ones(2, 5), ones(5))):
        with pytest.raises(BeartypeCallHintViolation):
            product(x, y)
