"""Transformers models as subjects, through transformers' own attention interface: untouched weights, no patching."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..attention.model_shape import ModelShape
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.edit import POSITION_EMBEDDING, Edit, HeadWeights
from . import contract
from .encoder_input import Off
from .hooks import (
    BASES,
    RECORDING,
    Recording,
    StreamModules,
    attention_set_to,
    blocks_of,
    cross_attention,
    eval_mode,
    position_tables,
    recorded_stream,
)
from .projections import WEIGHT_SITES, Role, edited_weights, weights_of
from .recorder import Answers, Recorder, stacked
from .subject import CallRead, Logits, ResidualRead, Trace


class HuggingFaceSubject:
    """A causal transformers model that is read and edited while it runs. Afterwards it is as it was before.

    Raises InputError where the model does not use transformers' attention interface, or fails the contract.
    """

    libraries: tuple[str, ...] = ()
    encoder = ""
    n_keys: int | None = None
    has_encoder = False  # whether this class runs encoder-decoder models

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        self.model, self.name = model, name or type(model).__name__
        check_encoder(model, self.name, self.has_encoder)
        self.dtype, self.device = model.dtype, model.device
        self.revision = getattr(model.config, "_commit_hash", None) or ""
        self._base = model.config._attn_implementation
        if self._base not in BASES:
            raise InputError(f"{self.name} runs {self._base!r} attention; load it with attn_implementation='sdpa'")
        tokens = contract.sample_tokens(self._embedding.num_embeddings)
        with position_tables(model, tokens.shape[1]) as tables:
            bare = self._forward(tokens, None)
        self.modules = StreamModules(self._embedding, tuple(dict.fromkeys(tables)), blocks_of(model))
        if any(map(cross_attention, self.modules.blocks)):  # as in WhisperForCausalLM, which leaves the encoder out
            self.encoder = Off.description
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
        if gradients and any(site.touched_by(edit) for edit in edits for site in WEIGHT_SITES.values()):
            raise InputError("weights are put back before gradients are taken; use edits of activations with gradients")
        recorder = Recorder(calls, residuals, mlps, edits, gradients)
        positions = self.positions(edits, tokens.shape[1])
        with edited_weights(self.shape, self.weights, edits):
            return self._trace(tokens, recorder, positions)

    def _trace(self, tokens: Tokens, recorder: Recorder, positions: Mapping[str, Tensor]) -> Trace:
        """The trace of one forward pass that is shown to `recorder`."""
        logits = self._pass(tokens, recorder, **positions)
        return Trace(*self._answers(recorder), logits)

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Logits:
        """The logits of one forward pass that is shown to `recorder`."""
        with recorded_stream(self.modules, recorder):
            return self._forward(tokens, recorder, gradients=recorder.gradients, **positions)

    def _answers(self, recorder: Recorder) -> tuple[Answers, Answers, Answers]:
        """What reads of calls, residuals and feed-forward updates returned, stacked over layers.

        Raises InputError where the recorder was not shown all layers.
        """
        recorder.check(self.shape)
        calls, layers = recorder.call_answers, self.shape.attention_layers
        if tuple(sorted(calls)) != layers:
            raise InputError(f"{self.name}: layers {sorted(calls)} attended, not {layers}")
        mlps = [recorder.mlp_answers[block] for block in self.shape.mlp_layers] if recorder.mlps else []
        return (
            stacked([calls[layer] for layer in layers], self.device),
            stacked(recorder.residual_answers, self.device),
            stacked(mlps, self.device),
        )

    def weights(self, layer: int, role: Role) -> HeadWeights | None:
        """What makes a layer's queries, keys or values, as views of its parameters; None where unknown."""
        return weights_of(self.modules.blocks[layer], role, self.shape.d_head)

    @property
    def recorded_attention(self) -> str:
        """The name of the attention implementation that shows every call to the recorder."""
        return f"sinkinterp_{self._base}"

    @property
    def _embedding(self) -> torch.nn.Embedding:
        return self.model.get_input_embeddings()

    def _forward(
        self, tokens: Tokens, recorder: Recorder | None, *, gradients: bool = False, **positions: Tensor
    ) -> Logits:
        """Logits. Attention runs through the recorded function where there is a recorder, else through the model's."""
        tokens = tokens.to(self.device)
        function = None if recorder is None else self.recorded_attention
        with torch.set_grad_enabled(gradients), eval_mode(self.model), attention_set_to(self.model, function):
            token = RECORDING.set(None if recorder is None else Recording(recorder, self.modules.layers))
            try:
                return self._logits(tokens, **positions)
            finally:
                RECORDING.reset(token)

    def _logits(self, tokens: Tokens, **positions: Tensor) -> Logits:
        """What the model returns for these tokens."""
        # an explicit all-ones mask: without it, transformers takes swapped position ids for packed sequences
        return self.model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **positions).logits

    def _shape(self, tokens: Tokens) -> ModelShape:
        recorder = Recorder({"sizes": head_sizes})
        self._pass(tokens, recorder)
        return self._shape_of({layer: answers["sizes"] for layer, answers in recorder.call_answers.items()})

    def _shape_of(self, sizes: Mapping[int, Tensor]) -> ModelShape:
        if not sizes:
            raise InputError(
                f"{type(self.model).__name__} computes attention outside transformers' attention interface, so its "
                "calls cannot be read; take a family that uses it (GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen, ...)"
            )
        n_heads, n_kv_heads, d_head = next(iter(sizes.values())).tolist()
        embedding = self._embedding
        return ModelShape(
            n_layers=len(self.modules.blocks),
            attention_layers=tuple(sorted(sizes)),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            d_head=d_head,
            d_model=embedding.embedding_dim,
            vocab=embedding.num_embeddings,
            n_ctx=self._context,
            mlp_layers=tuple(i for i, mlp in enumerate(self.modules.mlps) if mlp is not None),
        )

    @property
    def _context(self) -> int | None:
        """The longest sequence that the model's configuration knows."""
        config = self.model.config.get_text_config()
        lengths = (getattr(config, name, None) for name in ("max_target_positions", "max_position_embeddings"))
        return next((length for length in lengths if length is not None), None)

    def positions(self, edits: Sequence[Edit], length: int) -> dict[str, Tensor]:
        """The model's keyword for the positions that edits give to tokens; empty where they change none."""
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
        if self.modules.tables and rows is not None and int(edited.max()) >= rows:
            raise InputError(f"position {int(edited.max())} is outside {self.name}'s table of {rows}; shift by less")
        return {"position_ids": edited[None].to(self.device)}

    def check_edits(self, edits: Sequence[Edit], length: int) -> None:
        """Raises InputError for an edit that does not fit the model, or sequences of this length."""
        for edit in edits:
            edit.check(self.shape, length)
            if POSITION_EMBEDDING.touched_by(edit) and not self.modules.tables:
                raise InputError(f"{self.name} has no table of learned positions; take a model with one (GPT-2, OPT)")

    def _check_tokens(self, tokens: Tokens) -> None:
        low, high, vocab = int(tokens.min()), int(tokens.max()), self.shape.vocab
        if low < 0 or high >= vocab:
            raise InputError(f"token id {low if low < 0 else high} is outside {self.name}'s vocabulary of {vocab}")
        limit = self.shape.n_ctx
        if limit is not None and tokens.shape[1] > limit:
            raise InputError(f"{tokens.shape[1]} tokens exceed {self.name}'s context of {limit}; use --length {limit}")


def head_sizes(call: AttentionCall) -> Tensor:
    """How many query heads and kv heads a call has, and their size."""
    return torch.tensor([call.q.shape[1], call.k.shape[1], call.q.shape[3]])


def check_encoder(model: PreTrainedModel, name: str, is_run: bool = False) -> None:
    """Raises InputError for an encoder-decoder model, unless the subject runs its encoder."""
    if model.config.is_encoder_decoder and not is_run:
        raise InputError(
            f"{name} is an encoder-decoder model, which runs on the Hugging Face backend alone, with an encoder input: "
            "si.load(..., encoder=Silence())"
        )
