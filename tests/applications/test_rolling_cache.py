from dataclasses import replace

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import refused
from transformers import PreTrainedModel

from sinkinterp.applications.streaming import SinkCache, SinkLayer, check_stream, rolled_logits
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import BASE, variants

STREAMS = ("gpt2", "opt", "pythia", "llama", "llama with grouped queries", "qwen2", "qwen3 with normed queries")


def seen_by(query: int, window: int, sinks: int) -> list[int]:
    return [key for key in range(query + 1) if key < sinks or query - key < window - sinks]


def masked(model: PreTrainedModel, tokens: torch.Tensor, window: int, sinks: int) -> torch.Tensor:
    """Transformers' own forward pass over the whole text, with a mask that evicts for every query."""
    length = tokens.shape[1]
    mask = torch.full((1, 1, length, length), torch.finfo(torch.float32).min)
    for query in range(length):
        mask[..., query, seen_by(query, window, sinks)] = 0
    with torch.no_grad():
        return model(tokens, attention_mask=mask, position_ids=torch.arange(length)[None]).logits


@pytest.mark.parametrize(
    ("name", "window", "sinks", "implementation"),
    [
        *((name, 7, 2, "sdpa") for name in STREAMS),
        *((name, *size, "sdpa") for name in ("gpt2", "pythia") for size in ((5, 0), (3, 2), (1, 0))),
        *((name, 7, 2, "eager") for name in ("opt", "llama with grouped queries")),
    ],
)
def test_reading_token_by_token_equals_a_dense_pass_whose_mask_evicts(name, window, sinks, implementation):
    model, tokens = model_of(name), tokens_of()
    model.set_attn_implementation(implementation)
    expected = masked(model, tokens, window, sinks)  # for every query
    torch.testing.assert_close(rolled_logits(model, tokens, window, sinks), expected, atol=1e-4, rtol=0)


def filled(steps: int, window: int, sinks: int) -> tuple[SinkLayer, torch.Tensor]:
    layer = SinkLayer(window, sinks)
    for i in range(steps):
        row = torch.full((2, 3, 1, 5), float(i))
        keys, values = layer.update(row, -row)
        assert values.equal(-layer.keys)
    return layer, keys


@pytest.mark.parametrize(
    ("steps", "window", "sinks", "kept"),
    [
        (4, 5, 2, [0, 1, 2, 3]),
        (5, 5, 2, [0, 1, 2, 3, 4]),
        (6, 5, 2, [0, 1, 3, 4, 5]),
        (11, 5, 2, [0, 1, 8, 9, 10]),
        (11, 5, 0, [6, 7, 8, 9, 10]),
        (11, 5, 4, [0, 1, 2, 3, 10]),
        (3, 1, 0, [2]),
    ],
)
def test_the_cache_holds_the_first_tokens_and_the_last(steps, window, sinks, kept):
    layer, keys = filled(steps, window, sinks)
    assert layer.keys[1, 2, :, 3].tolist() == kept == keys[0, 0, :, 0].tolist() == seen_by(steps - 1, window, sinks)
    assert layer.get_max_length() == window and layer.get_seq_length() == min(steps, window - 1)


LOSING = ("mistral with a window", "gemma3", "gemma2 with softcap", "gpt-oss with sink logits")
REFUSED = [
    *(("llama", size) for size in ((4, 4), (3, 5), (0, 0), (-2, 0), (5, -1))),
    *((name, (7, 2)) for name in (*LOSING, "jamba with mamba layers")),
]


@pytest.mark.parametrize(("name", "size"), REFUSED)
def test_caches_without_room_for_a_recent_token_or_of_models_that_cannot_have_one_are_refused(name, size):
    refused(lambda: SinkCache(model_of(name), *size))


def test_several_tokens_at_once_beyond_the_window_are_refused():
    model, tokens = model_of("llama"), tokens_of()
    refused(lambda: model(tokens, past_key_values=SinkCache(model, 7, 2)))


def own(name: str) -> HuggingFaceSubject:
    base = replace(BASE, vocab=97, d_model=48, n_layers=2, n_heads=2, n_ctx=32)
    model = build(variants(base)[name]).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "_proj" in part or "position" in part or "slots" in part:
                parameter.mul_(20)
    return HuggingFaceSubject(model, name)


@pytest.mark.parametrize("name", ["learned", "rotary", "no_position", "sinusoidal", "sigmoid", "kv_bias", "sink_token"])
def test_our_own_models_stream(name):
    check_stream(own(name), tokens_of(), 7, 2)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_bias_that_would_count_places_instead_of_positions_is_refused(name):
    refused(lambda: check_stream(own(name), tokens_of(), 7, 2))
    check_stream(own(name), tokens_of(), 7, 0)


def test_a_model_that_computes_something_else_from_its_cache_is_refused(monkeypatch):
    subject = HuggingFaceSubject(model_of("llama"))
    check_stream(subject, tokens_of(), 7, 2)
    monkeypatch.setattr(SinkLayer, "_kept", lambda self, rows: rows[..., -self.window :, :])
    refused(lambda: check_stream(subject, tokens_of(), 7, 2))
