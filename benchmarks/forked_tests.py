"""Tests in forks of a process that has imported the libraries, so that a run takes the time of its tests alone."""

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from enum import Enum
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

# plugins of pytest are imported before it starts, which it warns of
OPTIONS = ("-n", "0", "-x", "-q", "--tb=short", "-W", "ignore::pytest.PytestAssertRewriteWarning")
BROKEN = 99  # the exit status of a fork in which pytest did not run
MEMORY = 8 * 2**30  # bytes that the tests of one fork may hold: a changed number can ask for more than a machine has


class Outcome(Enum):
    """What tests say of a changed file."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "ran out of time"


class ForkedTests:
    """Runs test files in forks, with logs in `folder`. `warm` imports what they need, but no file of `root`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder

    def warm(self, tests: list[Path]) -> float:
        """Imports the libraries that some tests import. Returns the seconds that the tests take thereafter.

        Raises RuntimeError where the tests fail.
        """
        for _ in range(2):
            began = time.monotonic()
            outcome = self.run(tests, timeout=600)
            if outcome is not Outcome.PASSED:
                raise RuntimeError(f"tests of the unchanged package: {outcome.value}\n{self._log()}")
            seconds = time.monotonic() - began
            for name in json.loads((self.folder / "imported").read_text()):
                if name not in sys.modules:
                    importlib.import_module(name)
        return seconds

    def run(self, tests: list[Path], path: Path | None = None, code: str = "", timeout: float = 60) -> Outcome:
        """The outcome of some tests, where the file at `path` holds `code`. Raises RuntimeError where none ran."""
        sys.stdout.flush()
        child = os.fork()
        if not child:
            self._test(tests, path, code)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if os.waitstatus_to_exitcode(status) in (BROKEN, pytest.ExitCode.NO_TESTS_COLLECTED):
                    raise RuntimeError(f"no tests ran:\n{self._log()}")
                return Outcome.FAILED if status else Outcome.PASSED
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Outcome.TIMED_OUT

    def _test(self, tests: list[Path], path: Path | None, code: str) -> None:
        """Ends the process with the exit status of pytest, or with `BROKEN`."""
        status = BROKEN
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            log = os.open(self.folder / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if path is not None:
                _replace_source(path.resolve(), code)
            status = int(pytest.main([*OPTIONS, f"--basetemp={self.folder / 'tests'}", *map(str, tests)]))
            (self.folder / "imported").write_text(json.dumps(list(filter(self._is_library, sys.modules))))
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _log(self) -> str:
        """The end of what the last tests printed."""
        file = self.folder / "log"
        return file.read_text()[-2000:] if file.exists() else ""

    def _is_library(self, name: str) -> bool:
        """Whether a module comes from a file outside the repository."""
        spec = getattr(sys.modules[name], "__spec__", None)
        file = getattr(sys.modules[name], "__file__", None)
        if spec is None or spec.name != name or file is None:
            return False
        return not Path(file).is_relative_to(self.root)


def _replace_source(path: Path, code: str) -> None:
    """Makes this process import `code` for the file at `path`, and neither read nor write compiled files for it."""
    get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def changed_data(loader: SourceFileLoader, file: str) -> bytes:
        return code.encode() if Path(file) == path else get_data(loader, file)

    def changed_stats(loader: SourceFileLoader, file: str) -> object:
        if Path(file) == path:
            raise OSError("the file is not read")
        return path_stats(loader, file)

    SourceFileLoader.get_data = changed_data  # type: ignore[method-assign,assignment]
    SourceFileLoader.path_stats = changed_stats  # type: ignore[method-assign,assignment]
