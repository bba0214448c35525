"""Streaming perplexity: what a rolling cache loses of a long text, and how many sinks it needs (StreamingLLM)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..attention import Edit, Gap, Keys, Values, tolerance_of
from ..backends.exclusive import exclusive
from ..backends.hooks import eval_mode
from ..backends.huggingface import HuggingFaceSubject
from ..backends.subject import Logits
from ..checks import InputError, check_context, different_numbers, whole_number
from ..data.progress import OnProgress, no_progress, told
from ..data.tokens import Tokens
from ..interventions.attention_layers import Evict
from ..measurement.measure import passes, reads_inputs, run_note
from ..metrics.bootstrap import estimate, intervals
from ..metrics.importance import next_token_loss
from ..table import Cell, Table, high_of, low_of, no_estimate

ADDED, CACHE = "added loss", "cache"
Loss = Float[Tensor, "sequence token"]


def check_window(tokens: Tokens, window: int) -> None:
    """Raises InputError for a window that evicts nothing of these tokens, and for what is not a window."""
    whole_number(window, f"a window that evicts some of {tokens.shape[1]} tokens", 1, tokens.shape[1] - 2)


@reads_inputs
def loss_of(subject: HuggingFaceSubject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Loss:
    """Next-token loss of texts, each read at once, in nats."""
    batches = (batch for _, batch in passes(subject, tokens.to(subject.device)))
    return torch.cat([next_token_loss(subject.run(batch, edits=edits).logits, batch).cpu() for batch in batches])


@reads_inputs
def streaming_table(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    *,
    window: int,
    sinks: Sequence[int] = (0, 1, 2, 4, 8),
    on_progress: OnProgress = no_progress,
) -> Table:
    """Perplexity before and after eviction begins, per number of sinks, beside full attention.

    A mask hides from each query what the cache would have evicted before it, in one pass a text. Before the first
    eviction, all rows are the same computation. `added loss` is the loss after it, less that of full attention, token
    by token. The window counts the token that is read. Tokens keep the positions of the text, and keys of deeper layers
    stay as they were made, from tokens that may have been evicted since. Raises InputError where nothing is evicted,
    for a model without such a cache, and for more tokens than it has positions.
    """
    if subject.libraries or subject.has_encoder or not subject.takes_position_ids:
        raise InputError(f"{subject.name} has no rolling cache here; give a causal model, with backend='huggingface'")
    subject.check_ids(tokens)
    check_context(tokens.shape[1], subject.shape.n_ctx, subject.name, "give fewer")
    check_window(tokens, window)
    sinks = different_numbers(sinks, "sinks", 0)
    for count in sinks:
        check_stream(subject, tokens, window, count)  # refusals before long runs
    full = loss_of(subject, tokens)
    rows = [_row("all", None, full, full, window)]
    for count in told(sinks, on_progress):
        loss = torch.cat([loss_of(subject, text, [Evict(window, count)]) for text in tokens.split(1)])
        rows.append(_row(f"{count} + {window - count}", count, loss, full, window))
    return Table("What does a rolling cache lose?", _note(subject, tokens, window), tuple(rows))


def _row(cache: str, sinks: int | None, loss: Loss, full: Loss, window: int) -> dict[str, Cell]:
    return {
        CACHE: cache,
        "sinks": sinks,
        **_perplexity_cells("perplexity before", loss[:, :window], window),
        **_perplexity_cells("perplexity after", loss[:, window:], window),
        "tokens after": loss[:, window:].numel(),
        **(no_estimate(ADDED) if sinks is None else _mean_cells(ADDED, (loss - full)[:, window:], window)),
    }


def _perplexity_cells(column: str, loss: Loss, window: int) -> dict[str, Cell]:
    cells = _mean_cells(column, loss, window)
    return {name: None if nats is None else math.exp(float(nats)) for name, nats in cells.items()}


def _mean_cells(column: str, loss: Loss, window: int) -> dict[str, Cell]:
    """The mean over tokens and its interval: over sequences, or over blocks of `window` tokens of a single sequence.

    One block alone has no interval. Without tokens there is no mean either.
    """
    if not loss.numel():
        return no_estimate(column)
    blocks = loss.split(1) if len(loss) > 1 else loss.tensor_split(max(1, loss.shape[1] // window), 1)
    of_blocks = estimate(torch.stack([block.mean() for block in blocks]))
    low, high = (of_blocks.low, of_blocks.high) if len(blocks) > 1 else (None, None)
    return {column: loss.double().mean().item(), low_of(column): low, high_of(column): high}


def _note(subject: HuggingFaceSubject, tokens: Tokens, window: int) -> str:
    unit = "sequences" if len(tokens) > 1 else f"blocks of {window} tokens"
    return (
        f"{run_note(subject, tokens)}, window {window} "
        "(sinks + last tokens, the one that is read included), positions are places in the text; before: tokens "
        f"1 to {window}, alike for all; after: eviction has begun; added loss: after, over all keys; "
        f"{intervals(max(len(tokens), tokens.shape[1] // window), unit)}"
    )


MOST_CHECKED = 256  # tokens of cache that are compared with a dense pass; beyond it, maps are large


class SinkLayer(DynamicLayer):
    """One layer's keys and values of the first `sinks` tokens and the last `window - sinks`, as they were written."""

    is_croppable = False

    def __init__(self, window: int, sinks: int) -> None:
        super().__init__()
        self.window, self.sinks = window, sinks
        self.cumulative_length = 0  # tokens seen; transformers resets a counter of this name

    def update(self, key_states: Keys, value_states: Values, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values that the new tokens see, their own included, after those that no longer fit are evicted.

        Raises InputError for several tokens at once that would have to see different keys.
        """
        count = key_states.shape[-2]
        if count > 1 and self.cumulative_length + count > self.window:
            raise InputError(f"{count} tokens at once overflow a cache of {self.window}; beyond it, pass one at a time")
        self.cumulative_length += count
        keys, values = super().update(key_states, value_states)
        self.keys, self.values = self._kept(keys), self._kept(values)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Tokens that stand before the next one."""
        return min(self.cumulative_length, self.window - 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many keys `update` returns, and the index of the first: places in the cache."""
        return min(self.cumulative_length + query_length, self.window), 0

    def get_max_length(self) -> int:
        return self.window

    def _kept(self, rows: Tensor) -> Tensor:
        if rows.shape[-2] <= self.window:
            return rows
        return torch.cat((rows[..., : self.sinks, :], rows[..., rows.shape[-2] - self.window + self.sinks :, :]), -2)


class SinkCache(Cache):
    """A rolling cache of `window` tokens, the one that is read included, for any batch of equally long texts.

    A token keeps its position in the text. Raises InputError unless `window` is wider than `sinks` and every layer of
    the model keeps all its keys.
    """

    def __init__(self, model: PreTrainedModel, window: int, sinks: int) -> None:
        Evict(window, sinks)  # refuses sizes that make no cache
        layers = DynamicCache(config=model.config).layers
        other = next((type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer), None)
        if other is not None:
            fix = "take a model whose layers all attend to the whole text (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
            raise InputError(f"{type(model).__name__} caches in a {other}, which keeps no key of every token; {fix}")
        super().__init__(layers=[SinkLayer(window, sinks) for _ in layers])


def rolled_logits(model: PreTrainedModel, tokens: Tokens, window: int, sinks: int) -> Logits:
    """Logits from a rolling cache: of the tokens that fill it, in one pass, then of each later one in its own."""
    cache, tokens, positions = SinkCache(model, window, sinks), tokens.to(model.device), torch.arange(tokens.shape[1])
    begins = [0, *range(window, tokens.shape[1]), tokens.shape[1]]
    found = []
    for chunk in (slice(*ends) for ends in pairwise(begins)):
        places = positions[None, chunk].to(model.device)
        with exclusive(model), torch.no_grad(), eval_mode(model):
            found.append(model(tokens[:, chunk], position_ids=places, past_key_values=cache, use_cache=True).logits)
    return torch.cat(found, 1)


def check_stream(subject: HuggingFaceSubject, tokens: Tokens, window: int, sinks: int) -> None:
    """Raises InputError unless the first tokens get the same logits from a rolling cache as from one masked pass."""
    window = min(window, MOST_CHECKED)
    sinks = min(sinks, window - 1)
    start = tokens[:1, : window + 3]
    reads = {"biased": lambda call: torch.full((len(call.q),), call.bias is not None)}
    masked = subject.run(start, edits=[Evict(window, sinks)], reads=reads)
    if sinks and masked["biased"].any():
        what = "biases scores by distance, which it counts between places in the cache"
        raise InputError(f"{subject.name} {what}; take a model without such a bias")
    rolled = rolled_logits(subject.model, start, window, sinks)
    what = f"{subject.name} does not compute from a rolling cache what it computes from the same tokens at once"
    fix = "take one with learned or rotary positions and causal attention (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
    Gap.of(rolled, masked.logits).check(tolerance_of(subject.dtype), what, fix)
