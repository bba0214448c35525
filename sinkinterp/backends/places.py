"""The models that have a name here, and their folders: sinkinterp/NAME ships, local/NAME is downloaded."""

import json
from pathlib import Path
from typing import Any

from ..checks import nearest
from ..errors import InputError
from ..files import cache_folder
from . import gguf

SHIPPED = Path(__file__).parents[1] / "checkpoints"
ORIGIN = "SOURCE.json"  # in a model folder: where its weights come from


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
    return str(origin_in(path).get("from", ""))


def origin_in(folder: Path) -> dict[str, Any]:
    """What the SOURCE.json of a folder says; empty where there is none of ours."""
    try:
        said = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _downloaded(name: str) -> Path:
    names = _folders(downloads())
    if name not in names:
        fix = "`make models` in a clone of sinkinterp downloads local/smollm2-135m-instruct and local/whisper-tiny.en"
        raise InputError(f"there is no model local/{name} in {downloads()}; {fix}")
    return downloads() / name


def _folders(parent: Path) -> list[str]:
    """The names of the folders in a folder, hidden ones apart; none where it does not exist."""
    return sorted(path.name for path in parent.glob("[!.]*") if path.is_dir())
