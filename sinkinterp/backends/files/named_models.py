"""The models that have a name here, and their folders: sinkinterp/NAME ships, local/NAME is downloaded."""

import json
from pathlib import Path
from typing import Any

from ...checks import nearest
from ...errors import InputError
from ...files import cache_folder

SHIPPED = Path(__file__).parents[2] / "checkpoints"
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
            f"{str(source)[:60]!r} is not a name of a model, {getattr(error, 'strerror', error)}; check it"
        ) from error
    if not exists and not name and owner in _folders(SHIPPED):
        raise InputError(f"no model is named {source}; did you mean sinkinterp/{source}?")
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


def names_here() -> str:
    """The models that need no network, for an error message."""
    shipped, downloaded = _folders(SHIPPED), _folders(downloads())
    return ", ".join([f"sinkinterp/{shipped[0]}", *(f"local/{name}" for name in downloaded)])


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
