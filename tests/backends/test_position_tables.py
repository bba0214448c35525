import pytest
import torch
from backends.zoo import bare_logits, model_of, tokens_of
from refusals import refused

import sinkinterp as si
from tools.families import tiny_model


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
