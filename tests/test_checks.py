import numpy as np
import pytest
import torch
from refusals import refused

from sinkinterp import checks
from sinkinterp.checks import InputError
from sinkinterp.interventions import Scale, SwapPositions


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)])
def test_whole_numbers_of_any_library_become_pythons(value):
    number = checks.whole_number(value, "a layer", 0, 5)
    assert number == 3 and type(number) is int


NOT_WHOLE = (0.5, 3.0, True, "3", None, np.bool_(True), torch.tensor(3.0), [3], torch.tensor(True))


@pytest.mark.parametrize("value", NOT_WHOLE)
def test_nothing_else_is_a_whole_number(value):
    assert not checks.is_whole(value)
    refused(lambda: checks.whole_number(value, "a layer", 0, 5), "layer")


@pytest.mark.parametrize("value", [-1, 6, 10**40])
def test_limits_are_inclusive_and_named(value):
    assert checks.whole_number(0, "a layer", 0, 5) == 0 and checks.whole_number(5, "a layer", 0, 5) == 5
    refused(lambda: checks.whole_number(value, "a layer", 0, 5), "0")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", True, None, 10**400, 1j, torch.ones(2)])
def test_a_value_that_is_not_finite_is_refused(value):
    assert checks.finite_number(np.float32(0.5), "a scale") == 0.5
    refused(lambda: checks.finite_number(value, "a scale"), "scale")


def test_fields_are_checked_by_their_types_and_stored_as_pythons_numbers():
    edit = SwapPositions(np.int64(0), torch.tensor(4))
    assert edit == SwapPositions(0, 4) and type(edit.second) is int and hash(edit) == hash(SwapPositions(0, 4))
    refused(lambda: Scale(float("nan")), "Scale")


def test_a_measurement_beyond_the_memory_is_refused_with_its_size():
    checks.check_memory(1, "it", "take less")
    refused(lambda: checks.check_memory(2 * 10**15, "a million models", "take less"), "million")


def test_the_nearest_name_is_asked_for():
    assert checks.nearest("sofmax", ["softmax", "sigmoid"]) == " (did you mean 'softmax'?)"
    assert checks.nearest("xyz", ["softmax", "sigmoid"]) == checks.nearest(None, ["softmax"]) == ""


def test_an_error_is_one_line_whatever_stands_in_it():
    assert str(InputError("no folder a\nb; check the path")) == "no folder a b; check the path"
