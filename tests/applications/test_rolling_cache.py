from dataclasses import replace

import pytest
import torch
from backends.zoo import LEARNED_POSITIONS, model_of, tokens_of
from refusals import refused
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sinkinterp.applications.streaming import SinkCache, SinkLayer, check_stream, rotation_of, streamed
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import BASE, variants

STREAMS = ("gpt2", "opt", "pythia", "llama", "llama with grouped queries", "qwen2", "qwen3 with normed queries")
ROTARY = tuple(name for name in STREAMS if name not in LEARNED_POSITIONS)


def rolled(model: PreTrainedModel, tokens: torch.Tensor, window: int, sinks: int, **kwargs) -> torch.Tensor:
    return torch.cat(list(streamed(model, tokens, SinkCache(model, window, sinks, **kwargs))), 1)


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
    torch.testing.assert_close(rolled(model, tokens, window, sinks), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ROTARY)
def test_rerotation_changes_nothing_before_eviction_and_something_after_it(name):
    model, tokens = model_of(name), tokens_of()
    in_text, in_cache = (rolled(model, tokens, 7, 2, rerotate=there) for there in (False, True))
    torch.testing.assert_close(in_cache[:, :7], in_text[:, :7])
    assert (in_cache[:, 7:] - in_text[:, 7:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ROTARY)
def test_without_sinks_distances_are_the_same_in_cache_and_text(name):
    model, tokens = model_of(name), tokens_of()
    in_text, in_cache = (rolled(model, tokens, 7, 0, rerotate=there) for there in (False, True))
    torch.testing.assert_close(in_cache, in_text, atol=1e-4, rtol=1e-4)


def filled(steps: int, window: int, sinks: int, rotate=None) -> tuple[SinkLayer, torch.Tensor]:
    layer = SinkLayer(window, sinks, rotate)
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


def test_every_key_is_turned_from_where_it_was_written_to_its_place():
    by: list[list[int]] = []

    def rotate(keys, places):
        by.append(places.tolist())
        return keys

    filled(9, 5, 2, rotate)
    assert by[:5] == [[0] * n for n in range(1, 6)]  # nothing has moved yet
    assert by[5] == [0, 0, -1, -1, 0]  # tokens 0 1 3 4 5, written at 0 1 3 4 4
    assert by[6] == [0, 0, -2, -1, 0]  # tokens 0 1 4 5 6, written at 0 1 4 4 4
    assert by[8] == [0, 0, -2, -1, 0]


@pytest.mark.parametrize("name", ["llama", "pythia"])
def test_a_turned_key_is_the_key_of_its_place(name):
    model = model_of(name)
    rotary, width = model.base_model.rotary_emb, 12
    raw = torch.randn(2, 4, 6, width)

    def at(places):
        """Keys rotated pair by pair, by the angles of transformers' own table."""
        cos, sin = rotary(raw, torch.tensor([places]))
        half, out = cos.shape[-1] // 2, raw.clone()
        for i in range(half):
            a, b = raw[..., i], raw[..., half + i]
            out[..., i] = a * cos[0, :, i] - b * sin[0, :, i]
            out[..., half + i] = b * cos[0, :, i] + a * sin[0, :, i]
        return out

    turned = rotation_of(model, 11)(at([0, 1, 10, 10, 10, 10]), torch.tensor([0, 0, -7, -6, -3, 0]))
    torch.testing.assert_close(turned, at([0, 1, 3, 4, 7, 10]))


def test_a_scaled_rotation_is_turned_without_scaling_twice():
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16}
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
            rope_parameters=yarn, bos_token_id=None, eos_token_id=None, max_position_embeddings=64,
        )
    ).eval()  # fmt: skip
    assert model.base_model.rotary_emb.attention_scaling != 1
    rotation_of(model, 13)  # which compares every layer's keys with those of another place


def test_a_cache_that_was_reset_starts_again():
    model, tokens = model_of("llama"), tokens_of()
    cache = SinkCache(model, 5, 2)
    first = torch.cat(list(streamed(model, tokens, cache)), 1)
    cache.reset()
    assert torch.cat(list(streamed(model, tokens, cache)), 1).equal(first)


LOSING = ("mistral with a window", "gemma3", "gemma2 with softcap", "gpt-oss with sink logits")
REFUSED = [
    *(("llama", size, {}) for size in ((4, 4), (3, 5), (0, 0), (-2, 0), (5, -1))),
    *((name, (7, 2), {}) for name in (*LOSING, "jamba with mamba layers")),
    *((name, (7, 2), {"rerotate": True}) for name in LEARNED_POSITIONS),
]


@pytest.mark.parametrize(("name", "size", "options"), REFUSED)
def test_caches_without_room_for_a_recent_token_or_of_models_that_cannot_have_one_are_refused(name, size, options):
    refused(lambda: SinkCache(model_of(name), *size, **options))


def test_several_tokens_at_once_beyond_the_window_are_refused():
    model, tokens = model_of("llama"), tokens_of()
    refused(lambda: model(tokens, past_key_values=SinkCache(model, 7, 2)))


@pytest.mark.parametrize("spoil", [lambda cos: cos.sort(-1).values, lambda cos: 1.01 * cos])
def test_a_rotation_that_is_not_the_keys_own_is_refused(spoil):
    model = model_of("llama")
    rotation_of(model, 7)
    honest, asked = model.base_model.rotary_emb.forward, []

    def forward(x, position_ids):
        cos, sin = honest(x, position_ids)
        asked.append(position_ids)
        return (cos, sin) if len(asked) <= 2 else (spoil(cos), sin)  # the model itself asks twice

    model.base_model.rotary_emb.forward = forward
    refused(lambda: rotation_of(model, 7))


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


@pytest.mark.parametrize("name", ["alibi", "t5", "no_position"])
def test_our_models_whose_keys_know_no_position_stream_by_places_in_the_cache(name):
    check_stream(own(name), tokens_of(), 7, 2, rerotate=True)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_bias_that_would_count_places_instead_of_positions_is_refused(name):
    refused(lambda: check_stream(own(name), tokens_of(), 7, 2))
    check_stream(own(name), tokens_of(), 7, 0)


def test_a_model_that_computes_something_else_from_its_cache_is_refused(monkeypatch):
    subject = HuggingFaceSubject(model_of("llama"))
    check_stream(subject, tokens_of(), 7, 2)
    monkeypatch.setattr(SinkLayer, "_kept", lambda self, rows: rows[..., -self.window :, :])
    refused(lambda: check_stream(subject, tokens_of(), 7, 2))
