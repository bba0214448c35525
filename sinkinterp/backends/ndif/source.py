"""The source of a module as top-level definitions, without docstrings and annotations."""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from ...errors import InputError

# what sent text may import: NDIF's sandbox allows more, but torch is all that a read needs
IMPORTABLE = frozenset({"torch", "math", "functools", "dataclasses", "collections"})
# what else a payload may name: how pickle and nnsight rebuild a trace
SERVER = IMPORTABLE | {
    "builtins", "types", "operator", "_operator", "copyreg", "cloudpickle", "nnsight", "transformers"
}  # fmt: skip
_OURS = __name__.split(".")[0]

Statement = ast.stmt
Import = ast.Import | ast.ImportFrom


@cache
def definitions(module: str) -> dict[str, Statement]:
    """The statement that defines each top-level name of a module.

    In classes of this package, methods that need libraries which a server may lack raise an error there.
    """
    file = getattr(import_module(module), "__file__", None)
    if file is None:
        raise InputError(f"classes of {module} cannot be sent, for it is no file; move them into one")
    defined: dict[str, Statement] = {}
    for statement in _WithoutAnnotations().visit(ast.parse(Path(file).read_text())).body:
        defined |= dict.fromkeys(_names_defined_by(statement), statement)
    if is_ours(module):
        foreign = {name for name, statement in defined.items() if _is_foreign(module, statement, name)}
        for statement in defined.values():
            if isinstance(statement, ast.ClassDef):
                statement.body = [_without_foreign(part, foreign, statement.name) for part in statement.body]
    return defined


def origin(module: str, statement: Import, name: str) -> tuple[str, str | None]:
    """The module that an import takes `name` from, and its name there; None where it is that module itself."""
    alias = next(a for a in statement.names if (a.asname or a.name.split(".")[0]) == name)
    if isinstance(statement, ast.Import):
        return alias.name if alias.asname else name, None
    package = sys.modules[module].__package__ or ""
    home = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
    submodule = f"{home}.{alias.name}"
    is_module = submodule in sys.modules and getattr(sys.modules[home], alias.name, None) is sys.modules[submodule]
    return (submodule, None) if is_module else (home, alias.name)


def module_behind(module: str, name: str) -> str | None:
    """The module of this package, or of the user, that a name in `module` stands for; None for other names."""
    statement = definitions(module).get(name)
    if not isinstance(statement, Import):
        return None
    home, original = origin(module, statement, name)
    return home if original is None and (is_ours(home) or is_local(home)) else None


def imports_in(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def check_import(module: str, allowed: frozenset[str]) -> None:
    """Raises InputError for a module that is not of the allowed libraries."""
    if not _is_of(module, allowed):
        raise InputError(f"a read or edit needs {module}, which the server may lack; remote ones use torch only")


def is_ours(module: str) -> bool:
    """Whether a module belongs to this package."""
    return module.split(".")[0] == _OURS


def is_local(module: str) -> bool:
    """Whether a module is the user's own: a script, a notebook or a file, but nothing installed."""
    root = module.split(".")[0]
    if root in SERVER or root in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(Path(file).parts)


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes what does nothing when it runs: docstrings, `override`, and annotations except those of fields."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d).split(".")[-1] != "override"]
        node.body = [_assignment(s) if isinstance(s, ast.AnnAssign) else s for s in _without_docstring(node.body)]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [
            _assignment(s) if isinstance(s, ast.AnnAssign) and "ClassVar" in ast.unparse(s) else s
            for s in _without_docstring(node.body)
        ]
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                statement.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = [_assignment(s) if isinstance(s, ast.AnnAssign) else s for s in node.body]
        return self.generic_visit(node)


def _assignment(statement: ast.AnnAssign) -> Statement:
    return ast.Pass() if statement.value is None else ast.Assign([statement.target], statement.value, lineno=0)


def _without_docstring(body: list[Statement]) -> list[Statement]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (body[1:] or [ast.Pass()]) if is_text else body


def _names_defined_by(statement: Statement) -> list[str]:
    if isinstance(statement, Import):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        return [node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _is_foreign(module: str, statement: Statement, name: str) -> bool:
    """Whether a name is imported from a library that a server may lack."""
    if not isinstance(statement, Import):
        return False
    home, _ = origin(module, statement, name)
    return not (is_ours(home) or _is_of(home, IMPORTABLE))


def _without_foreign(part: Statement, foreign: set[str], owner: str) -> Statement:
    """A part of a class; a method that uses foreign names or imports becomes one that raises an error."""
    if not isinstance(part, ast.FunctionDef):
        return part
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    if names & foreign or not all(_is_of(module, IMPORTABLE) for module in imports_in(part)):
        part.decorator_list = []
        part.body = ast.parse(f"raise ImportError('{owner}.{part.name} needs a library that this server lacks')").body
    return part


def _is_of(module: str, libraries: frozenset[str]) -> bool:
    return module.split(".")[0] in libraries
