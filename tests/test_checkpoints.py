"""The checkpoints that ship are what their card says."""

import hashlib
import json
from dataclasses import replace

import pytest

import sinkinterp as si
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.backends.named_models import SHIPPED
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.runs.inputs import Inputs
from sinkinterp.train.recipe import RECIPES, recipe_in, with_variant

CARD = {"demo-softmax": (2.385, 0.982, None), "demo-sigmoid": (2.385, 0.0, None), "demo-k_bias": (2.386, 0.0, 0.982)}


# on code and on docstrings: loss on code, Sink_1 on both, Sink_* on both
TEXT = {
    "text-softmax": (2.930, 0.091, 0.323, None, None),
    "text-softmax-48k": (2.872, 0.300, 0.477, None, None),
    "text-k_bias": (2.923, 0.0, 0.0, 0.927, 0.995),
    "text-sigmoid": (2.883, 0.0, 0.0, None, None),
    "text-sigmoid_length": (2.894, 0.0, 0.0, None, None),
}
REPEATS = {  # loss, Sink_1 and Sink_*, on the docstrings
    "repeats-softmax": (4.284, 0.781, None),
    "repeats-k_bias": (4.212, 0.0, 0.981),
    "repeats-sigmoid": (4.226, 0.0, None),
}
SAMPLES = {name: SHIPPED / f"text-{name}.json" for name in ("sample", "docstrings")}  # token ids


@pytest.mark.parametrize("name", CARD)
def test_a_shipped_checkpoint_gives_the_numbers_of_its_card(name):
    loss, sink, slot = CARD[name]
    subject = si.load(f"sinkinterp/{name}")
    token_set = Inputs(16, 512).token_set(subject, f"sinkinterp/{name}")
    report = si.measure(subject, token_set, instruments=(si.measurement.instruments.LOSS,))
    assert report.extra(NEXT_TOKEN_LOSS).mean().item() == pytest.approx(loss, abs=1e-3)
    assert report.sink_rate().mean == pytest.approx(sink, abs=1e-3)
    rate = report.slot_rate()
    assert (rate is None) == (slot is None) and (rate is None or rate.mean == pytest.approx(slot, abs=1e-3))


@pytest.mark.parametrize("name", TEXT)
def test_a_text_checkpoint_gives_the_numbers_of_its_card_on_the_samples_that_ship(name):
    loss, *rates = TEXT[name]
    subject, found = si.load(f"sinkinterp/{name}"), []
    for sample in SAMPLES.values():
        token_set = Inputs(64, 128, tokens=sample).token_set(subject, f"sinkinterp/{name}")
        found.append(si.measure(subject, token_set, instruments=(si.measurement.instruments.LOSS,)))
    assert found[0].extra(NEXT_TOKEN_LOSS).mean().item() == pytest.approx(loss, abs=1e-3)
    slots = [report.slot_rate() for report in found]
    rates_found = [report.sink_rate().mean for report in found] + [slot and slot.mean for slot in slots]
    assert [rate is None for rate in rates] == [rate is None for rate in rates_found]
    assert [rate or 0 for rate in rates_found] == pytest.approx([rate or 0 for rate in rates], abs=2e-3)


@pytest.fixture(scope="module")
def docstrings():
    """The texts of the sample of docstrings, BOS left out."""
    tokenizer = load_tokenizer("sinkinterp/text-softmax")
    return [tokenizer.decode(row[1:]) for row in json.loads(SAMPLES["docstrings"].read_text())]


@pytest.mark.parametrize("name", REPEATS)
def test_a_checkpoint_with_a_tokenizer_of_its_own_gives_the_numbers_of_its_card(name, docstrings):
    subject = si.load(f"sinkinterp/{name}")
    tokens = subject.tokens(docstrings, length=62)
    report, slot = si.measure(subject, tokens, instruments=(si.measurement.instruments.LOSS,)), REPEATS[name][2]
    assert report.protocol.sequences == 128 and (report.slot_rate() is None) == (slot is None)
    rates = [report.sink_rate().mean, report.slot_rate() and report.slot_rate().mean]
    assert report.extra(NEXT_TOKEN_LOSS).mean().item() == pytest.approx(REPEATS[name][0], abs=1e-3)
    assert [rate or 0 for rate in rates] == pytest.approx([rate or 0 for rate in REPEATS[name][1:]], abs=2e-3)


def test_every_checkpoint_that_ships_is_tested_and_stands_in_the_card():
    shipped = {folder.name for folder in SHIPPED.iterdir() if folder.is_dir()}
    card = (SHIPPED / "README.md").read_text()
    assert shipped == set(CARD | TEXT | REPEATS) and all(name in card for name in shipped)
    samples = [json.dumps(json.loads(sample.read_text())) for sample in SAMPLES.values()]
    assert all(hashlib.sha256(sample.encode()).hexdigest()[:12] in card for sample in samples)
    assert all(recipe_in(SHIPPED / name).data.sha256[:12] in card for name in TEXT | REPEATS)


@pytest.mark.parametrize("name", TEXT | REPEATS)
def test_a_text_checkpoint_was_made_by_the_command_of_its_card_and_reads_text(name, docstrings):
    kind, variant, *longer = name.split("-")
    base = {"text": RECIPES["text"], "repeats": replace(RECIPES["text-repeats"], seed=2)}[kind]
    recipe, said = recipe_in(SHIPPED / name), with_variant(base, variant)
    steps = 48_000 if longer else said.steps
    assert recipe == replace(said, steps=steps, data=replace(said.data, sha256=recipe.data.sha256))
    history = json.loads((SHIPPED / name / "history.json").read_text())
    assert history[0]["step"] == 0 and history[-1]["step"] == recipe.steps
    tokenizer = load_tokenizer(f"sinkinterp/{name}")
    assert (
        tokenizer("import os\n")["input_ids"][0]
        == tokenizer.bos_token_id
        == json.loads(SAMPLES["sample"].read_text())[0][0]
    )
    assert all(tokenizer.decode(tokenizer.encode(text)[1:]) == text for text in docstrings)


@pytest.mark.parametrize("name", CARD)
def test_a_checkpoint_was_made_by_the_command_of_its_card(name):
    recipe = recipe_in(SHIPPED / name)
    assert recipe == si.Recipe(model=si.VARIANTS[name.removeprefix("demo-")], seed=0)
