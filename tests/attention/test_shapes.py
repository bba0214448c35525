"""Tensors that a user gives."""

import pytest
import torch
from refusals import refused

from sinkinterp.attention.shapes import Gap, Unchanged, called, numbers, per_sequence, tensors_in
from sinkinterp.checks import InputError

X = torch.zeros(3, 5, 7)


@pytest.mark.parametrize("axes", ["sequence head pos", "... pos", "...", "... sequence head pos"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_real_numbers_along_the_named_axes_are_taken_as_they_are(axes, dtype):
    x = X.to(dtype)
    assert numbers(x, axes, "norms") is x


@pytest.mark.parametrize(
    ("given", "axes", "got"),
    [
        (X, "sequence pos", r"\(3, 5, 7\)"),
        (X, "... a b c d", r"\(3, 5, 7\)"),
        (X.to(torch.complex64), "...", "complex64"),
        (X.bool(), "...", "bool"),
        (X.to("meta"), "...", "meta"),
        (X.tolist(), "...", "a list"),
    ],
)
def test_anything_else_is_refused_with_what_was_given(given, axes, got):
    with pytest.raises(InputError, match=rf"norms are a tensor of real numbers `.*`; got .*{got}"):
        numbers(given, axes, "norms")


@pytest.mark.parametrize("answer", [torch.tensor(1.0), torch.zeros(4), torch.zeros(3, 2), [1.0, 2.0, 3.0], None])
def test_an_answer_has_a_number_for_each_sequence(answer):
    assert per_sequence(X[:, 0, 0], 3, "f", axes=1).shape == (3,) and per_sequence(X, None, "f") is X
    with pytest.raises(InputError, match="f returned"):
        per_sequence(answer, 3, "f", axes=1)
    with pytest.raises(InputError, match="f returned"):
        per_sequence(X[:2], 3, "f")


def test_a_function_that_takes_other_arguments_is_named_and_an_error_inside_it_is_its_own():
    def fails(x):
        return x + "1"

    refused(lambda: called(fails, "the edit F", 1, 2), "edit")
    with pytest.raises(TypeError, match="unsupported operand"):
        called(fails, "the edit F", 1)


@pytest.mark.parametrize("shown", [X.clone(), (X[0], X.clone()), (3, (X.clone(),))])
def test_a_function_that_changes_what_it_is_shown_is_named_wherever_the_tensor_is(shown):
    (*_, tensor) = tensors_in(shown)
    assert Unchanged(shown).shown_to(lambda value: value, "f") is shown
    refused(lambda: Unchanged(shown).shown_to(lambda value: tensor.add_(1), "f"), "f changes")


def test_a_gap_is_the_largest_difference_of_either_sign():
    right = torch.tensor([1.0, -5.0, torch.inf])
    for given, difference in ((right + 2, 2), (right - 3, 3), (right, 0), (right.nan_to_num(posinf=7), torch.inf)):
        gap = Gap.of(given, right)
        assert gap.difference == difference and Gap.of(right[:2], right).difference == torch.inf
        assert gap.is_within(0.7) == (difference <= 0.7 * gap.size)
    assert Gap.of(torch.tensor([0.25, torch.nan]), torch.tensor([0.5, torch.nan])) == Gap(0.25, 0.5)
