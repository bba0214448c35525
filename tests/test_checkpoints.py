"""The checkpoints that ship are what their card says."""

import pytest

import sinkinterp as si
from sinkinterp.adapters.loading import SHIPPED
from sinkinterp.inputs import Inputs
from sinkinterp.study import recipe_of

CARD = {"demo-softmax": (2.385, 0.982, None), "demo-sigmoid": (2.385, 0.0, None), "demo-k_bias": (2.386, 0.0, 0.982)}


@pytest.mark.parametrize("name", CARD)
def test_a_shipped_checkpoint_gives_the_numbers_of_its_card(name):
    loss, sink, slot = CARD[name]
    subject = si.load(f"sinkinterp/{name}")
    probe = Inputs(16, 512).probe(f"sinkinterp/{name}", subject.shape.vocab)
    report = si.measure(subject, probe, instruments=(si.instruments.LOSS,))
    assert report.extra("loss").mean().item() == pytest.approx(loss, abs=1e-3)
    assert report.sink_rate() == pytest.approx(sink, abs=1e-3)
    rate = report.slot_rate()
    assert (rate is None) == (slot is None) and (rate is None or rate.mean == pytest.approx(slot, abs=1e-3))


def test_every_checkpoint_that_ships_is_tested_and_stands_in_the_card():
    shipped = {folder.name for folder in SHIPPED.iterdir() if folder.is_dir()}
    card = (SHIPPED / "README.md").read_text()
    assert shipped == set(CARD) and all(name in card for name in shipped)


@pytest.mark.parametrize("name", CARD)
def test_a_checkpoint_was_made_by_the_command_of_its_card(name):
    recipe = recipe_of(SHIPPED / name)
    assert recipe == si.Recipe(model=si.VARIANTS[name.removeprefix("demo-")], seed=0)


def test_moving_p1_moves_the_sink_of_the_shipped_model():
    subject = si.load("sinkinterp/demo-softmax")
    probe = Inputs(16, 64).probe("sinkinterp/demo-softmax", 64)
    swapped = si.measure(subject, probe, edits=[si.SwapPositions(0, 4)])
    assert swapped.sink_rate(0) < 0.1 and swapped.sink_rate(4) > 0.8


def test_a_checkpoint_that_does_not_ship_is_refused_with_those_that_do():
    with pytest.raises(si.errors.InputError, match="there are sinkinterp/demo-k_bias, sinkinterp/demo-sigmoid"):
        si.load("sinkinterp/demo-relu")
