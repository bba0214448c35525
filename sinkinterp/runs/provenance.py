"""How the numbers of an experiment were made: versions, commit, machine."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from ..measurement.provenance import PACKAGES
from ..table import Cell


def provenance() -> dict[str, Cell]:
    """Versions, commit and machine of this process."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "versions": f"python {platform.python_version()}, {versions}",
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }


def _commit() -> str:
    """The commit of the repository that this code lies in; "unknown" outside one."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
