import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass

import pytest

import sinkinterp
from sinkinterp.attention.call import AttentionCall, SetPattern
from sinkinterp.attention.masks import Visibility
from sinkinterp.interventions.changes import Add, Put, PutAt

PACKAGES = ("attention", "metrics", "interventions", "measurement", "report")


def dataclasses_of(package):
    """The dataclasses that a package defines."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and is_dataclass(value) and value.__module__ == module.name:
                yield value


@pytest.mark.parametrize("name", PACKAGES)
def test_values_cannot_be_changed(name):
    for kind in dataclasses_of(importlib.import_module(f"{sinkinterp.__name__}.{name}")):
        assert kind.__dataclass_params__.frozen, kind


@pytest.mark.parametrize("kind", [AttentionCall, SetPattern, Visibility, Add, Put, PutAt])
def test_values_of_tensors_are_equal_to_themselves_alone(kind):
    assert kind.__eq__ is object.__eq__ and kind.__hash__ is object.__hash__
