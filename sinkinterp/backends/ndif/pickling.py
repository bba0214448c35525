"""What is sent to a server that has torch, transformers and nnsight, but not this package: the source that is needed.

A read or an edit is pickled as nnsight pickles it, functions by their source. Where it names something of this package,
or a class of the user's, the payload names one *program* instead: a function whose text holds the definitions that are
needed, module by module, without annotations. So the server imports nothing of this package, and no bytecode is sent.
"""

import ast
import io
import linecache
import sys
import zlib
from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nnsight.intervention.serialization import CustomCloudPickler, reduce_block

from ...errors import InputError
from .program import IMPORTABLE, SERVER, check_import, imports_in, is_local, is_ours, text_of

_PROGRAM = "<sinkinterp "  # the file of a program, as tracebacks name it, begins so


def payload(tracer: Any, compress: bool) -> bytes:
    """The request that runs a traced block on a server: nnsight's own, except for what belongs to this package.

    Raises InputError for reads and edits that need a library which the server lacks, or that cannot be pickled.
    """
    frame = tracer.info.frame
    block = (tracer, reduce_block(tracer.node, frame.f_globals, dict(frame.f_locals)))
    program = _Program(frozenset())
    _pickled(block, program)  # records what the program must define
    data = _pickled(block, _Program(frozenset(program.requested)))
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
    """Stands, while pickling, for the function that finds a definition of the program on the server.

    names: of the definitions in the program, as (module, name). requested: those that pickling asked for.
    """

    def __init__(self, names: frozenset[tuple[str, str]]) -> None:
        self.names, self.requested = names, set[tuple[str, str]]()

    def __call__(self, module: str, name: str) -> Any:
        raise NotImplementedError("a program runs on the server only")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _function(self.names), ()


class _Pickler(CustomCloudPickler):
    def __init__(self, file: io.BytesIO, program: _Program) -> None:
        super().__init__(file, protocol=4)
        self._program = program

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            if is_ours(obj.__name__):
                return self._by_program(obj.__name__, "")
            check_import(obj.__name__, SERVER)
        elif isinstance(obj, type | FunctionType | BuiltinFunctionType) and obj.__module__ is not None:
            home, name = obj.__module__, obj.__qualname__
            is_named = _named(home, name) is obj
            if is_named and (is_ours(home) or (isinstance(obj, type) and is_local(home))):
                return self._by_program(home, name)
            if isinstance(obj, FunctionType) and (is_local(home) or is_ours(home) or not is_named):
                return self._dynamic_function_reduce(obj)
            if isinstance(obj, type) and not is_named and home.split(".")[0] not in SERVER:
                raise InputError(f"{name} cannot be sent; define the class at the top level of a file")
            check_import(home, SERVER)
        return super().reducer_override(obj)

    def _dynamic_function_reduce(self, func: FunctionType) -> Any:
        is_program = func.__code__.co_filename.startswith(_PROGRAM)
        return _reduced_program(func) if is_program else self._reduced(func)

    def _reduced(self, func: FunctionType) -> Any:
        function, args, *rest = super()._dynamic_function_reduce(func)
        if len(args) == 7:  # by source: its annotations would name classes that no server needs
            for module in imports_in(ast.parse(args[0])):
                check_import(module, IMPORTABLE)
            args = (*args[:4], None, *args[5:])
        return (function, args, *rest)

    def _by_program(self, module: str, name: str) -> tuple[_Program, tuple[str, str]]:
        self._program.requested.add((module, name))
        return self._program, (module, name)


def _named(module: str, name: str) -> Any:
    """What a name like `Class.method` stands for in a module; None where it stands for nothing."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


@cache
def _function(names: frozenset[tuple[str, str]]) -> Callable[[], Any]:
    """The program that defines what is named, with its source where nnsight looks for it."""
    text = text_of(names)
    filename = f"{_PROGRAM}{zlib.crc32(text.encode()):08x}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, filename, "exec"), space)
    return space["program"]


@cache
def _reduced_program(func: FunctionType) -> Any:
    """What a program is pickled to, the same in every request."""
    return _Pickler(io.BytesIO(), _Program(frozenset()))._reduced(func)
