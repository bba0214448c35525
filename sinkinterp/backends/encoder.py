"""Encoder-decoder models as subjects: what is measured is the decoder, while its encoder's output stays the same.

What the encoder is given belongs to the protocol: the sink depends on it.
"""

import copy
import hashlib
import inspect
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from scipy.io import wavfile
from torch import Tensor, nn
from transformers import AutoFeatureExtractor, AutoTokenizer, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from ..attention import ATTENTION_INPUT
from ..checks import InputError, finite_number, refusal, refusing, unicode_text, whole_number, whole_numbers
from ..data.hub import asking_hub
from ..data.texts import text_of_file
from ..data.tokenizers import check_one_bos
from ..data.tokens import Tokens
from ..files import check_is_file, path_of
from . import contract
from .anatomy import HeadMap, blocks_of, cross_attention, maps_of, positions_replaced, removed_after
from .attached import RECORDING, eval_mode, used_alone
from .contract import Abilities
from .huggingface import KEPT, HuggingFaceSubject
from .subject import NO_ENCODER, Logits

SAMPLING_RATE = 16_000  # samples per second of all speech models of transformers
_LONGEST_SILENCE = 3600
Samples = Float[Tensor, " sample"]


@dataclass(frozen=True)
class EncoderInput:
    """What the encoder is given; every sequence of the decoder attends to the same."""

    runs_cross_attention = True

    @property
    def description(self) -> str:
        """What a protocol says of it."""
        raise NotImplementedError

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """The keyword arguments of the model's encoder. Raises InputError where it takes no such input."""
        raise NotImplementedError

    def encoded(self, model: PreTrainedModel) -> ModelOutput:
        """What the encoder returns for one sequence. Raises InputError where it takes no such input."""
        features = {name: x.to(model.device) for name, x in self.features(model).items()}
        numbers = {name: x.to(model.dtype) for name, x in features.items() if x.is_floating_point()}
        with torch.no_grad():
            return model.get_encoder()(**features | numbers)


@dataclass(frozen=True)
class NoEncoder(EncoderInput):
    """No encoder: blocks of the decoder skip cross-attention and its norm, as transformers' WhisperForCausalLM does."""

    runs_cross_attention = False
    description = NO_ENCODER

    def encoded(self, model: PreTrainedModel) -> ModelOutput:
        """A placeholder, which no block reads."""
        width = model.get_decoder().get_input_embeddings().embedding_dim
        return BaseModelOutput(torch.zeros(1, 1, width, device=model.device, dtype=model.dtype))


@dataclass(frozen=True)
class TokenIds(EncoderInput):
    """Ids of the encoder's vocabulary."""

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(whole_numbers(self.ids, "ids of the encoder", 0)))

    @property
    def description(self) -> str:
        return f"{len(self.ids)} tokens (sha256 {_digest(repr(self.ids).encode())})"

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        _check_reads("text", model, "Silence(), Sound(FILE) or NoEncoder()")
        vocab = model.get_encoder().get_input_embeddings().num_embeddings
        whole_number(max(self.ids), f"an id of the encoder's vocabulary of {vocab}", 0, vocab - 1)
        return {"input_ids": torch.tensor([self.ids])}


@dataclass(frozen=True)
class Text(EncoderInput):
    """A text, as the model's tokenizer encodes it."""

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not unicode_text(self.text, "the encoder's text").strip():
            raise InputError(f"the encoder's text has words; NoEncoder() gives none; got {self.text!r:.40}")

    @property
    def description(self) -> str:
        shown = textwrap.shorten(self.text, 40, placeholder=" ...")
        return f'text "{shown}" (sha256 {_digest(self.text.encode())})'

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        tokenizer = _processor(AutoTokenizer, model)
        ids = tokenizer(self.text)["input_ids"]
        check_one_bos(ids, tokenizer, self.text)
        return TokenIds(tuple(ids)).features(model)


def _check_reads(given: str, model: PreTrainedModel, others: str) -> None:
    """Raises InputError, which says what to give, for an encoder that reads the other one of text and sound."""
    reads = "text" if model.get_encoder().main_input_name == "input_ids" else "sound"
    if given != reads:
        raise InputError(f"the encoder of {type(model).__name__} reads {reads}; give {others}")


@dataclass(frozen=True)
class _SoundInput(EncoderInput):
    """Sound of some kind."""

    def samples(self) -> Samples:
        """Samples from -1 to 1, `SAMPLING_RATE` of them a second."""
        raise NotImplementedError

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        _check_reads("sound", model, "Text(...) or NoEncoder()")
        extractor = _processor(AutoFeatureExtractor, model)
        return dict(extractor(self.samples().numpy(), sampling_rate=SAMPLING_RATE, return_tensors="pt"))


@dataclass(frozen=True)
class Silence(_SoundInput):
    """Sound without any noise. Whisper hears half a minute, whatever it is given."""

    seconds: float = 30.0
    description = "silence"

    def __post_init__(self) -> None:
        finite_number(self.seconds, "seconds of silence", above=0, most=_LONGEST_SILENCE)

    def samples(self) -> Samples:
        return torch.zeros(int(self.seconds * SAMPLING_RATE))


@dataclass(frozen=True)
class Sound(_SoundInput):
    """A .wav file of 16,000 samples a second; the mean of its channels. Whisper hears its first half minute."""

    file: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", path_of(self.file, "the file of a sound"))
        check_is_file(self.file)

    @property
    def description(self) -> str:
        return f"sound {self.file.name} (sha256 {_digest(self.file.read_bytes())})"

    def samples(self) -> Samples:
        """Raises InputError for a file that is not a .wav file of this rate, or ends before its header says."""
        with refusal(f"{self.file} is not a whole .wav file of samples"), warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of parts that are no samples
            warnings.filterwarnings("error", "Reached EOF", wavfile.WavFileWarning)
            rate, samples = wavfile.read(self.file)
            if not len(samples):
                raise EOFError("it holds no sound")
        if rate != SAMPLING_RATE:
            raise InputError(f"{self.file} holds {rate} samples a second; the model takes {SAMPLING_RATE}")
        half = 1 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.itemsize - 1)
        zero = half if samples.dtype.kind == "u" else 0
        return torch.from_numpy((samples - zero) / half).float().view(len(samples), -1).mean(1)


def encoder_input(words: str) -> EncoderInput:
    """Returns what the option --encoder names: silence, off, a .wav file, a .txt file, or a text.

    Raises InputError for a file that is not there.
    """
    path = Path(words)
    kind = _FILES.get(path.suffix.lower())
    return _NAMED.get(words) or (Text(words) if kind is None else kind(path))


_NAMED: dict[str, EncoderInput] = {"silence": Silence(), "off": NoEncoder()}
_FILES = {".wav": Sound, ".txt": lambda path: Text(text_of_file(path))}


def _processor(kind: Any, model: PreTrainedModel) -> Any:
    """The tokenizer or feature extractor beside the weights of a model."""
    what = f"{model.name_or_path or 'a model in memory'} holds no {kind.__name__.removeprefix('Auto')}"
    any_error = refusal(what, "give TokenIds(...) or NoEncoder()", (OSError, ValueError, KeyError))
    with any_error, asking_hub(model.name_or_path):
        return kind.from_pretrained(model.name_or_path, trust_remote_code=False)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


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

    @cached_property
    def _last_alone(self) -> dict[str, Any]:
        return {KEPT: 1} if isinstance(self.model.get_output_embeddings(), nn.Module) else {}

    def _logits(self, tokens: Tokens, states: States | None = None, **inputs: Any) -> Logits:
        """What the model returns. If it has tables of positions, they are asked for others: BART takes no ids.

        states: what the encoder has returned, by default for its input.
        """
        states = self._encoded.last_hidden_state if states is None else states
        position_ids = inputs.get("position_ids")
        with ExitStack() as stack:
            if KEPT in inputs:
                head = self.model.get_output_embeddings()
                stack.enter_context(head.register_forward_pre_hook(lambda head, args: (args[0][:, -1:], *args[1:])))
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
        with used_alone(self.model):
            crossing._check_contract(self._run_model(tokens))
        return crossing

    def maps(self) -> Iterable[HeadMap]:
        if not self.modules.is_cross:
            return super().maps()
        crossing = {i: next(iter(cross_attention(self.modules.blocks[i]))) for i in self.shape.attention_layers}
        return maps_of(crossing, self.shape.d_head)

    @property
    def _takes_ids(self) -> bool:
        takes_ids = "decoder_position_ids" in inspect.signature(self.model.forward).parameters
        return takes_ids or bool(self.modules.tables)

    def _abilities_found(self, bare: Logits, gives_positions: bool = True) -> Abilities:
        """As for other models. If it can, the decoder runs alone: cross-attention looks like a part of updates."""
        if self.modules.is_cross or not self._encoder_input.runs_cross_attention:
            return super()._abilities_found(bare, gives_positions)
        try:
            with without_cross_attention(self.model):
                alone = self._run_model(contract.sample_tokens(self.shape.vocab))
        except Exception:  # T5Gemma and LongT5 need an encoder, so that their updates are not found
            return super()._abilities_found(bare, gives_positions)
        with without_cross_attention(self.model):
            return super()._abilities_found(alone[:, : bare.shape[1]], gives_positions)

    def _of_all(self, states: States, n_sequences: int) -> ModelOutput:
        """Returns what the encoder would return for so many sequences, with these states."""
        fields = {**self._encoded, "last_hidden_state": states}
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        expanded = {name: x.expand(n_sequences, *x.shape[1:]) for name, x in tensors.items()}
        return type(self._encoded)(**fields | expanded)

    def _check_encoder(self, model: PreTrainedModel) -> None:
        """Raises InputError where the decoder does not run with what the encoder returned, or without it.

        Its logits must depend on the encoder's output exactly where cross-attention runs.
        """
        tokens = contract.sample_tokens(self._embedding.num_embeddings).to(model.device)
        states, crosses = self._encoded.last_hidden_state, self._encoder_input.runs_cross_attention
        what = f"{self.name} does not run{'' if crosses else ' without cross-attention'}"
        with refusal(what), torch.no_grad(), eval_mode(model):  # T5Gemma needs an encoder, LongT5 breaks without one
            logits, changed = (self._logits(tokens, x) for x in (states, states.roll(1, -1) + 1))
        if logits.equal(changed) == crosses:
            state = "changes no logit" if crosses else "changes logits while it is off"
            raise InputError(f"{self.name} cannot be measured: its encoder's output {state}")


_ENCODERS = "one of Silence(), NoEncoder(), Sound(FILE) or Text(TEXT) of sinkinterp.backends.encoder"


@refusing
def check_encoder(encoder: EncoderInput | None, has_encoder: bool, name: str) -> Iterator[str]:
    """Raises InputError unless an input is given for the encoder that a model has, and for no other."""
    if has_encoder and encoder is None:
        fix = f"add encoder, {_ENCODERS}; on a command line, --encoder silence, off, FILE or TEXT"
        yield f"{name} is an encoder-decoder model, whose encoder needs an input: {fix}"
    if encoder is not None and not has_encoder:
        yield f"{name} has no encoder that could be given an input"


def without_cross_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Blocks of a model's decoder are then given no encoder output."""

    def before(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        given = inspect.signature(block.forward).bind(*args, **kwargs)
        given.arguments["encoder_hidden_states"] = None
        return given.args, given.kwargs

    handles = [block.register_forward_pre_hook(before, with_kwargs=True) for block in blocks_of(model)]
    return removed_after(handles)


def _projected_once(model: PreTrainedModel, n_sequences: int) -> AbstractContextManager[None]:
    """In the block, cross-attention makes its keys and values once: the states of all sequences are the same."""

    def before(linear: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (args[0][:1],) if args[0].stride(0) == 0 else args  # an expanded tensor: the states

    def after(linear: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        return output.expand(n_sequences, -1, -1) if output.ndim == 3 and len(output) == 1 else output

    modules = [module for block in blocks_of(model) for module in cross_attention(block)]
    linears = [part for module in modules for part in module.children() if isinstance(part, nn.Linear)]
    handles = [linear.register_forward_pre_hook(before) for linear in linears]
    handles += [linear.register_forward_hook(after) for linear in linears]
    return removed_after(handles)
