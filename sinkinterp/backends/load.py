"""From a name, a folder, or an object of one of the three libraries to a subject."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from .huggingface import HuggingFaceSubject
from .subject import Subject

SHIPPED = Path(__file__).parents[1] / "checkpoints"
DeviceMap = str | dict[str, int | str | torch.device] | None


def load(
    source: Any,
    *,
    backend: str | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: DeviceMap = None,
    name: str | None = None,
    remote: bool = False,
) -> Subject:
    """A subject from a Hugging Face name, a local model folder, a checkpoint that ships with us, or a model in memory.

    Shipped ones are named sinkinterp/NAME, as in "sinkinterp/demo-softmax". A model in memory is a transformers model,
    an nnsight model around one, or a TransformerLens bridge. `backend` is "huggingface", "nnsight" or
    "transformer_lens" (which runs a copy); by default that of the object, "huggingface" for
    names and folders. Weights are read from safetensors only, in `dtype` (default float32), to where `device_map` says
    (as in transformers: "auto" spreads a model that is too large for one device), and no code of the repository is run.
    `remote` runs a model of the Hub on an NDIF server instead, in its dtype there: backend "nnsight" only. Raises
    InputError where nothing can be loaded, weights are absent, the backend cannot do it, or a dtype or device is asked
    of a model that is in memory or on a server already.
    """
    if (dtype or device_map) and (remote or not isinstance(source, str | Path)):
        raise InputError("dtype and device_map are for names and folders; move the model yourself: model.to(...)")
    if remote:
        return _remote(source, backend, name)
    if isinstance(source, str | Path):
        name = name or str(source)
        source = load_model(source, dtype or torch.float32, device_map)
    library = _library_of(source)
    backend = backend or library
    if backend not in _SUBJECTS or library not in ("huggingface", backend):
        raise InputError(f"{name or type(source).__name__} cannot run on {backend!r}; backends: {', '.join(_SUBJECTS)}")
    return _SUBJECTS[backend](source, name)


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
    """The transformers model of a name or folder, from safetensors only. Raises InputError where that fails."""
    source = located(source)
    _check_folder(source)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, device_map=device_map, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        fix = "give the name of a model on the Hub, with a network, or a local folder made by save_pretrained"
        raise InputError(f"cannot load {source}: {str(error).splitlines()[0]} Fix: {fix}") from error
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        raise InputError(f"{source} has no fitting weights for {', '.join(absent[:3])}; save the whole model again")
    return model


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model; None where a local folder holds none."""
    source = located(source)
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("tokenizer*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot load the tokenizer of {source}: {str(error).splitlines()[0]}") from error


def located(source: str | Path) -> str | Path:
    """The folder of a shipped checkpoint; any other name or folder as it is. Raises InputError for one we do not ship.

    A local folder of that name comes first.
    """
    owner, _, name = str(source).partition("/")
    if owner != "sinkinterp" or Path(source).exists():
        return source
    names = sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir())
    if name not in names:
        raise InputError(f"no checkpoint {source} ships; there are {', '.join(f'sinkinterp/{n}' for n in names)}")
    return SHIPPED / name


def words_of(source: str | Path) -> Callable[[int], str]:
    """What gives a token id its text; its number where the model has no tokenizer."""
    tokenizer = load_tokenizer(source)
    return str if tokenizer is None else lambda token: tokenizer.decode([token])


def _check_folder(source: str | Path) -> None:
    folder = Path(source)
    if not folder.exists() and str(source).startswith((".", "/", "~")):
        raise InputError(f"there is no folder {folder}; check the path")
    if folder.exists() and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json, so it is no model; give a folder made by save_pretrained")
    if folder.exists() and not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no .safetensors weights; load and save the model with transformers once")
