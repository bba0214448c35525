import pytest
import torch
from backends.zoo import bare_logits, model_of, tokens_of
from refusals import refused
from torch import nn

import sinkinterp as si
from sinkinterp.backends.anatomy import positions_replaced
from tools.families import tiny_model


def test_a_table_returns_the_rows_of_other_positions_counted_from_its_first():
    table, positions = nn.Embedding(13, 7), torch.tensor([[4, 1, 2, 3, 0]])
    with positions_replaced([table], positions):
        assert table(2 + torch.arange(5)).equal(table.weight[2 + positions])


@pytest.mark.parametrize("name", ["llama", "qwen3 with normed queries", "gemma3", "pythia"])
def test_texts_beyond_the_context_are_read_on_demand_and_the_protocol_says_so(name):
    model, tokens = model_of(name), tokens_of(71)
    refused(lambda: si.load(model, name="llama").run(tokens), "llama")
    subject = si.load(model, name="llama", beyond_context=True)
    torch.testing.assert_close(subject.run(tokens).logits, bare_logits(model, tokens), rtol=0, atol=1e-5)
    assert "its context of 64 tokens is no limit" in si.measure(subject, tokens).protocol.line()


@pytest.mark.parametrize("model", [model_of("gpt2"), model_of("opt"), tiny_model("gptj")], ids=["gpt2", "opt", "gptj"])
def test_a_model_with_a_table_of_positions_has_none_beyond_its_context(model):
    refused(lambda: si.load(model, beyond_context=True))
