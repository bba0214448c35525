"""Transformers models as subjects, through transformers' own attention interface: untouched weights, no patching."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..errors import InputError
from ..interventions.edit import Edit
from . import contract
from .subject import CallRead, ModelShape, ResidualRead, Tokens, Trace
from .watch import Watch
from .watching import BASES, WATCH, attending, blocks_of, evaluating, position_lookups, residual_hooks


class HuggingFaceSubject:
    """A causal transformers model, read while it runs. The model is left as it was found.

    Raises InputError where the model does not go through the attention interface, or breaks the contract.
    """

    libraries: tuple[str, ...] = ()

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        self.model, self.name = model, name or type(model).__name__
        self.dtype, self.device = model.dtype, model.device
        self.revision = getattr(model.config, "_commit_hash", None) or ""
        self._base = model.config._attn_implementation
        if self._base not in BASES:
            raise InputError(f"{self.name} runs {self._base!r} attention; load it with attn_implementation='sdpa'")
        self._blocks = blocks_of(model)
        tokens = contract.tokens_for(self._embedding.num_embeddings)
        with position_lookups(model, tokens.shape[1]) as lookups:
            bare = self._forward(tokens, watch=None)
        self.shape = self._shape(tokens)
        contract.check(self, bare)
        backwards = torch.arange(tokens.shape[1]).flip(0)[None].to(self.device)
        self._has_position_table = bool(lookups) and not self._forward(tokens, None, position_ids=backwards).equal(bare)

    def run(
        self,
        tokens: Tokens,
        *,
        calls: Mapping[str, CallRead] = {},
        residuals: Mapping[str, ResidualRead] = {},
        edits: Sequence[Edit] = (),
    ) -> Trace:
        """One forward pass without gradients; see `Subject.run`. Raises InputError for tokens that do not fit."""
        self._check_tokens(tokens)
        watch = Watch(calls, residuals, edits)
        logits = self._pass(tokens, watch, **self._positions(tokens, edits))
        watch.check(self.shape.n_layers)
        rows, layers = watch.rows, self.shape.attention_layers
        if tuple(sorted(rows)) != layers:
            raise InputError(f"{self.name}: layers {sorted(rows)} attended, not {layers}")
        return Trace(
            Trace.stack([rows[layer] for layer in layers], self.device), Trace.stack(watch.streams, self.device), logits
        )

    def _pass(self, tokens: Tokens, watch: Watch, **positions: Tensor) -> Tensor:
        """The logits of one forward pass that is shown to `watch`."""
        with residual_hooks(self._blocks, watch):
            return self._forward(tokens, watch, **positions)

    @property
    def _embedding(self) -> torch.nn.Embedding:
        return self.model.get_input_embeddings()

    @torch.no_grad()
    def _forward(self, tokens: Tokens, watch: Watch | None, **kwargs: Any) -> Tensor:
        """Logits; through the watched attention function where there is a watch, else through the model's own."""
        tokens = tokens.to(self.device)
        # an explicit all-ones mask: without it, transformers takes swapped position ids for packed sequences
        kwargs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        with evaluating(self.model), attending(self.model, None if watch is None else f"sinkinterp_{self._base}"):
            token = WATCH.set(watch)
            try:
                return self.model(tokens, **kwargs).logits
            finally:
                WATCH.reset(token)

    def _shape(self, tokens: Tokens) -> ModelShape:
        watch = Watch({"sizes": sizes_of})
        self._pass(tokens, watch)
        return self._shape_of({layer: row["sizes"] for layer, row in watch.rows.items()})

    def _shape_of(self, sizes: Mapping[int, Tensor]) -> ModelShape:
        if not sizes:
            raise InputError(
                f"{type(self.model).__name__} computes attention outside transformers' attention interface, so its "
                "calls cannot be read; take a family that uses it (GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen, ...)"
            )
        n_heads, n_kv_heads, d_head = next(iter(sizes.values())).tolist()
        embedding = self._embedding
        return ModelShape(
            len(self._blocks), tuple(sorted(sizes)), n_heads, n_kv_heads, d_head,
            embedding.embedding_dim, embedding.num_embeddings,
            getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
        )  # fmt: skip

    def _positions(self, tokens: Tokens, edits: Sequence[Edit]) -> dict[str, Tensor]:
        ids = torch.arange(tokens.shape[1])
        edited = ids
        for edit in edits:
            edited = edit.position_ids(edited)
        if edited.equal(ids):
            return {}
        if not self._has_position_table:
            raise InputError(
                f"{self.name} has no table of learned positions to swap or replace; "
                "take a model that has one (GPT-2, OPT, or a checkpoint of ours with learned positions)"
            )
        return {"position_ids": edited[None].to(self.device)}

    def _check_tokens(self, tokens: Tokens) -> None:
        low, high, vocab = int(tokens.min()), int(tokens.max()), self.shape.vocab
        if low < 0 or high >= vocab:
            raise InputError(f"token id {low if low < 0 else high} is outside {self.name}'s vocabulary of {vocab}")
        limit = self.shape.n_ctx
        if limit is not None and tokens.shape[1] > limit:
            raise InputError(f"{tokens.shape[1]} tokens exceed {self.name}'s context of {limit}; use --length {limit}")


def sizes_of(call: AttentionCall) -> Tensor:
    """Its heads, key heads, and their size."""
    return torch.tensor([call.q.shape[1], call.k.shape[1], call.q.shape[3]])
