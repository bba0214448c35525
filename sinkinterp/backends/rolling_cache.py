"""A rolling cache for transformers models: the first tokens and the last ones stay, those between are evicted."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..attention.call import AttentionCall
from ..errors import InputError
from ..interventions.window import Evict
from .contract import TOLERANCE
from .hooks import evaluating
from .huggingface import HuggingFaceSubject
from .subject import Tokens

Keys = Float[Tensor, "sequence kv_head key d_head"]
Turn = Callable[[Keys, Int[Tensor, " key"]], Keys]
PROBED = 256  # tokens of cache that are compared with a dense pass, whose maps would be large beyond


class SinkLayer(DynamicLayer):
    """One layer's keys and values of the first `sinks` tokens and of the last `window - sinks`.

    Keys are kept as they were written. `turn` rotates each by a number of positions: where it is given, a token lies
    at its place in the cache; where it is None, at its place in the text.
    """

    is_croppable = False

    def __init__(self, window: int, sinks: int, turn: Turn | None = None) -> None:
        super().__init__()
        self.window, self.sinks, self.turn = window, sinks, turn
        self.cumulative_length = 0  # tokens seen; transformers resets a counter of this name

    def update(self, key_states: Keys, value_states: Keys, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """What the new tokens see, themselves included, after those that no longer fit are evicted.

        Raises InputError for several tokens at once that would have to see different keys.
        """
        count = key_states.shape[-2]
        if count > 1 and self.cumulative_length + count > self.window:
            raise InputError(f"{count} tokens at once overflow a cache of {self.window}; beyond it, pass one at a time")
        self.cumulative_length += count
        keys, values = super().update(key_states, value_states)
        self.keys, self.values = self._kept(keys), self._kept(values)
        return self.keys if self.turn is None else self.turn(self.keys, self._moved()), self.values

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
        """How far every key now is from the place it was written at: no token is written behind the last place."""
        place = torch.arange(self.keys.shape[-2], device=self.keys.device)
        in_text = torch.where(place < self.sinks, place, place + self.cumulative_length - len(place))
        return place - in_text.clamp(max=self.window - 1)


class SinkCache(Cache):
    """A rolling cache of `window` tokens, those that are read included, for any batch of equally long texts.

    By default tokens keep the positions of the text; with `rerotate` they take those of their places in the cache, as
    in StreamingLLM (arXiv:2309.17453), and the text may outrun the context. Raises InputError unless `window` is wider
    than `sinks`, every layer of the model keeps all its keys, and these, if re-rotated, are rotated as Llama's or know
    no position.
    """

    def __init__(self, model: PreTrainedModel, window: int, sinks: int, *, rerotate: bool = False) -> None:
        Evict(window, sinks)  # refuses sizes that make no cache
        own = DynamicCache(config=model.config).layers
        odd = next((type(layer).__name__ for layer in own if type(layer) is not DynamicLayer), None)
        if odd is not None:
            raise InputError(
                f"{type(model).__name__} caches in a {odd}, which keeps no key of every token; "
                "take a model whose layers all attend to the whole text (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
            )
        self.rerotate = rerotate
        turn = turn_of(model, window) if rerotate else None
        super().__init__(layers=[SinkLayer(window, sinks, turn) for _ in own])

    def position_ids(self, count: int) -> Int[Tensor, "1 pos"]:
        """Positions of the next `count` tokens."""
        first = self.get_seq_length() if self.rerotate else self.layers[0].cumulative_length
        return torch.arange(first, first + count)[None]


def streamed(model: PreTrainedModel, tokens: Tokens, cache: SinkCache) -> Iterator[Float[Tensor, "sequence pos vocab"]]:
    """Logits of the tokens that fill the empty cache, in one pass, then of every later token in a pass of its own."""
    window = cache.get_max_length()
    tokens = tokens.to(model.device)
    for chunk in (tokens[:, :window], *(tokens[:, i : i + 1] for i in range(window, tokens.shape[1]))):
        positions = cache.position_ids(chunk.shape[1]).to(model.device)
        with torch.no_grad(), evaluating(model):
            output = model(chunk, position_ids=positions, past_key_values=cache, use_cache=True)
        yield output.logits


def check_stream(
    subject: HuggingFaceSubject, tokens: Tokens, window: int, sinks: int, *, rerotate: bool = False
) -> None:
    """Raises InputError unless a rolling cache gives the first tokens the logits of a dense pass so masked.

    Re-rotated, it does so without sinks only: distances among the last tokens are alike in cache and text.
    """
    window = min(window, PROBED)
    sinks = 0 if rerotate else min(sinks, window - 1)
    some = tokens[:1, : window + 3]
    if subject.shape.n_ctx is not None:
        some = some[:, : subject.shape.n_ctx]
    masked = subject.run(some, edits=[Evict(window, sinks)], calls={"biased": _is_biased})
    if sinks and masked.calls["biased"].any():
        raise InputError(
            f"{subject.name} biases scores by distance, which it counts between places in the cache; use rerotate=True"
        )
    rolled = torch.cat(
        list(streamed(subject.model, some, SinkCache(subject.model, window, sinks, rerotate=rerotate))), 1
    )
    if not _distance(rolled, masked.logits) <= TOLERANCE.get(subject.dtype, 0.1):
        raise InputError(
            f"{subject.name} does not compute from a rolling cache what it computes from the same tokens at once; "
            "take one with learned or rotary positions and causal attention (GPT-2, OPT, GPT-NeoX, Llama, Qwen)"
        )


def _is_biased(call: AttentionCall) -> Tensor:
    return torch.full((len(call.q),), call.bias is not None)


def turn_of(model: PreTrainedModel, window: int) -> Turn:
    """What rotates the model's cached keys by a number of positions; nothing where positions are in no key.

    Raises InputError unless that is all they need.
    """
    rotary = getattr(model.base_model, "rotary_emb", None)

    def turn(keys: Keys, by: Int[Tensor, " key"]) -> Keys:
        if rotary is None:
            return keys
        cos, sin = (wave[:, None] / rotary.attention_scaling for wave in rotary(keys.float(), by[None]))
        turned, rest = keys.float().tensor_split([cos.shape[-1]], -1)
        a, b = turned.chunk(2, -1)
        return torch.cat((turned * cos + torch.cat((-b, a), -1) * sin, rest), -1).to(keys.dtype)

    # a token alone attends to itself wherever it stands, so its position is in its keys only, in every layer
    near, far = (_alone(model, position) for position in (0, window - 1))
    back = torch.tensor([1 - window], device=model.device)
    pairs = [(a.keys, turn(b.keys, back)) for a, b in zip(near.layers, far.layers, strict=True)]
    pairs += [(a.values, b.values) for a, b in zip(near.layers, far.layers, strict=True)]
    if any(_distance(b, a) > TOLERANCE.get(model.dtype, 0.1) * a.abs().max().item() for a, b in pairs):
        raise InputError(
            f"{type(model).__name__} has no positions that a cached key could be rotated to; "
            "leave out rerotate, or take a Llama-style model (Llama, Qwen, GPT-NeoX)"
        )
    return turn


def _alone(model: PreTrainedModel, position: int) -> DynamicCache:
    """What a text of one token leaves in the cache."""
    cache, device = DynamicCache(config=model.config), model.device
    token, positions = torch.zeros(1, 1, dtype=torch.long), torch.tensor([[position]])
    with torch.no_grad(), evaluating(model):
        model(token.to(device), position_ids=positions.to(device), past_key_values=cache, use_cache=True)
    return cache


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
