"""The models that have a name here, and their folders: some ship with us, `make models` makes others.

Other names are of the Hugging Face Hub.
"""

import json
from pathlib import Path
from typing import Any

from ..checks import InputError, nearest, refusal
from ..files import Of, cache_folder, sealed_hashes

SHIPPED = Path(__file__).parents[1] / "checkpoints"
ORIGIN = "SOURCE.json"  # in a model folder: where its weights come from
_SAME = ("gemma3-270m", "qwen2.5-coder-0.5b", "whisper-tiny.en")
MADE = {"smollm2": "smollm2-135m-instruct"} | {name: name for name in _SAME}  # by `make models`: their folders
_OLD = "local/"  # stood before these names, which then were those of the folders


def located(source: str | Path) -> str | Path:
    """The folder of a model that we name; any other source as it is.

    Names are sinkinterp/NAME, the names in `MADE`, and names of folders in `downloads()`. The last two may begin with
    local/. A folder of that name in the working directory comes first. Raises InputError for a model that is not there,
    and for a folder of ours, by name or by path, that holds another one.
    """
    if "://" in str(source) or not str(source).strip():
        given = "/".join(str(source).split("/")[3:5])
        raise InputError(f"{str(source)!r:.80} is not a name; give that of a model, such as {given or 'gpt2'}")
    owner, _, name = str(source).partition("/")
    with refusal(f"{str(source)[:60]!r} is not a name of a model", of=(OSError, ValueError)):
        if (path := Path(source)).exists():
            home = path.resolve().parent
            is_made = home == downloads().resolve() and path.resolve().name in MADE.values()
            return _sealed(path.resolve()) if is_made or home == SHIPPED else source
    if is_downloaded(source):
        return _downloaded(str(source).removeprefix(_OLD))
    names = _folders(SHIPPED)
    if owner != "sinkinterp" and (name or owner not in names):
        if "/" in name or str(source).endswith("/") or (name and Path(owner or "/").is_dir()):  # the Hub has OWNER/NAME
            kind = "file" if Path(source).suffix == ".gguf" else "folder"
            raise InputError(f"there is no {kind} {source}")
        return source
    if name not in names:
        there_are = ", ".join(f"sinkinterp/{name}" for name in names)
        raise InputError(f"no checkpoint {source} ships{nearest(source, shipped())}; there are {there_are}")
    return _sealed(SHIPPED / name)


def owner_by_name(folder: Path) -> Of:
    """What a folder of `SHIPPED` or `downloads()` is of."""
    return {"model": folder.name}


def folder_of(source: str | Path) -> Path | None:
    """The folder that a model, ours or the user's, is read from; None for a name of the Hub."""
    path = Path(located(source))
    return path if path.is_dir() else path.parent if path.is_file() else None


def is_downloaded(source: str | Path) -> bool:
    """Tells if a name is one that `make models` gives, or that of a folder where it puts models."""
    name = str(source)
    return name in MADE or name.startswith(_OLD) or ("/" not in name and name in _folders(downloads()))


def downloads() -> Path:
    """The folder of the models that `make models` makes."""
    return cache_folder() / "models"


def downloaded() -> dict[str, Path]:
    """The models in `downloads()`, by the name that is shorter."""
    home, short = downloads(), {folder: name for name, folder in MADE.items()}
    return {short.get(folder, folder): home / folder for folder in _folders(home)}


def shipped() -> dict[str, Path]:
    """The checkpoints that ship, by name."""
    return {f"sinkinterp/{name}": SHIPPED / name for name in _folders(SHIPPED)}


def models() -> dict[str, Path]:
    """The folders of the models that need no network, by name."""
    return downloaded() | shipped()


def origin_in(folder: Path) -> dict[str, Any]:
    """The content of the SOURCE.json of a folder; empty without one of ours."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def _downloaded(name: str) -> Path:
    folder = MADE.get(name, name)
    if folder not in _folders(downloads()):
        called = name if name in MADE else next((short for short, made in MADE.items() if made == folder), "")
        fix = f"`make models{f' MODELS={called}' if called else ''}` in a clone of sinkinterp makes {', '.join(MADE)}"
        raise InputError(f"there is no model {folder} in {downloads()}; {fix}")
    return _sealed(downloads() / folder) if folder in MADE.values() else downloads() / folder  # else the user's own


def _sealed(folder: Path) -> Path:
    """The folder. Raises Damaged unless its seal is there and names the model that the folder is called after."""
    sealed_hashes(folder, owner_by_name(folder))
    return folder


def _folders(parent: Path) -> list[str]:
    """The names of the folders in a folder, hidden ones apart; none where it does not exist or cannot be read."""
    try:
        return sorted(path.name for path in parent.glob("[!.]*") if path.is_dir())
    except PermissionError:
        return []
