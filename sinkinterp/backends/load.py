"""From a name, a folder, or an object of one of the three libraries to a subject."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..checks import nearest
from ..data.token_sources import Tokenizer
from ..errors import InputError
from ..files import cache_folder
from ..seals import verify, verifying
from . import gguf
from .configuration import check_size, checked_config, class_of, decoder_start, has_encoder
from .encoder_decoder import check_has_no_encoder, encoder_decoder_subject, no_encoder_input
from .encoder_input import EncoderInput
from .huggingface import HuggingFaceSubject, check_encoder
from .subject import Subject
from .text import ReadsText
from .weight_files import check_weights, surplus_layer

SHIPPED = Path(__file__).parents[1] / "checkpoints"
ORIGIN = "SOURCE.json"  # in a model folder: where its weights come from
DeviceMap = str | dict[str, int | str | torch.device] | None


def load(  # noqa: PLR0913  everything that a model can be loaded with
    source: Any,
    *,
    backend: str | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: DeviceMap = None,
    name: str | None = None,
    remote: bool = False,
    encoder: EncoderInput | None = None,
    tokenizer: Any = None,
) -> Subject:
    """A subject from a Hugging Face name, a model folder, a GGUF file, a model that we name, or a model in memory.

    sinkinterp/NAME are the checkpoints that ship with us, local/NAME the models that `make models` downloads. A model
    in memory is a transformers model, an nnsight model around one, or a TransformerLens bridge. `backend` is
    "huggingface", "nnsight" or "transformer_lens" (which runs a copy); by default that of the object, "huggingface" for
    names, folders and files. Weights are read from safetensors or GGUF (dequantised) only, in `dtype` (default
    float32), to where `device_map` says (as in transformers: "auto" spreads a model that is too large for one device),
    and no code of the repository is run. `remote` runs a model of the Hub on an NDIF server instead, in its dtype
    there: backend "nnsight" only. Encoder-decoder models (Whisper, BART, T5) need an `encoder` input, `Silence()`,
    `Off()`, `Sound(file)` or `Text(text)` of `sinkinterp.backends.encoder_input`; what is measured is their decoder.
    `tokenizer`, a transformers tokenizer or the name of one, is what the subject reads text with; by default that of
    the name, the folder, the nnsight model or the bridge. Raises InputError where nothing can be loaded, weights are
    absent, the backend cannot do it, an encoder's input is missing or has no encoder, or a dtype or device is asked of
    a model that is in memory or on a server already.
    """
    if isinstance(source, ReadsText):
        raise InputError(f"{source.name} is loaded already; use it as it is")
    _check_dtype(dtype)
    if not isinstance(name, str | None):
        raise InputError(f"a model's name is a text; got {name!r:.40}")
    read_with = tokenizer_source(source, tokenizer)
    if (dtype or device_map) and (remote or not isinstance(source, str | Path)):
        raise InputError("dtype and device_map are for names and folders; move the model yourself: model.to(...)")
    if remote:
        check_has_no_encoder(encoder, f"{name or source}, run remotely,")
        return _reading(_remote(source, backend, name), read_with)
    origin = ""
    if isinstance(source, str | Path):
        name = name or str(source)
        origin = origin_of(source)
        if encoder is None and backend in (None, "huggingface") and has_encoder(Path(located(source))):
            raise no_encoder_input(name)  # before its weights are read
        source = load_model(source, dtype or torch.float32, device_map)
    library = _library_of(source)
    backend = library if backend is None else backend
    if not isinstance(backend, str) or backend not in _SUBJECTS or library not in ("huggingface", backend):
        hint = nearest(backend, _SUBJECTS)
        raise InputError(
            f"{name or type(source).__name__} cannot run on {backend!r}{hint}; backends: {', '.join(_SUBJECTS)}"
        )
    if backend == "huggingface" and source.config.is_encoder_decoder:
        subject = encoder_decoder_subject(source, encoder, name)
    else:
        subject = _SUBJECTS[backend](source, name)
        check_has_no_encoder(encoder, subject.name)
    subject.revision = origin or subject.revision
    return _reading(subject, read_with)


def subject_of(model: Any) -> Subject:
    """The subject itself, or that of anything that `load` loads without further options."""
    return model if isinstance(model, Subject) else load(model)


def tokenizer_source(source: Any, tokenizer: Any = None) -> Callable[[], Any]:
    """What returns the tokenizer to read text with: that which is given, else that of a name or an object of a library.

    Raises InputError for what is no tokenizer.
    """
    if tokenizer is None and isinstance(source, str | Path):
        return partial(load_tokenizer, source)
    if isinstance(tokenizer, str | Path):
        return partial(load_tokenizer, tokenizer)
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "bos_token_id")):
        raise InputError(
            f"a {type(tokenizer).__name__} is no tokenizer; give AutoTokenizer.from_pretrained(NAME), or the name"
        )
    beside = getattr(source, "tokenizer", None) if tokenizer is None else tokenizer
    return lambda: beside if isinstance(beside, Tokenizer) else None


def _reading(subject: Subject, tokenizer_source: Callable[[], Any]) -> Subject:
    if isinstance(subject, ReadsText):
        subject.tokenizer_source = tokenizer_source
    return subject


def _check_dtype(dtype: Any) -> None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    is_float = isinstance(found, torch.dtype) and found.is_floating_point
    if dtype not in (None, "auto") and not is_float:
        raise InputError(f"{dtype!r} is no dtype that models run in; use float32, bfloat16 or float16")


def _nnsight(model: Any, name: str | None) -> Subject:
    from .nnsight import NNsightSubject

    return NNsightSubject(model, name)


def _remote(source: Any, backend: str | None, name: str | None) -> Subject:
    if backend != "nnsight":
        raise InputError(f"{backend or 'huggingface'} runs no model remotely; add backend='nnsight'")
    from .ndif.subject import load_remote

    return load_remote(source, name)


def _transformer_lens(model: Any, name: str | None) -> Subject:
    from .transformer_lens import TransformerLensSubject, bridge_of

    if isinstance(model, PreTrainedModel):
        check_encoder(model, name or type(model).__name__)
    bridge = bridge_of(model) if isinstance(model, PreTrainedModel) else model
    return TransformerLensSubject(bridge, name or type(model).__name__)


_SUBJECTS = {"huggingface": HuggingFaceSubject, "nnsight": _nnsight, "transformer_lens": _transformer_lens}
BACKENDS = tuple(_SUBJECTS)
_LIBRARIES = {"nnsight": "nnsight", "transformer_lens": "transformer_lens", "transformers": "huggingface"}


def _library_of(model: object) -> str:
    """The backend that an object in memory belongs to."""
    roots = [base.__module__.split(".")[0] for base in type(model).__mro__]
    found = [_LIBRARIES[root] for root in roots if root in _LIBRARIES]
    if not found:
        raise InputError(f"a {type(model).__name__} is no model that can be loaded; give a name, a folder or a model")
    return found[0]


def load_model(
    source: str | Path, dtype: torch.dtype | str = torch.float32, device_map: DeviceMap = None
) -> PreTrainedModel:
    """The transformers model of a name, a folder or a GGUF file. Raises InputError where it cannot be loaded whole."""
    source = located(source)
    if gguf.is_gguf(source):
        place = {**gguf.reading(Path(source)), "quantization_config": GgufConfig(dequantize=True)}
        fix = "download it again, or take the model's own weights"
    else:
        _check_folder(source)
        place = {"pretrained_model_name_or_path": source, "use_safetensors": True}
        fix = "give the name of a model on the Hub, with a network, or a local folder made by save_pretrained"
    try:
        with verifying(Path(source), "*config.json", "model*"):
            config = checked_config(source)
            if device_map is None:
                check_size(config)
            if config is not None and Path(source).is_dir():
                check_weights(Path(source), config, dtype, is_spread=device_map is not None)
            model, loading = class_of(source).from_pretrained(
                **place,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
    except InputError:
        raise
    except Exception as error:  # a damaged folder or file can fail in any way
        raise InputError(f"cannot load {source}: {_first_line(error)} Fix: {fix}") from error
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        raise InputError(f"{source} has no fitting weights for {', '.join(absent[:3])}; save the whole model again")
    layer = surplus_layer(loading["unexpected_keys"], model.state_dict())
    if layer is not None:
        raise InputError(
            f"{source} has weights for more layers than its config.json, such as {layer}; correct config.json"
        )
    return model


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, or in its GGUF file; None where there is none.

    In an encoder-decoder model, its BOS is the token that the decoder starts with, whatever the tokenizer says.
    """
    source = located(source)
    if not _has_tokenizer(Path(source)):
        return None
    place = gguf.reading(Path(source)) if gguf.is_gguf(source) else {"pretrained_model_name_or_path": source}
    verify(Path(source), "*token*", "config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
        start = decoder_start(source)
    except Exception as error:  # a damaged file can fail in any way
        raise InputError(f"cannot load the tokenizer of {source}: {_first_line(error)}; save it again") from error
    if start is not None:
        tokenizer.bos_token = tokenizer.convert_ids_to_tokens(start)
    return tokenizer


def located(source: str | Path) -> str | Path:
    """The folder of a model that we name, sinkinterp/NAME or local/NAME; any other source as it is.

    A folder of that name in the working directory comes first. Raises InputError for a model that is not there.
    """
    owner, _, name = str(source).partition("/")
    try:
        exists = Path(source).exists()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(source)[:60]!r} is no name of a model, {getattr(error, 'strerror', error)}; check it"
        ) from error
    if owner not in ("sinkinterp", "local") or exists:
        return source
    if owner == "local":
        return _downloaded(name)
    names = _folders(SHIPPED)
    if name not in names:
        there_are = ", ".join(f"sinkinterp/{name}" for name in names)
        raise InputError(f"no checkpoint {source} ships{nearest(name, names)}; there are {there_are}")
    return SHIPPED / name


def downloads() -> Path:
    """The folder of the models that are named local/NAME."""
    return cache_folder() / "models"


def origin_of(source: str | Path) -> str:
    """Where the weights of a GGUF file or of a folder with a SOURCE.json come from; empty for any other source."""
    path = Path(located(source))
    if gguf.is_gguf(path):
        return gguf.description(path)
    file = path / ORIGIN
    return json.loads(file.read_text(encoding="utf-8"))["from"] if file.is_file() else ""


def words_of(source: str | Path) -> Callable[[int], str]:
    """What gives a token id its text; its number where the model has no tokenizer."""
    tokenizer = load_tokenizer(source)
    return str if tokenizer is None else lambda token: tokenizer.decode([token])


def _downloaded(name: str) -> Path:
    names = _folders(downloads())
    if name not in names:
        fix = "`make models` in a clone of sinkinterp downloads local/smollm2-135m-instruct and local/whisper-tiny.en"
        raise InputError(f"there is no model local/{name} in {downloads()}; {fix}")
    return downloads() / name


def _folders(parent: Path) -> list[str]:
    """The names of the folders in a folder, hidden ones apart; none where it does not exist."""
    return sorted(path.name for path in parent.glob("[!.]*") if path.is_dir())


def _has_tokenizer(path: Path) -> bool:
    """Whether a GGUF file or a local folder holds a tokenizer; of a model on the Hub this is not known, so yes."""
    if gguf.is_gguf(path):
        return gguf.has_tokenizer(path)
    return not path.is_dir() or any(path.glob("tokenizer*"))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return first if " " in first else f"{type(error).__name__} {first}".strip()


def _check_folder(source: str | Path) -> None:
    folder = Path(source)
    if not folder.exists() and str(source).startswith((".", "/", "~")):
        raise InputError(f"there is no folder {folder}; check the path")
    if folder.exists() and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json, so it is no model; give a folder made by save_pretrained")
    if folder.exists() and not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no .safetensors weights; load and save the model with transformers once")
