"""Kills commands in processes of their own at random moments, and counts the processes and drafts that they leave.

    python -m benchmarks.leftovers [--times 60] [--seed 0]

Each command is killed (SIGKILL) alone, not its children; these must end by themselves within ten seconds. Then the
same command, or another one that writes there, runs to its end: after it no draft of a killed process may be left.
Linux only: processes are found in /proc, by a variable of their environment.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

MARK = "SINKINTERP_KILLED"
PATIENCE = 10.0  # seconds
REPRODUCE = ("sinkinterp", "reproduce", "table03", "--scale", "smoke", "--seeds", "3", "--out", "book")
COMMANDS = {
    "reproduce": REPRODUCE,
    "serve": ("sinkinterp", "serve", "sinkinterp/demo-softmax", "--no-open"),
    "make models": ("models",),
}
ENDS = {"reproduce": REPRODUCE}  # what runs at the end; the others write nothing, or need a network


def main(
    times: Annotated[int, typer.Option(min=1, help="Kills, over all commands.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    seconds: Annotated[float, typer.Option(help="The latest moment of a kill.")] = 12.0,
) -> None:
    """Print how many kills each command survived; exit code 1 if a process or a draft was left."""
    rng, kills, left = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        mark = f"{os.getpid()}-{seed}"
        environment = os.environ | {MARK: mark, "SINKINTERP_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        _run(REPRODUCE, folder, environment)
        for kill in range(times):
            name = list(COMMANDS)[kill % len(COMMANDS)]
            process = _start(COMMANDS[name], folder, environment)
            time.sleep(rng.uniform(0, seconds))
            kills[name] += process.poll() is None
            process.kill()
            process.wait()
            left += [f"{name}: process {other}" for other in _alive(mark)]
        for command in ENDS.values():
            _run(command, folder, environment)
        _models_again(folder)
        left += [f"draft {path.relative_to(folder)}" for path in folder.rglob(".draft-*")]
    for name, count in kills.items():
        print(f"{name}: {count} kills before its end")
    print(*left, f"{times} kills, {len(left)} left behind", sep="\n")
    raise typer.Exit(bool(left))


def _start(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[1])
    words = [sys.executable, "-m", *command]
    environment = environment | {"PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _run(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> None:
    if _start(command, folder, environment).wait():
        raise SystemExit(f"{' '.join(command)} fails where nobody kills it")


def _models_again(folder: Path) -> None:
    """What `make models` does first: its models need a network, so it is not run to its end."""
    from sinkinterp.files import remove_drafts

    remove_drafts(folder / "cache" / "models")


def _alive(mark: str) -> list[int]:
    """Processes with this mark that are there after ten seconds; this process apart, which set it for others."""
    end = time.monotonic() + PATIENCE
    while (found := [process for process in _processes() if _is_marked(process, mark)]) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _is_marked(process: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    typer.run(main)
