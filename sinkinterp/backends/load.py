"""From a name, a folder, an object of one of the three libraries, or a PyTorch module to a subject."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from transformers import PreTrainedModel

from ..checks import InputError, instance_of, nearest
from ..data.choices import Dtype
from ..data.tokenizers import is_tokenizer, plain_tokenizer
from .attached import inside_compiled
from .encoder import EncoderDecoderSubject, EncoderInput, check_encoder
from .huggingface import HuggingFaceSubject
from .model_files import DeviceMap, config_here, load_model, load_tokenizer, newest_in, origin_of, tokenizer_of
from .module_subject import ModuleParts, ModuleSubject
from .named_models import folder_of
from .subject import Subject


def load(  # noqa: PLR0913  everything that a model can be loaded with
    source: Any,
    tokenizer: Any = None,
    *,
    backend: str | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: DeviceMap = None,
    name: str | None = None,
    encoder: EncoderInput | None = None,
    parts: ModuleParts | None = None,
    beyond_context: bool = False,
) -> Subject:
    """A subject from a Hugging Face name, a model folder, a GGUF file, a model that we name, or a model in memory.

    sinkinterp/NAME are the checkpoints that ship with us; `make models` makes smollm2, gemma3-270m, qwen2.5-coder-0.5b
    and whisper-tiny.en. A model in memory is a transformers model, an nnsight model around one, a TransformerLens
    bridge, or any PyTorch module that attends causally. The folder of an adapter is loaded with its base. Weights are
    read from safetensors or GGUF (dequantised) only, and no code of a repository is run.

    tokenizer: a transformers tokenizer, the name of one, an object with `encode` and `decode`, or these two functions;
    by default that of the source. backend: "huggingface", "nnsight" or "transformer_lens" (which runs a copy); by
    default that of the object, and "huggingface" for names, folders and files. dtype: of weights that are read, by
    default float32. device_map: as in transformers; "auto" spreads a model that is too large for one device. encoder:
    what the encoder of an encoder-decoder model (Whisper, BART, T5) is given, `Silence()`, `NoEncoder()`, `Sound(file)`
    or `Text(text)` of `sinkinterp.backends.encoder`; its decoder is measured. parts: what is where in a module of your
    own, if that is not found or is ambiguous (see `ModuleParts`). beyond_context: whether texts may be longer than the
    configuration says.

    Raises InputError where nothing can be loaded, weights are absent, or the backend cannot run the model. So it does
    for an encoder's input that is missing or unfit, for a model without positions beyond its context, and for a dtype
    or a device map beside a model in memory.
    """
    source = newest_in(inside_compiled(Path(source) if isinstance(source, PathLike) else source))
    if isinstance(source, Subject):
        return _unchanged(source, tokenizer, backend, dtype, device_map, name, encoder, parts, beyond_context or None)
    dtype = _dtype_of(dtype)
    instance_of(encoder, EncoderInput | None, "encoder is Silence(), NoEncoder(), Sound(file) or Text(text)")
    instance_of(name, str | None, "a model's name is a text")
    instance_of(parts, ModuleParts | None, "parts are those of a module of your own, ModuleParts(...)")
    read_with = tokenizer_source(source, tokenizer)
    if (dtype or device_map) and not isinstance(source, str | Path):
        raise InputError("dtype and device_map are for names and folders; move the model yourself: model.to(...)")
    origin, folder = "", None
    if isinstance(source, str | Path):
        name = name or str(source)
        origin, folder = origin_of(source), folder_of(source)
        if backend in (None, "huggingface") and folder is not None:
            check_encoder(encoder, getattr(config_here(folder), "is_encoder_decoder", False), name)  # reads no weights
        source = load_model(source, dtype or torch.float32, device_map)
    subject = _in_memory(source, backend, name, encoder, parts)
    subject.revision = origin or subject.revision
    subject.tokenizer_source, subject.folder = read_with, folder
    if beyond_context:
        subject.read_beyond_context()
    return subject


def _in_memory(
    model: Any, backend: str | None, name: str | None, encoder: EncoderInput | None, parts: ModuleParts | None
) -> Subject:
    """The subject of a model in memory on a backend, by default on that of its library."""
    library, shown = _library_of(model), name or type(model).__name__
    is_own = library == _OWN and backend is None
    if library == _OWN and any(map(is_lazy, model.parameters())):
        raise InputError(f"{shown} has lazy weights without a size; run it once, then give it")
    if parts is not None and not is_own:
        raise InputError(f"parts are for PyTorch modules of your own, not for {library}")
    backend = library if backend is None else backend
    if not is_own and (backend not in BACKENDS or library not in ("huggingface", backend)):
        hint = "" if backend in BACKENDS else nearest(backend, BACKENDS)
        raise InputError(f"{shown} cannot run on {backend!r}{hint}; backends: {', '.join(BACKENDS)}")
    if backend == "huggingface" and model.config.is_encoder_decoder:
        check_encoder(encoder, True, shown)
        assert encoder is not None
        return EncoderDecoderSubject(model, encoder, name)
    subject = ModuleSubject(model, name, parts or ModuleParts()) if is_own else _SUBJECTS[backend](model, name)
    check_encoder(encoder, False, subject.name)
    return subject


def _unchanged(subject: Subject, *others: Any) -> Subject:
    """The subject. Raises InputError for other arguments, which come too late, but for the device that it is on."""
    if any(other is not None and str(other) != str(subject.device) for other in others):
        raise InputError(f"{subject.name} is loaded already; use it as it is")
    return subject


def subject_of(model: Any) -> Subject:
    """The subject itself, or that of anything that `load` loads without further options."""
    return model if isinstance(model, Subject) else load(model)


def tokenizer_source(source: Any, tokenizer: Any = None) -> Callable[[], Any]:
    """A function that returns the tokenizer: the given one, else that of a name or an object of a library.

    A transformers model has its tokenizer where it was loaded from, in a folder or on the Hub.

    Raises InputError for what is not a tokenizer.
    """
    if tokenizer is None and isinstance(source, str | Path):
        return partial(load_tokenizer, source)
    if isinstance(tokenizer, str | Path):
        return partial(_itself, tokenizer_of(tokenizer))
    beside = getattr(source, "tokenizer", None) if tokenizer is None else tokenizer
    if beside is None and isinstance(source, PreTrainedModel) and source.name_or_path:
        return partial(_tokenizer_beside, source.name_or_path)
    read_with = beside if is_tokenizer(beside) else plain_tokenizer(beside)
    if tokenizer is not None and read_with is None:
        fix = "give the name of one, or any with encode and decode"
        raise InputError(f"a {type(tokenizer).__name__} is not a tokenizer; {fix}")
    return partial(_itself, read_with)


def _tokenizer_beside(folder: str) -> Any:
    try:
        return load_tokenizer(folder)
    except InputError:  # the model itself is whole, and takes token ids
        return None


def _itself(tokenizer: Any) -> Any:
    return tokenizer


def _dtype_of(given: Any) -> Any:
    """A dtype of torch, "auto" or None, from one of torch or its name."""
    dtype = getattr(torch, given, None) if isinstance(given, str) else given
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if given not in (None, "auto") and not is_float:
        raise InputError(f"{given!r} is not a dtype that models run in; use {', '.join(Dtype)}")
    return given if given == "auto" else dtype


def _subject_by(library: str, model: Any, name: str | None) -> Subject:
    """Makes subjects by the backend's file of that name, which is imported with its library when it is asked for."""
    return import_module(f".{library}", __package__).make_subject(model, name)


_SUBJECTS: Mapping[str, Callable[[Any, str | None], Subject]] = {
    "huggingface": HuggingFaceSubject,
    "nnsight": partial(_subject_by, "nnsight"),
    "transformer_lens": partial(_subject_by, "transformer_lens"),
}
_OWN = "module"  # a PyTorch module that is of no library
BACKENDS = tuple(_SUBJECTS)
_LIBRARIES = {"transformers": "huggingface"} | {name: name for name in _SUBJECTS}


def _library_of(model: object) -> str:
    """The backend that an object in memory belongs to."""
    roots = [base.__module__.split(".")[0] for base in type(model).__mro__]
    if not isinstance(model, PreTrainedModel):  # a layer of transformers, or its configuration, is none of its models
        roots = [root for root in roots if root != "transformers"]
    libraries = [_LIBRARIES[root] for root in roots if root in _LIBRARIES]
    libraries += [_OWN] if isinstance(model, torch.nn.Module) else []
    is_model = isinstance(getattr(model, "_module", model), torch.nn.Module)  # libraries also have caches and traces
    if not libraries or not is_model:
        kind = type(model).__name__
        fix = "give a name, a folder or a model in memory; si.sinks(weights) takes attention weights"
        raise InputError(f"a {kind} is not a model; {fix}")
    return libraries[0]
