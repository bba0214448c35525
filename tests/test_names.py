"""Neither ruff nor mypy looks for undefined names here, because shapes of jaxtyping look like names. This test does."""

import builtins
import dis
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import benchmarks
import experiments.shared
import sinkinterp
import tools
from sinkinterp.runs.catalogue import experiment_names, load_module

RUNS = {"sinkinterp.__main__"}  # importing it runs the command line


def modules() -> Iterator[ModuleType]:
    for package in (sinkinterp, benchmarks, experiments.shared, tools):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if info.name not in RUNS:
                yield importlib.import_module(info.name)
    yield from map(load_module, experiment_names())


def global_names(code: CodeType) -> set[str]:
    """The global names that a piece of code, and all code inside it, reads."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    read = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return read.union(*map(global_names, inner))


def undefined(module: ModuleType) -> set[str]:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    return {name for name in global_names(compile(source, "", "exec")) if not hasattr(module, name)} - set(
        dir(builtins)
    )


def test_every_global_name_that_code_reads_is_defined():
    found = {module.__name__: names for module in modules() if (names := undefined(module))}
    assert found == {}


def test_an_undefined_name_inside_a_function_is_found(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("def outer():\n    def inner():\n        return absent + len([])\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert undefined(importlib.import_module("broken_module")) == {"absent"}
