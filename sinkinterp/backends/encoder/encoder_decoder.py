"""Encoder-decoder models as subjects: what is measured is the decoder, while its encoder's output stays the same."""

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from ...attention import ATTENTION_INPUT, MLP
from ...checks import InputError, refusal, refusing
from ...data.tokens import Tokens
from .. import contract
from ..anatomy.modules import blocks_of, cross_attention, positions_replaced, removed_after
from ..anatomy.projections import HeadMap, maps_of
from ..contract import Abilities
from ..exclusive import RECORDING, exclusive
from ..hooks import eval_mode
from ..huggingface import HuggingFaceSubject
from ..subject import Logits
from .encoder_input import EncoderInput

States = Float[Tensor, "1 source d_model"]


class EncoderDecoderSubject(HuggingFaceSubject):
    """A transformers encoder-decoder model (Whisper, BART, T5, ...): tokens, calls and residuals are the decoder's.

    The encoder runs once, here, and is never edited. Raises InputError as `HuggingFaceSubject` does, and for an encoder
    input that does not fit the model.
    """

    has_encoder = True

    def __init__(self, model: PreTrainedModel, encoder: EncoderInput, name: str | None = None) -> None:
        self._encoder_input = encoder
        super().__init__(model, name)

    def _read_model(self, model: PreTrainedModel) -> None:
        with eval_mode(model):
            self._encoded = self._encoder_input.encoded(model)
        self._check_encoder(model)
        super()._read_model(model)
        self.encoder = self._encoder_input.description

    @property
    def _embedding(self) -> nn.Embedding:
        return self.model.get_decoder().get_input_embeddings()

    def _logits(self, tokens: Tokens, **positions: torch.Tensor) -> Logits:
        """What the model returns. If it has tables of positions, they are asked for others: BART takes no ids."""
        return self._logits_given(self._encoded.last_hidden_state, tokens, positions.get("position_ids"))

    def _logits_given(self, states: States, tokens: Tokens, position_ids: torch.Tensor | None = None) -> Logits:
        with ExitStack() as stack:
            if RECORDING.get() is not None:  # the bare model, which the contract compares with, runs as it is
                stack.enter_context(_projected_once(self.model, len(tokens)))
            if position_ids is not None and self.modules.tables:
                stack.enter_context(positions_replaced(self.modules.tables, position_ids))
                position_ids = None
            if not self._encoder_input.runs_cross_attention:
                stack.enter_context(without_cross_attention(self.model))
            return self.model(
                encoder_outputs=self._of_all(states, len(tokens)),
                decoder_input_ids=tokens,
                decoder_attention_mask=torch.ones_like(tokens),
                decoder_position_ids=position_ids,
                use_cache=False,
            ).logits

    def cross_attention(self) -> "EncoderDecoderSubject":
        """The same model as another subject, whose attention calls are those of cross-attention.

        Its keys, and the positions of importance and norms, are places in the encoder's output. Raises InputError where
        cross-attention is off, or where the contract fails.
        """
        if not self._encoder_input.runs_cross_attention:
            raise InputError(f"{self.name} runs without cross-attention; give its encoder an input")
        crossing = copy.copy(self)
        crossing.name = f"{self.name}, cross-attention"
        crossing.n_keys = self._encoded.last_hidden_state.shape[1]
        taps = {site: taps for site, taps in self.modules.taps.items() if site is not ATTENTION_INPUT}
        crossing.modules = replace(self.modules, is_cross=True, taps=taps)
        tokens = contract.sample_tokens(self.shape.vocab)
        with exclusive(self.model):
            crossing._check_contract(self._forward(tokens, None))
        return crossing

    def maps(self) -> Iterable[tuple[nn.Module, HeadMap]]:
        if not self.modules.is_cross:
            return super().maps()
        crossing = {i: next(iter(cross_attention(self.modules.blocks[i]))) for i in self.shape.attention_layers}
        return maps_of(crossing, self.shape.d_head)

    @property
    def _takes_ids(self) -> bool:
        takes_ids = "decoder_position_ids" in inspect.signature(self.model.forward).parameters
        return takes_ids or bool(self.modules.tables)

    def _abilities_found(self, bare: Logits, length: int, gives_positions: bool = True) -> Abilities:
        """As for other models. If it can, the decoder runs alone: cross-attention looks like a part of updates."""
        if self.modules.is_cross or not self._encoder_input.runs_cross_attention:
            return super()._abilities_found(bare, length, gives_positions)
        try:
            with without_cross_attention(self.model):
                alone = self._forward(contract.sample_tokens(self.shape.vocab), None)
        except Exception:  # T5Gemma and LongT5 need an encoder, so that their updates cannot be checked
            able = super()._abilities_found(bare, length, gives_positions)
            return replace(able, taps=able.taps - {MLP})
        with without_cross_attention(self.model):
            return super()._abilities_found(alone, length, gives_positions)

    def _of_all(self, states: States, n_sequences: int) -> ModelOutput:
        """Returns what the encoder would return for so many sequences, with these states."""
        fields = {**self._encoded, "last_hidden_state": states}
        tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
        expanded = {name: value.expand(n_sequences, *value.shape[1:]) for name, value in tensors.items()}
        return type(self._encoded)(**fields | expanded)

    def _check_encoder(self, model: PreTrainedModel) -> None:
        """Raises InputError where the decoder does not run with what the encoder returned, or without it.

        Its logits must depend on the encoder's output exactly where cross-attention runs.
        """
        tokens = contract.sample_tokens(self._embedding.num_embeddings).to(model.device)
        states, crosses = self._encoded.last_hidden_state, self._encoder_input.runs_cross_attention
        what = f"{self.name} does not run{'' if crosses else ' without cross-attention'}"
        with refusal(what), torch.no_grad(), eval_mode(model):  # T5Gemma needs an encoder, LongT5 breaks without one
            logits, changed = (self._logits_given(x, tokens) for x in (states, states.roll(1, -1) + 1))
        if logits.equal(changed) == crosses:
            state = "changes no logit" if crosses else "changes logits while it is off"
            raise InputError(f"{self.name} cannot be measured: its encoder's output {state}")


ENCODERS = "encoder=Silence(), NoEncoder(), Sound(FILE) or Text(TEXT) of sinkinterp.backends.encoder.encoder_input"


@refusing
def check_encoder(encoder: EncoderInput | None, has_encoder: bool, name: str) -> Iterator[str]:
    """Raises InputError unless an input is given for the encoder that a model has, and for no other."""
    if has_encoder and encoder is None:
        yield f"{name} is an encoder-decoder model, whose encoder needs an input: add {ENCODERS}"
    if encoder is not None and not has_encoder:
        yield f"{name} has no encoder that could be given an input; leave it out"


@contextmanager
def without_cross_attention(model: PreTrainedModel) -> Iterator[None]:
    """Blocks of a model's decoder are then given no encoder output."""

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        given = inspect.signature(block.forward).bind(*args, **kwargs)
        given.arguments["encoder_hidden_states"] = None
        return given.args, given.kwargs

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks_of(model)]
    with removed_after(handles):
        yield


@contextmanager
def _projected_once(model: PreTrainedModel, n_sequences: int) -> Iterator[None]:
    """In the block, cross-attention makes its keys and values once: the states of all sequences are the same."""

    def before(linear: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (args[0][:1],) if args[0].stride(0) == 0 else args  # an expanded tensor: the states

    def after(linear: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output.expand(n_sequences, -1, -1) if output.ndim == 3 and len(output) == 1 else output

    modules = [module for block in blocks_of(model) for module in cross_attention(block)]
    linears = [part for module in modules for part in module.children() if isinstance(part, nn.Linear)]
    handles = [linear.register_forward_pre_hook(before) for linear in linears]
    handles += [linear.register_forward_hook(after) for linear in linears]
    with removed_after(handles):
        yield
