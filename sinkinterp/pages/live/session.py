"""A model that answers a live page: from a prompt and edits to maps, sinks and the next token, before and after."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...attention import tiles
from ...attention.call import AttentionCall
from ...attention.shapes import Residual
from ...backends.subject import Subject, Trace
from ...data.bos import Bos
from ...data.token_sources import Tokenizer, from_text
from ...data.tokens import TokenSet
from ...errors import InputError
from ...interventions.description import description
from ...interventions.edit import Edit
from ...metrics.importance import proxy
from ...metrics.massive import top_entries
from ...metrics.nulls import uniform_importance
from ...tables import TokenText, short_name
from .edits import edits_from

MOST_PAIRS = 4_000_000  # pairs of query and key of all maps: what an answer holds
MOST_TOKENS = 256
MOST_LETTERS = 20_000  # of a prompt
EPSILON = 0.3
TOP = 10  # next tokens, and massive entries
READS = {
    "weights": lambda call: _weights(call),
    "slot": lambda call: tiles.slot_cells(proxy(call), 1)[:, :, 0],
    "uniform": lambda call: _uniform(call),
}


@dataclass(frozen=True)
class Session:
    """A model, and what turns a prompt into its tokens. Questions are answered one after the other.

    tokenizer: None for a model without one; a prompt is then token ids.
    """

    subject: Subject
    tokenizer: Tokenizer | None
    word: TokenText = str
    bos: Bos = Bos.TOKENIZER
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.subject.n_keys is not None:
            raise InputError(f"{self.subject.name} has keys that are no tokens of the prompt; use view or measure")

    @property
    def most_tokens(self) -> int:
        """The longest prompt, in tokens, whose maps fit in an answer."""
        shape = self.subject.shape
        fitting = math.isqrt(MOST_PAIRS // (len(shape.attention_layers) * shape.n_heads))
        return max(2, min(fitting, MOST_TOKENS, shape.n_ctx or MOST_TOKENS))

    def facts(self) -> dict[str, Any]:
        """What the page says of the model."""
        shape = self.subject.shape
        return {
            "model": short_name(self.subject.name),
            "layers": list(shape.attention_layers),
            "blocks": shape.n_layers,
            "heads": shape.n_heads,
            "width": shape.d_model,
            "most_tokens": self.most_tokens,
            "epsilon": EPSILON,
            "takes_ids": self.tokenizer is None,
        }

    def answer(self, question: Any) -> dict[str, Any]:
        """The answer to {"prompt": text, "edits": [...]}; see `edits`. Raises InputError for anything else."""
        if not isinstance(question, dict) or not question.keys() <= {"prompt", "edits"}:
            raise InputError("a question has a prompt and edits")
        prompt = question.get("prompt")
        if not isinstance(prompt, str):
            raise InputError("the prompt is a text")
        edits = edits_from(question.get("edits", []))
        with self._lock:  # tokenizers, too, keep state between calls
            token_set = self._tokens(prompt)
            before = self._run(token_set, [])
            after = self._run(token_set, edits) if edits else before
            return {
                "tokens": [self.word(token) for token in token_set.tokens[0].tolist()],
                "edits": [description(edit) for edit in edits],
                "states": [_state(trace) for trace in ((before, after) if edits else (before,))],
                "massive": _massive(before),
                "next": self._next(before, after),
            }

    def _tokens(self, prompt: str) -> TokenSet:
        if len(prompt) > MOST_LETTERS:
            raise InputError(f"the prompt has {len(prompt):,} letters; give at most {MOST_LETTERS:,}")
        if self.tokenizer is None:
            token_set = self._ids(prompt)
        else:
            token_set = from_text(_encodable(prompt), self.tokenizer, self.bos, self.most_tokens + 1, "prompt")
        if token_set.tokens.shape[1] > self.most_tokens:
            raise InputError(f"the prompt has more than {self.most_tokens} tokens; shorten it")
        return token_set

    def _ids(self, prompt: str) -> TokenSet:
        words, vocab = prompt.replace(",", " ").split(), self.subject.shape.vocab
        if not all(word.isascii() and word.isdecimal() and int(word[:9]) < vocab for word in words) or len(words) < 2:
            raise InputError(f"this model has no tokenizer; give at least 2 token ids from 0 to {vocab - 1}, as 3 17 5")
        return TokenSet.of(torch.tensor([[int(word[:9]) for word in words]]), "prompt")

    def _run(self, token_set: TokenSet, edits: Sequence[Edit]) -> Trace:
        trace = self.subject.run(token_set.tokens, calls=READS, residuals={"largest": _largest}, edits=edits)
        if not trace.logits.isfinite().all():
            raise InputError("these edits make numbers that are not finite; change them")
        return trace

    def _next(self, before: Trace, after: Trace) -> list[dict[str, Any]]:
        """The likeliest next tokens of either state, each with its probability in both."""
        chances = [trace.logits[0, -1].double().softmax(-1).cpu() for trace in (before, after)]
        likeliest = dict.fromkeys(
            int(token) for chance in chances for token in chance.topk(min(TOP, len(chance))).indices
        )
        rows = [
            {"token": self.word(token), "id": token, "chances": [float(chance[token]) for chance in chances]}
            for token in likeliest
        ]
        return sorted(rows, key=lambda row: -max(row["chances"]))


def _encodable(prompt: str) -> str:
    """The prompt; half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes a question mark."""
    return prompt.encode("utf-8", "replace").decode("utf-8")


def _weights(call: AttentionCall) -> Float[Tensor, "batch head query key"]:
    """Weights, or proxy scores; NaN where a query may not look."""
    return tiles.cells(proxy(call), 1, tiles.weights)[:, :, 0]


def _uniform(call: AttentionCall) -> Float[Tensor, "batch head"]:
    """The first token's importance under uniform attention over keys and slot."""
    return uniform_importance(call, torch.zeros(1, dtype=torch.long, device=call.q.device))[..., 0]


def _largest(x: Residual) -> Float[Tensor, "batch 3"]:
    """The largest entry of a residual: its value, position and dimension."""
    return top_entries(x, 1).stacked()[:, 0]


def _state(trace: Trace) -> Mapping[str, Any]:
    """Maps as bytes (255 is a weight of 1; keys that a query may not see are 0), sinks, and importances by head."""
    weights, slot = trace.calls["weights"][0].float().cpu(), trace.calls["slot"][0].float().cpu()
    importance = weights.nanmean(-2).nan_to_num()
    has_slot = not bool(slot.isnan().all())
    return {
        "maps": _bytes(weights),
        "slot": _bytes(slot) if has_slot else None,
        "importance": [[[round(x, 4) for x in head] for head in layer] for layer in importance.tolist()],
        "sink_1": float((importance[..., 0] > EPSILON).float().mean()),
        "alpha_1": float(importance[..., 0].mean()),
        "alpha_slot": float(slot.nan_to_num().mean(-1).mean()) if has_slot else None,
        "uniform_alpha_1": float(trace.calls["uniform"].float().mean()),
    }


def _bytes(weights: Tensor) -> str:
    """Weights from 0 to 1 as bytes, in base64."""
    codes = (weights.nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
    return base64.b64encode(codes.contiguous().numpy().tobytes()).decode()


def _massive(trace: Trace) -> list[dict[str, Any]]:
    """The largest residual entries, one before each block, strongest first: where a massive dimension is."""
    entries = trace.residuals["largest"][0].float().cpu().tolist()
    rows = [
        {"layer": layer, "value": round(value, 3), "position": int(position), "dim": int(dim)}
        for layer, (value, position, dim) in enumerate(entries)
    ]
    return sorted(rows, key=lambda row: -abs(row["value"]))[:TOP]
