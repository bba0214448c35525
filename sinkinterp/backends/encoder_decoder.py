"""Encoder-decoder models as subjects: what is measured is the decoder, while its encoder's output stays the same."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ..data.tokens import Tokens
from ..errors import InputError
from . import contract
from .encoder_input import EncoderInput, States
from .hooks import asked_for, blocks_of, eval_mode
from .huggingface import HuggingFaceSubject
from .subject import Logits


class EncoderDecoderSubject(HuggingFaceSubject):
    """A transformers encoder-decoder model (Whisper, BART, T5, ...): tokens, calls and residuals are the decoder's.

    The encoder runs once, here, and is never edited. Raises InputError as `HuggingFaceSubject` does, and for an encoder
    input that does not fit the model.
    """

    has_encoder = True

    def __init__(self, model: PreTrainedModel, encoder: EncoderInput, name: str | None = None) -> None:
        self._encoder_input = encoder
        with eval_mode(model):
            self._states: States = encoder.states(model)
        super().__init__(model, name)
        self.encoder = encoder.description
        self._check_states()

    @property
    def _embedding(self) -> nn.Embedding:
        return self.model.get_decoder().get_input_embeddings()

    def _logits(self, tokens: Tokens, *, position_ids: torch.Tensor | None = None) -> Logits:
        """What the model returns. Positions are changed where its tables are asked: not every model takes them."""
        return self._logits_given(self._states, tokens, position_ids)

    def _logits_given(self, states: States, tokens: Tokens, position_ids: torch.Tensor | None = None) -> Logits:
        with ExitStack() as stack:
            if position_ids is not None:
                stack.enter_context(asked_for(self.modules.tables, position_ids))
            if not self._encoder_input.runs_cross_attention:
                stack.enter_context(without_cross_attention(self.model))
            return self.model(
                encoder_outputs=BaseModelOutput(states.expand(len(tokens), -1, -1)),
                decoder_input_ids=tokens,
                decoder_attention_mask=torch.ones_like(tokens),
                use_cache=False,
            ).logits

    def _check_states(self) -> None:
        """Raises InputError unless logits depend on the encoder's output exactly where cross-attention runs."""
        tokens = contract.sample_tokens(self.shape.vocab).to(self.device)
        others = self._states.roll(1, -1) + 1
        with torch.no_grad(), eval_mode(self.model):
            logits, changed = (self._logits_given(states, tokens) for states in (self._states, others))
        if logits.equal(changed) == self._encoder_input.runs_cross_attention:
            state = "changes no logit" if self._encoder_input.runs_cross_attention else "changes logits while it is off"
            raise InputError(f"{self.name} cannot be measured: its encoder's output {state}")


@contextmanager
def without_cross_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the blocks of a model's decoder are given no encoder output."""

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        given = inspect.signature(block.forward).bind(*args, **kwargs)
        given.arguments["encoder_hidden_states"] = None
        return given.args, given.kwargs

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks_of(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
