"""What a file or a folder is, by its names and first bytes: a model that can be read, or what is there in its place."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...checks import READABLE, InputError, refusing

_PICKLED = (".pt", ".pth", ".ckpt", ".bin")  # how files of `torch.save` end
_BEGINNINGS = (b"PK\x03\x04", b"\x80\x02")  # how they begin: now, and before PyTorch 1.6
_STATES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")  # of a trainer, no weights
_FOREIGN = {  # names of files -> whose weights they hold
    "*.h5": "TensorFlow", "*.msgpack": "Flax", "*.npz": "MLX or JAX", "*.onnx": "ONNX", "onnx/*.onnx": "ONNX",
    "*.distcp": "PyTorch's distributed checkpoints", "*/*_model_states.pt": "DeepSpeed", "consolidated.*": "Meta or "
    "Mistral", "*ggml*": "GGML, from before GGUF",
}  # fmt: skip
_TORCH_LOAD = "make the model of these weights, load them into it with torch.load, and give the model itself"
_NAME_ONE = "give the name or the folder of a model"
_POINTER = b"version https://git-lfs"


def is_gguf(source: object) -> bool:
    """Tells if a source names a GGUF file, by its ending, or is one, by its first bytes: Ollama's have no ending."""
    if not isinstance(source, str | Path) or Path(source).suffix.lower() == ".gguf":
        return isinstance(source, str | Path)
    return os.path.isfile(source) and os.access(source, os.R_OK) and _begins(Path(source), b"GGUF")


def _begins(file: Path, *beginnings: bytes) -> bool:
    with open(file, "rb") as content:
        return content.read(32).startswith(beginnings)


def check_file(file: Path) -> None:
    """Raises InputError for a file that is not GGUF, with the folder or the way to load it."""
    if not file.is_file() or is_gguf(file):
        return
    foreign, has_config = _foreign(file.parent, [file]), (file.parent / "config.json").is_file()
    fix = f"give its folder, {file.parent}" if has_config else foreign or _NAME_ONE
    fix = _TORCH_LOAD if _is_pickled(file) and not foreign else fix
    raise InputError(f"{file} is a file, and not GGUF; {fix}")


def _is_pickled(file: Path) -> bool:
    """Whether a file may hold weights of `torch.save`, not the state of a trainer."""
    is_named = file.suffix in _PICKLED and not file.name.startswith(_STATES)
    return is_named and file.is_file() and _begins(file, *_BEGINNINGS)


def _foreign(folder: Path, files: list[Path] | None = None) -> str:
    """What a user does with weights of another program among these files, by default those of a folder; else empty."""
    for pattern, who in _FOREIGN.items():
        for file in sorted(folder.glob(pattern)):
            if files is None or file in files:
                why = f"of {who}, which transformers does not read"
                return f"{file.relative_to(folder)} holds weights {why}: take the model's own weights, as safetensors"
    return ""


def _instead_of(folder: Path) -> str:
    """Which model a user may mean who gives a folder without config.json or .safetensors, by the files in it."""
    inside = sorted((*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")), key=_in_order)
    if models := [file.parent for file in inside if '"model_type"' in file.read_text(errors="replace")]:
        return f"give a model inside it, such as {models[-1]}"
    if ggufs := sorted(folder.glob("*.gguf")):
        return f"give the GGUF file itself, {ggufs[0]}"
    if foreign := _foreign(folder):
        return foreign
    if tensors := sorted(folder.glob("*.safetensors")):
        return f"put the config.json of {tensors[0].name} there"
    if pickled := sorted(filter(_is_pickled, folder.glob("*"))):
        is_theirs = (folder / "config.json").is_file() and pickled[0].name.startswith("pytorch_model")
        return f"{pickled[0].name}: {'load and save the model with transformers once' if is_theirs else _TORCH_LOAD}"
    return "give a folder made by save_pretrained"


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Sorts paths as people count: checkpoint-1000 behind checkpoint-500."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", str(path))]


@refusing
def check_folder(source: str | Path) -> Iterator[str]:
    """Why a path is not the folder of a model."""
    folder = Path(source)
    if not folder.exists() and (folder.is_symlink() or str(source).startswith((".", "/", "~"))):
        yield f"there is no folder {folder}"
    check_file(folder)
    if folder.exists() and not (folder / "config.json").is_file():
        yield f"{folder} holds no config.json, so it is not a model of transformers; {_instead_of(folder)}"
    for file in folder.glob("*") if folder.is_dir() else ():
        if file.exists() and not file.is_file() and (not file.is_dir() or file.suffix == ".safetensors"):
            yield f"{file} is not a file, and a model is made of files"
        if file.is_file() and not os.access(file, os.R_OK):
            yield f"{file} cannot be read: permission denied; {READABLE}"
        if file.suffix == ".safetensors" and file.is_file() and _begins(file, _POINTER):
            yield f"{file} is a pointer of Git LFS, and the weights are elsewhere; run `git lfs pull` in {folder}"
    if folder.exists() and not any(folder.glob("*.safetensors")):
        yield f"{folder} holds no .safetensors weights; {_instead_of(folder)}"
