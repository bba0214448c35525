"""What the encoder of an encoder-decoder model is given. It belongs to the protocol: the sink depends on it."""

import hashlib
import textwrap
import wave
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoFeatureExtractor, AutoTokenizer, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from ...checks import Frozen, InputError, finite_number, refusal, unicode_text, whole_number, whole_numbers
from ...data.given_tokenizer import check_one_bos
from ...data.hub import asking_hub
from ...data.texts import text_of_file
from ...files import check_is_file, path_of

SAMPLING_RATE = 16_000  # samples per second of all speech models of transformers
_LONGEST_SILENCE = 3600
Samples = Float[Tensor, " sample"]


class EncoderInput(Frozen):
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
        features = self.features(model)
        inputs = {
            name: value.to(model.device, model.dtype if value.is_floating_point() else None)
            for name, value in features.items()
        }
        with torch.no_grad():
            return model.get_encoder()(**inputs)


class NoEncoder(EncoderInput):
    """No encoder: blocks of the decoder skip cross-attention and its norm, as transformers' WhisperForCausalLM does."""

    runs_cross_attention = False
    description = "off (no cross-attention)"

    def encoded(self, model: PreTrainedModel) -> ModelOutput:
        """A placeholder, which no block reads."""
        width = model.get_decoder().get_input_embeddings().embedding_dim
        return BaseModelOutput(torch.zeros(1, 1, width, device=model.device, dtype=model.dtype))


class TokenIds(EncoderInput):
    """Ids of the encoder's vocabulary."""

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(whole_numbers(self.ids, "ids of the encoder", 0)))

    @property
    def description(self) -> str:
        return f"{len(self.ids)} tokens (sha256 {_digest(repr(self.ids).encode())})"

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        if model.get_encoder().main_input_name != "input_ids":
            raise InputError(
                f"the encoder of {type(model).__name__} reads sound; give Silence(), Sound(FILE) or NoEncoder()"
            )
        vocab = model.get_encoder().get_input_embeddings().num_embeddings
        whole_number(max(self.ids), f"an id of the encoder's vocabulary of {vocab}", 0, vocab - 1)
        return {"input_ids": torch.tensor([self.ids])}


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


class _SoundInput(EncoderInput):
    """Sound of some kind."""

    def samples(self) -> Samples:
        """Samples from -1 to 1, `SAMPLING_RATE` of them a second."""
        raise NotImplementedError

    def features(self, model: PreTrainedModel) -> dict[str, Tensor]:
        if model.get_encoder().main_input_name == "input_ids":
            raise InputError(f"the encoder of {type(model).__name__} reads text; give Text(...) or NoEncoder()")
        extractor = _processor(AutoFeatureExtractor, model)
        return dict(extractor(self.samples().numpy(), sampling_rate=SAMPLING_RATE, return_tensors="pt"))


class Silence(_SoundInput):
    """Sound without any noise. Whisper hears half a minute, whatever it is given."""

    seconds: float = 30.0
    description = "silence"

    def __post_init__(self) -> None:
        finite_number(self.seconds, "seconds of silence", above=0, most=_LONGEST_SILENCE)

    def samples(self) -> Samples:
        return torch.zeros(int(self.seconds * SAMPLING_RATE))


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
        what, fix = f"{self.file} is not sound, or ends too early", "give a whole .wav file of PCM samples"
        kinds = (OSError, EOFError, wave.Error)
        with refusal(what, fix, kinds), wave.open(str(self.file), "rb") as sound:
            width, rate, channels = sound.getsampwidth(), sound.getframerate(), sound.getnchannels()
            named, data = sound.getnframes() * width * channels, sound.readframes(sound.getnframes())
            if not data or len(data) < named:
                raise EOFError(f"it ends after {len(data):,} of {named:,} bytes of sound")
        if rate != SAMPLING_RATE:
            fix = f"convert it: ffmpeg -i {self.file.name} -ar {SAMPLING_RATE} converted.wav"
            raise InputError(f"{self.file} holds {rate} samples a second; the model takes {SAMPLING_RATE}; {fix}")
        return _decoded(data, width).view(-1, channels).mean(1)


def encoder_input(words: str) -> EncoderInput:
    """Returns what the option --encoder names: silence, off, a .wav file, a .txt file, or a text.

    Raises InputError for a file that is not there.
    """
    path = Path(words)
    if words in _NAMED:
        return _NAMED[words]
    return _FILES[path.suffix.lower()](path) if path.suffix.lower() in _FILES else Text(words)


_NAMED: dict[str, EncoderInput] = {"silence": Silence(), "off": NoEncoder()}
_FILES = {".wav": Sound, ".txt": lambda path: Text(text_of_file(path))}


def _decoded(data: bytes, width: int) -> Samples:
    """Samples from -1 to 1, of whole numbers of `width` bytes, lowest first; those of one byte have no sign."""
    digits = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, width).to(torch.int64)
    numbers = (digits << (8 * torch.arange(width))).sum(1)
    half = 1 << (8 * width - 1)
    signed = numbers - half if width == 1 else numbers - (numbers >= half) * 2 * half
    return signed.float() / half


def _processor(kind: Any, model: PreTrainedModel) -> Any:
    """The tokenizer or feature extractor beside the weights of a model."""
    what = f"{model.name_or_path or 'a model in memory'} holds no {kind.__name__.removeprefix('Auto')}"
    any_error = refusal(what, "give TokenIds(...) or NoEncoder()", (OSError, ValueError, KeyError))
    with any_error, asking_hub(model.name_or_path):
        return kind.from_pretrained(model.name_or_path, trust_remote_code=False)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
