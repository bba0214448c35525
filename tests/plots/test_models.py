"""A model has one colour, whatever stands beside it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sinkinterp.plots.theme import COLOURS, model_numbers

SHIPPED = ("softmax", "sigmoid", "k_bias")
NAMES = st.lists(st.text(max_size=8), unique=True, max_size=len(COLOURS))


def test_models_that_ship_have_the_same_colours_on_all_pages():
    assert model_numbers(SHIPPED) == {"softmax": 0, "sigmoid": 1, "k_bias": 2}
    for task in ("demo-", "text-", "sinkinterp/demo-", "/a/folder/text-"):
        assert list(model_numbers([task + name for name in reversed(SHIPPED)]).values()) == [2, 1, 0]


@settings(max_examples=50, deadline=None, database=None)
@given(NAMES)
def test_up_to_as_many_models_as_colours_differ(names):
    numbers = model_numbers(names)
    assert numbers.keys() == set(names) and len(set(numbers.values())) == len(names)
    assert all(0 <= number < len(COLOURS) for number in numbers.values())


@settings(max_examples=50, deadline=None, database=None)
@given(st.text(min_size=1, max_size=8), NAMES)
def test_a_model_that_ships_keeps_its_colour_whatever_stands_beside_it(name, others):
    assert model_numbers([*others, "softmax"])["softmax"] == 0
    assert model_numbers([name]) == model_numbers([name])


def test_more_models_than_colours_share_some():
    numbers = model_numbers([f"m{i}" for i in range(20)])
    assert len(numbers) == 20 and set(numbers.values()) == set(range(len(COLOURS)))
