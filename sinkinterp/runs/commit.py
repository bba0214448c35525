"""How the numbers of an experiment were made: versions, commit, machine."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from ..measurement.inputs import PACKAGES
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
    """The commit of the repository that this code lies in, with "-dirty" where code differs; "unknown" outside one.

    What is not code does not count, since a book that lies in the repository changes with every chapter.
    """
    # without --no-optional-locks git rewrites its index, and leaves a lock behind where it is killed
    options = ("--porcelain=v2", "--branch", "--untracked-files=no")
    command = ("git", "--no-optional-locks", "status", *options, "--", ":(top)*.py")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.splitlines()
    ids = [line.split()[2][:12] for line in lines if line.startswith("# branch.oid ")]
    changed = "-dirty" if any(not line.startswith("#") for line in lines) else ""
    return f"{ids[0]}{changed}" if ids else "unknown"
