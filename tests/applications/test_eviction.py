"""Rolling caches equal one masked pass; first tokens and sinks that were planted are found."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from sinkinterp.applications.eviction import Losses, first_token_losses, heads_table, streaming_table
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import BASE, variants
from sinkinterp.metrics.estimates import estimate
from sinkinterp.runs.inputs import Inputs


@pytest.mark.parametrize("name, needed", [("demo-softmax", 1), ("demo-k_bias", 0)])
def test_the_twin_whose_sink_is_a_token_must_keep_it_and_the_twin_with_key_biases_nothing(name, needed):
    subject = load(f"sinkinterp/{name}")
    tokens = Inputs(16, 256).token_set(subject, subject.name).tokens
    losses = first_token_losses(subject, tokens, (6,), kept=(0, 1, 2))
    zero, one, _ = losses.table().records()
    assert abs(one["added loss"]) < 1e-3 and "cannot" not in losses.answer()
    assert (zero["added loss low"] > 0.002) == bool(needed)
    errors = heads_table(subject, tokens, 6, tolerance=0.5, kept=(0, 1, 2)).records()[0]
    assert errors["fewest first tokens"] == needed
    if needed:
        assert errors["control error with 1"] > 2 * errors["error with 1"]


def test_without_a_first_token_is_always_tried():
    losses = first_token_losses(subject_of("llama"), tokens_of(13), (6,), kept=(2,))
    assert sorted({n for _, n in losses.added}) == [0, 2] and losses.answer()


NEEDED, WIDE, FLAT = [1.0, 1.1, 0.9, 1.0], [-0.5, 0.5, 0.4, -0.4], [0.0, 0.001, 0.0, 0.001]
UNSURE = {4: [0.3, -0.1, 0.1, -0.2], 8: [0.3, -0.2, 0.2, -0.1]}
HUNDREDTH = {n: [loss - 1e-3, loss + 1e-3] for n, loss in {0: 0.9, 1: 0.125, 2: 0.105, 4: 0.1, 8: 0.1}.items()}


@pytest.mark.parametrize(
    ("added", "words"),
    [  # what each number of first tokens adds, text by text
        (HUNDREDTH, ("Keep 2 first tokens:", "adds 0.105 [", "without any 0.9 [")),
        ({0: NEEDED, 1: FLAT, 4: FLAT}, ("Keep 1 first token:",)),
        ({0: FLAT, 1: FLAT}, ("Keep no first tokens:",)),
        ({0: WIDE, 1: FLAT, 4: FLAT}, ("4 texts do not tell", "With 1 first token")),
        ({0: NEEDED, 1: FLAT, **UNSURE}, ("4 texts do not tell", "With 1 first token", "adds 0.0005 [")),
        ({0: [0.0], 1: [0.1]}, ("One text does not tell", "With no first tokens")),
        ({0: NEEDED, 1: [0.03, -0.02, 0.02, -0.01], 4: FLAT, 8: FLAT}, ("Keep 4 first tokens:", "means alone 1 will")),
        ({0: NEEDED, 1: [0.5, 0.6, 0.4, 0.5], 4: FLAT}, ("Keep 4 first tokens, or more",)),
    ],
)
def test_the_answer_is_the_fewest_beside_which_more_gain_less_than_a_hundredth_or_what_texts_cannot_tell(added, words):
    answer = Losses({(8, n): torch.tensor(losses) for n, losses in added.items()}, {}, "").answer()
    assert all(word in answer for word in words), answer


def dense_loss(subject, tokens):
    """From transformers' own logits."""
    with torch.no_grad():
        return loss_from(subject.model(tokens).logits, tokens)


def rolled_loss(subject, tokens, window, sinks):
    return loss_from(rolled(subject.model, tokens, window, sinks), tokens)


def loss_from(logits, tokens):
    """The logarithm of the probability of every next token."""
    probabilities = logits.softmax(-1)
    return -probabilities[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0].log()


def test_the_table_says_where_the_rows_part_and_by_how_much():
    subject, tokens = subject_of("llama"), tokens_of()
    news = []
    table = streaming_table(subject, tokens, window=7, sinks=(0, 2), on_progress=lambda *at: news.append(at))
    assert table.frame["cache"].tolist() == ["all", "0 + 7", "2 + 5"]
    assert [row["sinks"] for row in table.records()] == [None, 0, 2]
    assert table.frame["tokens after"].tolist() == [5 * 9] * 3
    assert table.numbers("perplexity before") == pytest.approx([table.numbers("perplexity before")[0]] * 3, rel=1e-5)
    full, loss = dense_loss(subject, tokens), rolled_loss(subject, tokens, window=7, sinks=2)
    assert table.numbers("perplexity after")[0] == pytest.approx(math.exp(full[:, 7:].mean()), rel=1e-4)
    row = table.records()[2]
    over = estimate(loss[:, 7:].mean(1))
    expected = [math.exp(nats) for nats in (over.mean, over.low, over.high)]
    assert [row[f"perplexity after{end}"] for end in ("", " low", " high")] == pytest.approx(expected, rel=1e-4)
    assert row["added loss"] == pytest.approx((loss - full)[:, 7:].mean().item(), abs=1e-4)
    assert table.records()[0]["added loss"] is None
    assert news == [(0, 2), (1, 2), (2, 2)]
    assert "n=5, T=17" in table.note and "over sequences" in table.note and "tokens 1 to 7" in table.note


def test_one_text_is_resampled_by_blocks_as_long_as_the_window():
    subject, tokens = subject_of("llama"), tokens_of(22)[:1]
    table = streaming_table(subject, tokens, window=7, sinks=(2,))
    row = table.records()[1]
    after = rolled_loss(subject, tokens, window=7, sinks=2)[0, 7:]
    over = estimate(torch.stack([after[:7].mean(), after[7:].mean()]))
    assert [row[f"perplexity after{end}"] for end in (" low", " high")] == pytest.approx(
        [math.exp(over.low), math.exp(over.high)], rel=1e-4
    )
    assert row["perplexity before low"] is None  # a single block
    assert "over blocks of 7 tokens" in table.note


REFUSED = [  # these models know 64 positions
    ("llama", tokens_of(), {"window": 2, "sinks": (2,)}),
    ("llama", tokens_of(), {"window": 0, "sinks": (0,)}),
    ("llama", tokens_of() + 90, {"window": 5, "sinks": (1,)}),
    ("llama", tokens_of(1), {"window": 5, "sinks": (1,)}),
    *((name, tokens_of(65), {"window": 5, "sinks": (1,)}) for name in ("llama", "gpt2", "opt")),
    ("llama", tokens_of(), {"window": 16}),
]


@pytest.mark.parametrize(("name", "tokens", "options"), REFUSED)
def test_a_model_that_cannot_stream_is_refused_in_one_line(name, tokens, options):
    refused(lambda: streaming_table(subject_of(name), tokens, **options))


def test_a_perplexity_above_the_largest_number_is_infinite():
    subject = load(model_of("llama with grouped queries"))
    with torch.no_grad():
        subject.model.lm_head.weight.mul_(1e5)
    table = streaming_table(subject, tokens_of(), window=7, sinks=(0,))
    assert table.numbers("perplexity after")[0] == math.inf


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
