"""A program: the text of the definitions that a read or edit needs, from any of our modules or the user's files.

Definitions are found by name in the source of their module, and with them whatever they use at its top level, imports
of other such modules followed. Each module becomes a function in one function `program`, so that names cannot clash.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
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


def text_of(names: Iterable[tuple[str, str]]) -> str:
    """A function `program` that defines the named things, given as (module, name), and returns a way to find them."""
    needed = _Needed()
    for module, name in sorted(names):
        needed.add_all(module) if not name else needed.add(module, name.split(".")[0])
    order = [m for m in TopologicalSorter(needed.modules_used).static_order() if m in needed.statements]
    number = {module: f"module_{i}" for i, module in enumerate(order)}
    lines = ["def program():", "    modules = {}"]
    for module in order:
        body, bound = needed.body(module, number)
        lines += [f"    def {number[module]}():", *(f"        {line}" for line in "\n".join(body).splitlines())]
        members = ", ".join(f"{name!r}: {name}" for name in bound)
        lines += [f"        return type({module!r}, (), {{{members}}})"]
        lines += [f"    {number[module]} = modules[{module!r}] = {number[module]}()"]
    lines += ["    def find(module, name):", "        found = modules[module]"]
    lines += ["        for part in name.split('.') if name else ():", "            found = vars(found)[part]"]
    return "\n".join([*lines, "        return found", "    return find", ""])


class _Needed:
    """The top-level statements, of all modules, without which some definitions would not run."""

    def __init__(self) -> None:
        self.statements: dict[str, dict[str, Statement]] = {}
        self.modules_used: dict[str, set[str]] = {}

    def add(self, module: str, name: str) -> None:
        bindings = _bindings(module)
        if name not in bindings:
            raise InputError(f"{module}.{name} cannot be sent; define it at the top level of its file")
        if name in self.statements.setdefault(module, {}):
            return
        statement = self.statements[module][name] = bindings[name]
        self.modules_used.setdefault(module, set())
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._follow(module, statement, name)
            return
        for imported in imports_in(statement):
            check_import(imported, IMPORTABLE)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                home = _module_behind(module, node.value.id)
                if home is not None:
                    self.modules_used[module].add(home)
                    self.add(home, node.attr)
            if isinstance(node, ast.Name) and node.id in bindings:
                self.add(module, node.id)

    def add_all(self, module: str) -> None:
        for name, statement in _bindings(module).items():
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.add(module, name)

    def _follow(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        home, original = _origin(module, statement, name)
        if not (is_ours(home) or is_local(home)):
            check_import(home, IMPORTABLE)
        elif original is not None:
            self.modules_used[module].add(home)
            self.add(home, original)

    def body(self, module: str, number: dict[str, str]) -> tuple[list[str], list[str]]:
        """The module's needed statements as text, in their order, and the names that they bind."""
        needed = self.statements[module]
        lines = []
        for name, statement in _bindings(module).items():
            if name not in needed:
                continue
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                lines.append(ast.unparse(statement))
                continue
            home, original = _origin(module, statement, name)
            if home in number:
                lines.append(f"{name} = {number[home]}" + (f".{original}" if original else ""))
            else:
                lines.append(f"from {home} import {original} as {name}" if original else f"import {home} as {name}")
        return list(dict.fromkeys(lines)), list(needed)


class _Bare(ast.NodeTransformer):
    """Drops what does not run: docstrings and annotations, but for the fields of dataclasses."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.body = [_plain(s) if isinstance(s, ast.AnnAssign) else s for s in _undocumented(node.body)]
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        body = _undocumented(node.body)
        node.body = [_plain(s) if isinstance(s, ast.AnnAssign) and "ClassVar" in ast.unparse(s) else s for s in body]
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign):
                statement.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _without_foreign_methods(node: Statement) -> Statement:
    """A class of ours without the methods that import what a server lacks; no read or edit calls those."""
    if isinstance(node, ast.ClassDef):
        foreign = [s for s in node.body if {m.split(".")[0] for m in imports_in(s)} - IMPORTABLE]
        node.body = [s for s in node.body if s not in foreign] or [ast.Pass()]
    return node


def _plain(statement: ast.AnnAssign) -> Statement:
    return ast.Pass() if statement.value is None else ast.Assign([statement.target], statement.value, lineno=0)


def _undocumented(body: list[Statement]) -> list[Statement]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (body[1:] or [ast.Pass()]) if is_text else body


@cache
def _bindings(module: str) -> dict[str, Statement]:
    """What each top-level name of a module is bound by, bare."""
    file = getattr(import_module(module), "__file__", None)
    if file is None:
        raise InputError(f"classes of {module} cannot be sent, for it is no file; move them into one")
    found: dict[str, Statement] = {}
    for statement in _Bare().visit(ast.parse(Path(file).read_text())).body:
        if isinstance(statement, ast.AnnAssign):
            statement = _plain(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0]: statement for alias in statement.names}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = _without_foreign_methods(statement) if is_ours(module) else statement
        elif isinstance(statement, ast.Assign):
            found |= {n.id: statement for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return found


def _origin(module: str, statement: ast.Import | ast.ImportFrom, name: str) -> tuple[str, str | None]:
    """The module that an import takes `name` from, and its name there; None where it is that module itself."""
    alias = next(a for a in statement.names if (a.asname or a.name.split(".")[0]) == name)
    if isinstance(statement, ast.Import):
        return alias.name if alias.asname else name, None
    package = sys.modules[module].__package__ or ""
    home = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
    whole = f"{home}.{alias.name}"
    is_module = whole in sys.modules and getattr(sys.modules[home], alias.name, None) is sys.modules[whole]
    return (whole, None) if is_module else (home, alias.name)


def _module_behind(module: str, name: str) -> str | None:
    """The module of ours, or the user's, that a name stands for, if it does."""
    statement = _bindings(module).get(name)
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return None
    home, original = _origin(module, statement, name)
    return home if original is None and (is_ours(home) or is_local(home)) else None


def imports_in(tree: ast.AST) -> list[str]:
    """The modules that are imported anywhere in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


def check_import(module: str, allowed: frozenset[str]) -> None:
    """Raises InputError for a module that is not of the allowed libraries."""
    if module.split(".")[0] not in allowed:
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
