"""The mask of `Evict` computes what a rolling cache does that is filled token by token. The cache is the oracle."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from backends.zoo import model_of, tokens_of
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import BASE, variants

STREAMS = ("gpt2", "opt", "pythia", "llama", "llama with grouped queries", "qwen2", "qwen3 with normed queries")


class RollingLayer(DynamicLayer):
    """One layer's keys and values of the first `sinks` tokens and the last `window - sinks`, as they were written."""

    def __init__(self, window: int, sinks: int) -> None:
        super().__init__()
        self.window, self.sinks, self.seen = window, sinks, 0

    def update(self, key_states, value_states, *args, **kwargs):
        self.seen += key_states.shape[-2]
        keys, values = super().update(key_states, value_states)
        self.keys, self.values = self.kept(keys), self.kept(values)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return min(self.seen, self.window - 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return min(self.seen + query_length, self.window), 0

    def kept(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[-2] <= self.window:
            return rows
        return torch.cat((rows[..., : self.sinks, :], rows[..., rows.shape[-2] - self.window + self.sinks :, :]), -2)


@torch.no_grad()
def rolled(model: PreTrainedModel, tokens: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """Logits of the tokens that fill the cache, in one pass, then of each later one in its own."""
    n = tokens.shape[1]
    cache = Cache(layers=[RollingLayer(window, sinks) for _ in range(model.config.num_hidden_layers)])
    chunks = [torch.arange(*ends)[None] for ends in pairwise((0, *range(window, n), n))]
    how = {"past_key_values": cache, "use_cache": True}
    return torch.cat([model(tokens[:, chunk[0]], position_ids=chunk, **how).logits for chunk in chunks], 1)


def compare(subject: HuggingFaceSubject, window: int, sinks: int) -> None:
    tokens = tokens_of()
    ours = subject.run(tokens, edits=[Evict(window, sinks)]).logits
    torch.testing.assert_close(ours, rolled(subject.model, tokens, window, sinks), atol=1e-4, rtol=0)
    assert (ours - subject.run(tokens).logits).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "window", "sinks", "implementation"),
    [
        *((name, 7, 2, "sdpa") for name in STREAMS),
        *((name, *size, "sdpa") for name in ("gpt2", "pythia") for size in ((5, 0), (3, 2), (1, 0))),
        *((name, 7, 2, "eager") for name in ("opt", "llama with grouped queries")),
    ],
)
def test_one_masked_pass_equals_reading_token_by_token(name, window, sinks, implementation):
    model = model_of(name)
    model.set_attn_implementation(implementation)
    compare(HuggingFaceSubject(model, name), window, sinks)


@pytest.mark.parametrize("name", ["learned", "rotary", "no_position", "sinusoidal", "sigmoid", "kv_bias", "sink_token"])
def test_our_own_models_stream(name):
    model = build(variants(replace(BASE, vocab=97, d_model=48, n_layers=2, n_heads=2, n_ctx=32))[name]).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "_proj" in part or "position" in part or "slots" in part:
                parameter.mul_(20)
    compare(HuggingFaceSubject(model, name), 7, 2)
