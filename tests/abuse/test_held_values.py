"""What people hold, given to every public function: attention weights are drawn, and all else is one line."""

import json
from functools import partial
from types import SimpleNamespace

import datasets
import numpy as np
import pandas
import pytest
import torch
from backends.zoo import model_of
from nnsight import NNsight
from refusals import refused

import sinkinterp as si
from sinkinterp.applications.position_swap import swap_table
from sinkinterp.backends.bridge import bridge_of

IDS = torch.randint(60, (1, 7), generator=torch.Generator().manual_seed(3))
TEXT = "Language models pour attention onto their first token."
MODEL = "sinkinterp/text-softmax"


@pytest.fixture(scope="module")
def held():
    """The attention of one pass in every form that people hold, and the same weights, `layer batch head query key`."""
    model, bridge = model_of("gpt2"), bridge_of(model_of("gpt2"))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(IDS, output_attentions=True)
        _, cache = bridge.run_with_cache(IDS)
    weights = torch.stack(output.attentions, 1)
    return SimpleNamespace(
        weights=weights,
        all={
            "an ActivationCache": cache,
            "output_attentions": output.attentions,
            "an output": output,
            "a tensor of all layers": weights,
            "an array": weights.numpy(),
            "a layer": weights[:, 0],
            "a sequence": weights[0, 0],
            "a map": weights[0, 0, 0],
        },
        others={
            "logits": output.logits[0, 0],
            "a cache without patterns": {"hook_embed": output.logits},
            "a report": si.measure(model_of("gpt2"), IDS),
            "a figure": si.attention_map(model_of("gpt2"), IDS),
            "a data frame": pandas.DataFrame({"text": [TEXT]}),
            "a dataset": datasets.Dataset.from_dict({"text": [TEXT]}),
            "a state dict": model.state_dict(),
            "a configuration": model.config,
            "an optimiser": torch.optim.SGD(model.parameters()),
            "nothing": None,
            "a bridge in nnsight": NNsight(bridge),
            "a model in a bridge, in nnsight": NNsight(bridge.original_model),
        },
    )


def test_attention_that_someone_holds_is_drawn_as_it_is(held):
    tokens, whole = [f"<b>{i}" for i in range(7)], si.sinks(held.weights).records()
    for form, given in held.all.items():
        figure = si.attention_map(given, tokens, heads=[(0, 0)])
        rows = [np.pad(np.array(row, dtype=float), (0, 7 - len(row))) for row in figure.data[0].z]
        np.testing.assert_allclose(rows, held.weights[0, 0, 0], atol=1e-4, err_msg=form)
        assert list(figure.data[0].x)[1] == "1 &lt;b&gt;1"
        table, page = si.sinks(given), si.view(given, IDS[0].tolist(), open_browser=False)
        assert table.records()[1]["alpha_1"] == pytest.approx(whole[1]["alpha_1"], abs=1e-5), form
        assert table.title in page.html and "<script" in page.html
        refused(lambda given=given: si.view(given, IDS[0].tolist(), heads=[(0, 9)], open_browser=False), "9")


@pytest.mark.parametrize("tokens", [TEXT, ["too", "few"], IDS[:, :5], 3])
def test_tokens_that_are_not_those_of_the_weights_are_refused(tokens, held):
    refused(lambda: si.attention_map(held.weights, tokens), "weights")


def test_weights_that_someone_holds_are_not_edited(held):
    refused(lambda: si.attention_map(held.weights, IDS, edits=si.SwapPositions(0, 1)))


TAKE = {
    "load": si.load,
    "swap_table": lambda given: swap_table(given, IDS, [2]),
    "attention_map": lambda given: si.attention_map(given, IDS),
    "view": lambda given: si.view(given, IDS, open_browser=False),
    "sinks": si.sinks,
}


@pytest.mark.parametrize("function", TAKE)
def test_an_object_that_is_neither_model_nor_attention_is_refused_in_one_line(function, held):
    takes_attention = function in ("attention_map", "view", "sinks")
    for what, given in {**held.others, **({} if takes_attention else held.all)}.items():
        assert len(refused(partial(TAKE[function], given))) < 400, what


INPUTS = {
    "a tensor": torch.tensor([[5, 7, 9, 11, 13]]),
    "what a tokenizer returned": {"input_ids": [[5, 7, 9, 11, 13]]},
    "a dictionary of ids": {"mine": [5, 7, 9, 11, 13]},
    "a dictionary of texts": {"mine": TEXT},
}


@pytest.mark.parametrize("what", INPUTS)
def test_a_table_of_swaps_reads_what_a_measurement_reads(what):
    given = INPUTS[what]
    table = swap_table(MODEL, given, [2])
    alone = given["mine"] if isinstance(given, dict) and "mine" in given else given
    row = next(row for row in table.records() if row["edit"] == "p1 <-> p_t")
    report = si.measure(MODEL, alone, edits=si.SwapPositions(0, 2))
    assert row["Sink_1"] == report.sink_rate().mean and row["input"] == ("mine" if alone is not given else "given")
    assert json.dumps(table.note)
