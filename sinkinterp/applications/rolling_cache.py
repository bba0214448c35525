"""A rolling cache for transformers models: it keeps the first tokens and the last ones, and evicts those between."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..attention.shapes import Gap, Keys, Values, tolerance_of
from ..backends.exclusive import exclusive
from ..backends.hooks import eval_mode
from ..backends.huggingface import HuggingFaceSubject
from ..backends.subject import Logits
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.columns import Evict

Rotate = Callable[[Keys, Int[Tensor, " key"]], Keys]  # each key by a number of positions
MOST_CHECKED = 256  # tokens of cache that are compared with a dense pass; beyond it, maps are large


class SinkLayer(DynamicLayer):
    """One layer's keys and values of the first `sinks` tokens and of the last `window - sinks`.

    Keys are kept as they were written. With `rotate`, a token's position is its place in the cache; without it, its
    place in the text.
    """

    is_croppable = False

    def __init__(self, window: int, sinks: int, rotate: Rotate | None = None) -> None:
        super().__init__()
        self.window, self.sinks, self.rotate = window, sinks, rotate
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
        return self.keys if self.rotate is None else self.rotate(self.keys, self._moved()), self.values

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

    def _moved(self) -> Int[Tensor, " key"]:
        """How far every key has moved since it was written. A token is written at the last place or before it."""
        place = torch.arange(self.keys.shape[-2], device=self.keys.device)
        in_text = torch.where(place < self.sinks, place, place + self.cumulative_length - len(place))
        return place - in_text.clamp(max=self.window - 1)


class SinkCache(Cache):
    """A rolling cache of `window` tokens, the one that is read included, for any batch of equally long texts.

    By default a token keeps its position in the text. With `rerotate` its position is its place in the cache, as in
    StreamingLLM (arXiv:2309.17453), and the text may be longer than the context. Raises InputError unless `window` is
    wider than `sinks`, every layer of the model keeps all its keys, and these, for `rerotate`, hold positions as
    Llama's keys do, or none.
    """

    def __init__(self, model: PreTrainedModel, window: int, sinks: int, *, rerotate: bool = False) -> None:
        Evict(window, sinks)  # refuses sizes that make no cache
        layers = DynamicCache(config=model.config).layers
        other = next((type(layer).__name__ for layer in layers if type(layer) is not DynamicLayer), None)
        if other is not None:
            raise InputError(
                f"{type(model).__name__} caches in a {other}, which keeps no key of every token; "
                "take a model whose layers all attend to the whole text (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
            )
        self.rerotate = rerotate
        rotate = rotation_of(model, window) if rerotate else None
        super().__init__(layers=[SinkLayer(window, sinks, rotate) for _ in layers])

    def position_ids(self, count: int) -> Int[Tensor, "1 pos"]:
        """Positions of the next `count` tokens."""
        first = self.get_seq_length() if self.rerotate else self.layers[0].cumulative_length
        return torch.arange(first, first + count)[None]


def streamed(model: PreTrainedModel, tokens: Tokens, cache: SinkCache) -> Iterator[Logits]:
    """Logits of the tokens that fill the empty cache, in one pass, then of each later token in a pass of its own."""
    window = cache.get_max_length()
    tokens = tokens.to(model.device)
    for chunk in (tokens[:, :window], *(tokens[:, i : i + 1] for i in range(window, tokens.shape[1]))):
        positions = cache.position_ids(chunk.shape[1]).to(model.device)
        with exclusive(model), torch.no_grad(), eval_mode(model):
            output = model(chunk, position_ids=positions, past_key_values=cache, use_cache=True)
        yield output.logits


def check_stream(
    subject: HuggingFaceSubject, tokens: Tokens, window: int, sinks: int, *, rerotate: bool = False
) -> None:
    """Raises InputError unless the first tokens get the same logits from a rolling cache as from a dense, masked pass.

    With `rerotate` this is checked without sinks: only then are all distances the same in cache and text.
    """
    window = min(window, MOST_CHECKED)
    sinks = 0 if rerotate else min(sinks, window - 1)
    start = tokens[:1, : window + 3]
    if subject.shape.n_ctx is not None:
        start = start[:, : subject.shape.n_ctx]
    masked = subject.run(
        start,
        edits=[Evict(window, sinks)],
        reads={"biased": lambda call: torch.full((len(call.q),), call.bias is not None)},
    )
    if sinks and masked["biased"].any():
        raise InputError(
            f"{subject.name} biases scores by distance, which it counts between places in the cache; use rerotate=True"
        )
    cache = SinkCache(subject.model, window, sinks, rerotate=rerotate)
    rolled = torch.cat(list(streamed(subject.model, start, cache)), 1)
    gap = Gap.of(rolled, masked.logits)
    if not gap.is_within(tolerance_of(subject.dtype)):
        raise InputError(
            f"{subject.name} does not compute from a rolling cache what it computes from the same tokens at once, "
            f"{gap}; take one with learned or rotary positions and causal attention (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
        )


def rotation_of(model: PreTrainedModel, window: int) -> Rotate:
    """Rotates the model's cached keys by numbers of positions; leaves keys that hold no position as they are.

    Raises InputError where rotation does not make the keys of one position those of another.
    """
    rotary = getattr(model.base_model, "rotary_emb", None)

    def rotate(keys: Keys, by: Int[Tensor, " key"]) -> Keys:
        if rotary is None:
            return keys
        cos, sin = (wave[:, None] / rotary.attention_scaling for wave in rotary(keys.float(), by[None]))
        rotated, others = keys.float().tensor_split([cos.shape[-1]], -1)
        a, b = rotated.chunk(2, -1)
        return torch.cat((rotated * cos + torch.cat((-b, a), -1) * sin, others), -1).to(keys.dtype)

    # a single token attends to itself at any position, so in every layer only its key depends on the position
    near, far = (_cache_of_one_token(model, position) for position in (0, window - 1))
    back = torch.tensor([1 - window], device=model.device)
    pairs = [(a.keys, rotate(b.keys, back)) for a, b in zip(near.layers, far.layers, strict=True)]
    pairs += [(a.values, b.values) for a, b in zip(near.layers, far.layers, strict=True)]
    if not all(Gap.of(b, a).is_within(tolerance_of(model.dtype)) for a, b in pairs):
        raise InputError(
            f"{type(model).__name__} has no positions that a cached key could be rotated to; "
            "leave out rerotate, or take a Llama-style model (Llama, Qwen, GPT-NeoX)"
        )
    return rotate


def _cache_of_one_token(model: PreTrainedModel, position: int) -> DynamicCache:
    """The cache after a text of one token at a position."""
    cache, device = DynamicCache(config=model.config), model.device
    token, positions = torch.zeros(1, 1, dtype=torch.long), torch.tensor([[position]])
    with exclusive(model), torch.no_grad(), eval_mode(model):
        model(token.to(device), position_ids=positions.to(device), past_key_values=cache, use_cache=True)
    return cache
