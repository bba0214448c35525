import pytest

from benchmarks import mutants
from benchmarks.forked_tests import ForkedTests, Outcome
from benchmarks.mutants import ROOT, read_equivalent
from benchmarks.mutations import ignored_spans, is_alike

SOURCE = '''\
"""1 + 1"""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    x = 2 + 2
Alias = int | float
def f(x: int | None = 3) -> int | None:
    if x is None:
        raise ValueError(f"{x + 4}")
    y = 5  # pragma: no cover
    return x + 6
'''

TEST = """
from tiny_added import add


def test_sum():
    while add(1, 1) == 1:
        pass
    assert add(2, 3) == 5
"""


def test_what_cannot_matter_is_not_mutated():
    spans = ignored_spans(SOURCE)
    lines = SOURCE.splitlines()

    def is_ignored(text):
        line, column = next((n, line.index(text)) for n, line in enumerate(lines, 1) if text in line)
        return any(first <= (line, column) < last for first, last in spans)

    assert all(map(is_ignored, ("2 + 2", "int | float", "int | None =", "int | None:", "x + 4", "5  #")))
    assert not any(map(is_ignored, ("3)", "is None", "x + 6")))


def test_an_operator_is_replaced_by_one_of_its_kind():
    kept = ("core/ReplaceBinaryOperator_Add_FloorDiv", "core/ReplaceComparisonOperator_Is_IsNot", "core/AddNot")
    assert all(map(is_alike, (*kept, "core/ReplaceUnaryOperator_USub_Not")))
    assert not any(map(is_alike, ("core/ReplaceBinaryOperator_Add_LShift", "core/ReplaceComparisonOperator_Eq_Is")))


def test_every_file_has_tests_and_its_mirror_comes_first():
    for files, tests in mutants.MUTATED.items():
        assert all(any(ROOT.glob(pattern)) for pattern in (files, *tests)), files
    assert mutants.tests_of(ROOT / "sinkinterp/attention/maps.py")[0].name == "test_maps.py"
    assert mutants.tests_of(ROOT / "sinkinterp/metrics/importance.py")[0].name == "test_importance.py"


def test_every_equivalent_mutant_changes_a_line_that_is_there_and_has_a_reason():
    for (definition, before, _), reason in read_equivalent().items():
        source = (ROOT / definition.partition("::")[0]).read_text()
        assert before in " ".join(line.strip() for line in source.splitlines()) and reason, before


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one function, and its test."""
    (tmp_path / "tiny_added.py").write_text("def add(x, y):\n    return x + y\n")
    test = tmp_path / "test_tiny_added.py"
    test.write_text(TEST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_changed_file_is_tested_without_being_written(package, monkeypatch):
    monkeypatch.setattr("benchmarks.forked_tests.OPTIONS", ("-c", "/dev/null", "-q", "-p", "no:xdist"))
    forks, tests = ForkedTests(package, package), [package / "test_tiny_added.py"]
    module = package / "tiny_added.py"
    source = module.read_text()
    assert forks.run(tests) is Outcome.PASSED
    assert forks.run(tests, module, source.replace("+", "-")) is Outcome.FAILED
    assert forks.run(tests, module, source.replace("+", "*"), timeout=1) is Outcome.TIMED_OUT
    assert forks.run(tests) is Outcome.PASSED and module.read_text() == source
