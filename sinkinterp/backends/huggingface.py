"""Transformers models as subjects, through transformers' own attention interface: untouched weights, no patching."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..errors import InputError
from ..interventions.edit import Edit, HeadWeights, touches
from . import contract
from .hooks import BASES, RECORDER, Sites, attending, blocks_of, evaluating, position_lookups, stream_hooks
from .projections import SITES, edited_weights, weights_of
from .recorder import Recorder
from .subject import CallRead, ResidualRead, Tokens, Trace

Fetch = Callable[[], Tensor]


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
        tokens = contract.tokens_for(self._embedding.num_embeddings)
        with position_lookups(model, tokens.shape[1]) as lookups:
            bare = self._forward(tokens, None)
        self.sites = Sites(self._embedding, tuple(dict.fromkeys(lookups)), blocks_of(model))
        self.shape = self._shape(tokens)
        contract.check(self, bare)
        backwards = torch.arange(tokens.shape[1]).flip(0)[None].to(self.device)
        self._takes_positions = not self._forward(tokens, None, position_ids=backwards).equal(bare)

    def run(
        self,
        tokens: Tokens,
        *,
        calls: Mapping[str, CallRead] = {},
        residuals: Mapping[str, ResidualRead] = {},
        mlps: Mapping[str, ResidualRead] = {},
        edits: Sequence[Edit] = (),
        gradients: bool = False,
    ) -> Trace:
        """One forward pass; see `Subject.run`. Raises InputError for tokens or edits that do not fit."""
        self._check_tokens(tokens)
        self.check_edits(edits, tokens.shape[1])
        if gradients and any(touches(edit, site) for edit in edits for site in SITES):
            raise InputError("weights are put back before gradients are taken; use edits of activations with gradients")
        recorder = Recorder(calls, residuals, mlps, edits, gradients)
        positions = self.positions(edits, tokens.shape[1])
        with edited_weights(self.shape, self.weights, edits):
            fetch = self._pass(tokens, recorder, **positions)
        recorder.check(self.shape)
        layers = self.shape.attention_layers
        if tuple(sorted(recorder.rows)) != layers:
            raise InputError(f"{self.name}: layers {sorted(recorder.rows)} attended, not {layers}")
        updates = [recorder.updates[block] for block in self.shape.mlp_layers] if mlps else []
        return Trace(
            Trace.stack([recorder.rows[layer] for layer in layers], self.device),
            Trace.stack(recorder.streams, self.device), Trace.stack(updates, self.device), fetch,
        )  # fmt: skip

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Fetch:
        """What gets the logits of one forward pass that is shown to `recorder`."""
        with stream_hooks(self.sites, recorder):
            logits = self._forward(tokens, recorder, gradients=recorder.gradients, **positions)
        return lambda: logits

    def weights(self, layer: int, role: int) -> HeadWeights | None:
        """What makes a layer's queries, keys or values (role 0, 1, 2), as views of its parameters."""
        return weights_of(self.sites.blocks[layer], role, self.shape.d_head)

    @property
    def recorded_attention(self) -> str:
        """The name of the attention implementation that shows every call to the recorder."""
        return f"sinkinterp_{self._base}"

    @property
    def _embedding(self) -> torch.nn.Embedding:
        return self.model.get_input_embeddings()

    def _forward(
        self, tokens: Tokens, recorder: Recorder | None, *, gradients: bool = False, **kwargs: Any
    ) -> Float[Tensor, "sequence pos vocab"]:
        """Logits; through the watched attention function where there is a recorder, else through the model's own."""
        tokens = tokens.to(self.device)
        # an explicit all-ones mask: without it, transformers takes swapped position ids for packed sequences
        kwargs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        function = None if recorder is None else self.recorded_attention
        with torch.set_grad_enabled(gradients), evaluating(self.model), attending(self.model, function):
            token = RECORDER.set(recorder)
            try:
                return self.model(tokens, **kwargs).logits
            finally:
                RECORDER.reset(token)

    def _shape(self, tokens: Tokens) -> ModelShape:
        recorder = Recorder({"sizes": sizes_of})
        self._pass(tokens, recorder)
        return self._shape_of({layer: row["sizes"] for layer, row in recorder.rows.items()})

    def _shape_of(self, sizes: Mapping[int, Tensor]) -> ModelShape:
        if not sizes:
            raise InputError(
                f"{type(self.model).__name__} computes attention outside transformers' attention interface, so its "
                "calls cannot be read; take a family that uses it (GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen, ...)"
            )
        n_heads, n_kv_heads, d_head = next(iter(sizes.values())).tolist()
        embedding = self._embedding
        return ModelShape(
            len(self.sites.blocks), tuple(sorted(sizes)), n_heads, n_kv_heads, d_head,
            embedding.embedding_dim, embedding.num_embeddings,
            getattr(self.model.config.get_text_config(), "max_position_embeddings", None),
            tuple(i for i, mlp in enumerate(self.sites.mlps) if mlp is not None),
        )  # fmt: skip

    def positions(self, edits: Sequence[Edit], length: int) -> dict[str, Tensor]:
        ids = torch.arange(length)
        edited = ids
        for edit in edits:
            edited = edit.position_ids(edited)
        if edited.equal(ids):
            return {}
        if not self._takes_positions:
            raise InputError(
                f"{self.name} has no positions that could be swapped or replaced; take a model with a table of learned "
                "positions (GPT-2, OPT) or with rotary ones (Llama, GPT-NeoX)"
            )
        rows = self.shape.n_ctx
        if self.sites.tables and rows is not None and int(edited.max()) >= rows:
            raise InputError(f"position {int(edited.max())} is outside {self.name}'s table of {rows}; shift by less")
        return {"position_ids": edited[None].to(self.device)}

    def check_edits(self, edits: Sequence[Edit], length: int) -> None:
        for edit in edits:
            edit.check(self.shape, length)
            if touches(edit, "position_embedding") and not self.sites.tables:
                raise InputError(f"{self.name} has no table of learned positions; take a model with one (GPT-2, OPT)")

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
