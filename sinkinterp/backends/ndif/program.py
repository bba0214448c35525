"""A program: the text of the definitions that a read or edit needs, from modules of this package or the user's files.

Definitions are found by name in the source of their module, without docstrings and annotations. With them comes
whatever they use at its top level, also through imports of other such modules. Each module becomes a function in one
function `program`, so that equal names in two modules stay apart.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

from ...errors import InputError

# what sent text may import: nnsight counts einops, like torch, among what every NDIF server has
IMPORTABLE = frozenset({"torch", "einops", "math", "functools", "dataclasses", "collections"})
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
        raise InputError(f"classes of {module} cannot be sent, because it is not a file; move them into one")
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
        raise InputError(
            f"a read or edit needs {module}, which the server may lack; remote ones use torch and einops only"
        )


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


_FIND = """
    def find(module, name):
        value = modules[module]
        for part in name.split('.') if name else ():
            value = vars(value)[part]
        return value
    return find
"""


def text_of(names: Iterable[tuple[str, str]]) -> str:
    """A function `program` that defines the named things, given as (module, name), and returns a way to find them."""
    needed = _Needed()
    for module, name in sorted(names):
        needed.add_all(module) if not name else needed.add(module, name.split(".")[0])
    order = [m for m in TopologicalSorter(needed.modules_used).static_order() if m in needed.statements]
    function_of = {module: f"module_{i}" for i, module in enumerate(order)}
    lines = ["def program():", "    modules = {}"]
    for module in order:
        lines += _function_lines(module, needed, function_of)
    return "\n".join(lines) + _FIND


def _function_lines(module: str, needed: "_Needed", function_of: dict[str, str]) -> list[str]:
    """A function that makes a module's definitions, and its call; the result stands for the module."""
    body = "\n".join(needed.body(module, function_of))
    members = ", ".join(f"{name!r}: {name}" for name in needed.statements[module])
    function = function_of[module]
    return [
        f"    def {function}():",
        *(f"        {line}" for line in body.splitlines()),
        f"        return type({module!r}, (), {{{members}}})",
        f"    {function} = modules[{module!r}] = {function}()",
    ]


class _Needed:
    """The top-level statements, of all modules, that some definitions need in order to run."""

    def __init__(self) -> None:
        self.statements: dict[str, dict[str, Statement]] = {}
        self.modules_used: dict[str, set[str]] = {}

    def add(self, module: str, name: str) -> None:
        defined = definitions(module)
        if name not in defined:
            raise InputError(f"{module}.{name} cannot be sent; define it at the top level of its file")
        if name in self.statements.setdefault(module, {}):
            return
        statement = self.statements[module][name] = defined[name]
        self.modules_used.setdefault(module, set())
        if isinstance(statement, Import):
            self._add_imported(module, statement, name)
            return
        for imported in imports_in(statement):
            check_import(imported, IMPORTABLE)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._add_member(module, node.value.id, node.attr)
            if isinstance(node, ast.Name) and node.id in defined:
                self.add(module, node.id)

    def add_all(self, module: str) -> None:
        for name, statement in definitions(module).items():
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.add(module, name)

    def body(self, module: str, function_of: dict[str, str]) -> list[str]:
        """The module's needed statements as text, in their order."""
        needed = self.statements[module]
        defined = [(name, statement) for name, statement in definitions(module).items() if name in needed]
        lines = [
            _import_line(module, statement, name, function_of)
            if isinstance(statement, Import)
            else ast.unparse(statement)
            for name, statement in defined
        ]
        return list(dict.fromkeys(lines))

    def _add_imported(self, module: str, statement: Import, name: str) -> None:
        home, original = origin(module, statement, name)
        if not (is_ours(home) or is_local(home)):
            check_import(home, IMPORTABLE)
        elif original is not None:
            self.modules_used[module].add(home)
            self.add(home, original)

    def _add_member(self, module: str, name: str, member: str) -> None:
        """Adds what `name.member` needs where `name` stands for a module that can be sent."""
        home = module_behind(module, name)
        if home is not None:
            self.modules_used[module].add(home)
            self.add(home, member)


def _import_line(module: str, statement: Import, name: str, function_of: dict[str, str]) -> str:
    home, original = origin(module, statement, name)
    if home in function_of:
        return f"{name} = {function_of[home]}" + (f".{original}" if original else "")
    return f"from {home} import {original} as {name}" if original else f"import {home} as {name}"
