"""Every global name that functions read is defined when they run, and stands for one thing."""

import ast
import builtins
from collections import Counter
from pathlib import Path
from symtable import SymbolTable, symtable

ROOT = Path(__file__).parents[1]
PARTS = ("sinkinterp", "benchmarks", "experiments", "models", "tools")
FILES = [file for part in PARTS for file in (ROOT / part).rglob("*.py")]
EVERYWHERE = {*dir(builtins), "__file__", "__path__"}


class AtRunTime(ast.NodeTransformer):
    """Leaves out what type checkers alone import, and the types of variables."""

    def visit_If(self, node: ast.If):
        self.generic_visit(node)
        is_left_out = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return (node.orelse or ast.Pass()) if is_left_out else node

    def visit_AnnAssign(self, node: ast.AnnAssign):
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else ast.Pass()


def global_names(table: SymbolTable) -> set[str]:
    """The global names that functions read, which are looked up when they are called."""
    names = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return (names if table.get_type() == "function" else set()).union(*map(global_names, table.get_children()))


def undefined(source: str) -> set[str]:
    table = symtable(ast.unparse(AtRunTime().visit(ast.parse(source))), "", "exec")
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    return global_names(table) - defined - EVERYWHERE


def test_every_global_name_that_a_function_reads_is_defined():
    found = {str(file): names for file in FILES if (names := undefined(file.read_text(encoding="utf-8")))}
    assert found == {} and len(FILES) > 200


def test_an_undefined_name_inside_a_function_is_found():
    assert undefined("def outer():\n    def inner():\n        return absent + len([])\n") == {"absent"}
    for_checkers = "if TYPE_CHECKING:\n    from a import b\ndef f(x: b):\n    return b\n"
    assert undefined(for_checkers) == {"b"}


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
    assert {str(file): names for file in FILES if (names := defined_twice(file.read_text(encoding="utf-8")))} == {}


def test_a_constant_with_the_name_of_another_is_found():
    assert defined_twice("LEAST, HALF = 0.05, 0.5\nLEAST = max((5, 33)) + 2\n") == {"LEAST"}
    assert defined_twice("def f(): ...\nclass f: ...\nx = 1\nx = x + 1\ny: dict = {}\ny[1] = 2\n") == {"f"}
