"""What a file or a folder is, by its names and first bytes: a model that can be read, or not."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...checks import READABLE, InputError, refusing

_SAVED = "give a name on the Hub, or a folder that save_pretrained made, with config.json and .safetensors weights"


def is_gguf(source: object) -> bool:
    """Tells if a source names a GGUF file, by its ending, or is one, by its first bytes: Ollama's have no ending."""
    if not isinstance(source, str | Path) or Path(source).suffix.lower() == ".gguf":
        return isinstance(source, str | Path)
    if not os.path.isfile(source) or not os.access(source, os.R_OK):
        return False
    with open(source, "rb") as content:
        return content.read(4) == b"GGUF"


def check_file(file: Path) -> None:
    """Raises InputError for a file that is not GGUF."""
    if file.is_file() and not is_gguf(file):
        raise InputError(f"{file} is a file, and not GGUF; {_SAVED}")


def _instead_of(folder: Path) -> str:
    """The newest model inside a folder, or what else is there."""
    inside = [*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]
    models = [file.parent for file in inside if '"model_type"' in file.read_text(errors="replace")]
    if models := sorted((*models, *folder.glob("*.gguf")), key=_in_order):
        return f"give a model inside it, such as {models[-1]}"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return f"it holds {', '.join(names[:3]) or 'nothing'}{', ...' * (len(names) > 3)}; {_SAVED}"


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
    if folder.exists() and not any(folder.glob("*.safetensors")):
        yield f"{folder} holds no .safetensors weights; {_instead_of(folder)}"
