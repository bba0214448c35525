"""Writes the packages that `make` installs, with the hashes of all their files: `python -m tools.lock [WHEEL ...]`.

Their versions are those of constraints.txt, and for what it leaves open the newest. The hashes of the wheels that are
given are those of the CPU build of torch, which PyTorch's own index holds. Needs the extra `lock`.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
COMMAND = (
    *("uv", "pip", "compile", "pyproject.toml", "--constraint", "constraints.txt", "--universal"),
    *(
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        "--python-version",
        "3.11.5",
        "--quiet",
    ),
)
CUDA = re.compile(r"cuda|nvidia|triton")  # what only the CUDA build of torch needs
CPU = "torch=={} ; sys_platform == 'linux' and platform_machine == 'x86_64' and python_version == '3.11'"
BUILDERS = ("hatchling", "editables", "packaging", "pathspec", "pluggy", "setuptools", "trove-classifiers")


def main(wheels: list[Path]) -> None:
    """Writes build.txt, dev.txt and cuda.txt in requirements/, and what docs, ray and this tool need beside them.

    With `wheels`, the file names of which begin as torch-2.13.0+cpu-cp311, also cpu.txt.
    """
    dev = _pins("dev")
    if wheels:
        hashes = [f"--hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" for wheel in wheels]
        _write("cpu", {"torch": " \\\n    ".join([CPU.format(wheels[0].name.split("-")[1]), *hashes])})
    _write("build", {name: dev[name] for name in BUILDERS})
    _write("cuda", {name: pin for name, pin in dev.items() if CUDA.match(name)})
    _write("dev", {name: pin for name, pin in dev.items() if not CUDA.match(name) and name not in BUILDERS})
    for extra in ("docs", "ray", "lock"):
        _write(extra, {name: pin for name, pin in _pins(extra).items() if name not in dev})


def _pins(extra: str) -> dict[str, str]:
    """The packages that the project needs with an extra: name to pin and hashes."""
    compiled = subprocess.run([*COMMAND, "--extra", extra], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {block.partition("==")[0]: block.strip() for block in re.split(r"\n(?=\w)", compiled)}


def _write(name: str, pins: Mapping[str, str]) -> None:
    lines = [f"# {Path(__file__).name} wrote this", *(pins[package] for package in sorted(pins))]
    (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([Path(wheel) for wheel in sys.argv[1:]])
