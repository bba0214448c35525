"""A module gives a name to one thing. Ruff finds undefined names (F821), and those for type checkers alone (TC004)."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("sinkinterp", "benchmarks", "experiments", "models", "tools")
FILES = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]


def defined_twice(source: str) -> set[str]:
    """The names that two statements of a module define, where the second forgets the first."""
    counts: Counter[str] = Counter()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
            counts.update({name.id for name in names if isinstance(name.ctx, ast.Store)} - read)
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef) and not statement.decorator_list:
            counts[statement.name] += 1
    return {name for name, count in counts.items() if count > 1}


def test_a_module_gives_a_name_to_one_thing():
    found = {str(file): names for file in FILES if (names := defined_twice(file.read_text(encoding="utf-8")))}
    assert found == {} and len(FILES) > 200


def test_a_constant_with_the_name_of_another_is_found():
    assert defined_twice("LEAST, HALF = 0.05, 0.5\nLEAST = max((5, 33)) + 2\n") == {"LEAST"}
    assert defined_twice("def f(): ...\nclass f: ...\nx = 1\nx = x + 1\ny: dict = {}\ny[1] = 2\n") == {"f"}
