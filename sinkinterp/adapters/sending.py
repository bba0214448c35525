"""What is sent to a server that has torch, transformers and nnsight, but not us: source text, chosen by need.

A read or an edit is pickled as nnsight pickles it, functions by their source. Where it names something of this package,
or a class of the user's, the payload names one *program* instead: a function whose text holds the definitions that are
needed, module by module, without annotations. So nothing of ours is imported there, and no bytecode travels.
"""

import ast
import importlib.util
import io
import linecache
import sys
from collections.abc import Callable, Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nnsight.intervention.serialization import CustomCloudPickler, reduce_block

from ..errors import InputError

# what sent text may import: NDIF's sandbox allows more, but torch is all that a read needs
IMPORTABLE = frozenset({"torch", "math", "functools", "dataclasses", "collections"})
# what a payload may name beside that: how pickle and nnsight rebuild a trace
_SERVER = IMPORTABLE | {"builtins", "operator", "_operator", "copyreg", "cloudpickle", "nnsight", "transformers"}
_OURS = __name__.split(".")[0]

Statement = ast.stmt


def payload(tracer: Any, compress: bool) -> bytes:
    """The request that runs a traced block on a server, as nnsight's own but for what belongs to this package.

    Raises InputError for reads and edits that need a library which the server lacks, or that cannot be pickled.
    """
    frame = tracer.info.frame
    block = (tracer, reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals)))
    program = _Program(frozenset())
    _pickled(block, program)  # finds what the program must hold
    data = _pickled(block, _Program(frozenset(program.asked)))
    if compress:
        import zstandard

        return zstandard.ZstdCompressor(level=6).compress(data)
    return data


def _pickled(value: Any, program: "_Program") -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, program).dump(value)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"a read or edit cannot be sent: {str(error).splitlines()[0]}; keep it to functions and tensors"
        ) from error
    return buffer.getvalue()


class _Program:
    """Stands, while pickling, for the function that finds a definition of the program on the server."""

    def __init__(self, names: frozenset[tuple[str, str]]) -> None:
        self.names, self.asked = names, set[tuple[str, str]]()

    def __call__(self, module: str, name: str) -> Any:
        raise NotImplementedError("a program runs on the server only")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _function(text_of(self.names)), ()


class _Pickler(CustomCloudPickler):
    def __init__(self, file: io.BytesIO, program: _Program) -> None:
        super().__init__(file, protocol=4)
        self._program = program

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            if _is_ours(obj.__name__):
                return self._sent(obj.__name__, "")
            _check_import(obj.__name__, _SERVER)
        elif isinstance(obj, type | FunctionType | BuiltinFunctionType) and obj.__module__ is not None:
            home, name = obj.__module__, obj.__qualname__
            is_named = _named(home, name) is obj
            if is_named and (_is_ours(home) or (isinstance(obj, type) and _is_local(home))):
                return self._sent(home, name)
            if isinstance(obj, FunctionType) and (_is_local(home) or _is_ours(home) or not is_named):
                return self._dynamic_function_reduce(obj)
            if isinstance(obj, type) and not is_named and home.split(".")[0] not in _SERVER:
                raise InputError(f"{name} cannot be sent; define the class at the top level of a file")
            _check_import(home, _SERVER)
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        reduced = super()._dynamic_function_reduce(func)
        function, args, *rest = reduced
        if len(args) == 7:  # by source: its annotations would name classes that no server needs
            for node in ast.walk(ast.parse(args[0])):
                for module in _imported(node):
                    _check_import(module, IMPORTABLE)
            args = (*args[:4], None, *args[5:])
        return (function, args, *rest)

    def _sent(self, module: str, name: str) -> tuple[_Program, tuple[str, str]]:
        self._program.asked.add((module, name))
        return self._program, (module, name)


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
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                home = _module_behind(module, node.value.id)
                if home is not None:
                    self.modules_used[module].add(home)
                    self.add(home, node.attr)
            if isinstance(node, ast.Name) and node.id in bindings:
                self.add(module, node.id)
            for imported in _imported(node):
                if _reaches_server(statement):
                    _check_import(imported, IMPORTABLE)

    def add_all(self, module: str) -> None:
        for name, statement in _bindings(module).items():
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.add(module, name)

    def _follow(self, module: str, statement: ast.Import | ast.ImportFrom, name: str) -> None:
        home, original = _origin(module, statement, name)
        if not (_is_ours(home) or _is_local(home)):
            _check_import(home, IMPORTABLE)
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


def _plain(statement: ast.AnnAssign) -> Statement:
    return ast.Pass() if statement.value is None else ast.Assign([statement.target], statement.value, lineno=0)


def _undocumented(body: list[Statement]) -> list[Statement]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return (body[1:] or [ast.Pass()]) if is_text else body


@cache
def _bindings(module: str) -> dict[str, Statement]:
    """What each top-level name of a module is bound by, bare."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None:
        raise InputError(f"classes of {module} cannot be sent, for it is no file; move them into one")
    found: dict[str, Statement] = {}
    for statement in _Bare().visit(ast.parse(Path(file).read_text())).body:
        if isinstance(statement, ast.AnnAssign):
            statement = _plain(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0]: statement for alias in statement.names}
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
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
    return home if original is None and (_is_ours(home) or _is_local(home)) else None


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _reaches_server(statement: Statement) -> bool:
    """Whether imports inside a definition run there: our own are in methods that no read or edit calls."""
    return False


def _check_import(module: str, allowed: frozenset[str]) -> None:
    if module.split(".")[0] not in allowed:
        raise InputError(f"a read or edit needs {module}, which the server may lack; remote ones use torch only")


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == _OURS


def _is_local(module: str) -> bool:
    """Whether a module is the user's own: a script, a notebook or a file, but nothing installed."""
    root = module.split(".")[0]
    if root in _SERVER or root in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


@cache
def _function(text: str) -> Callable[[], Any]:
    """The function that `text` defines, with its source where nnsight looks for it."""
    filename = f"<sinkinterp program {len(text)} {hash(text)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), space)
    return space["program"]
