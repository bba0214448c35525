"""A program: the text of the definitions that a read or edit needs, from modules of this package or the user's files.

Definitions are found by name in the source of their module, and with them whatever they use at its top level, also
through imports of other such modules. Each module becomes a function in one function `program`, so that equal names in
two modules stay apart.
"""

import ast
from collections.abc import Iterable
from graphlib import TopologicalSorter

from ...errors import InputError
from .source import (
    IMPORTABLE,
    Import,
    Statement,
    check_import,
    definitions,
    imports_in,
    is_local,
    is_ours,
    module_behind,
    origin,
)

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
