"""The program: its commands in groups, and mistakes of the user as one line on standard error with exit code 2."""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .. import __version__
from ..checks import InputError
from ..data.progress import BARS
from .drawing import demo, serve, view
from .explaining import explain, patch
from .measuring import cache, check, compare, mask, measure
from .options import in_groups
from .reproducing import listing, reproduce
from .terminal import print_line, print_text, streams
from .training import mend, train

GROUPS: Mapping[str, Mapping[str, Any]] = {
    "Measure and explain": {
        "measure": measure,
        "compare": compare,
        "view": view,
        "explain": explain,
        "patch": patch,
        "check": check,
    },
    "Use a sink, or mend it": {"mend": mend, "cache": cache, "mask": mask},
    "Train": {"train": train, "demo": demo},
    "Experiments and models": {"reproduce": reproduce, "list": listing, "serve": serve},
}
INTERRUPTED = "interrupted; the same command goes on from what it saved, or begins again if it saved nothing"
# typer has a copy of click, so the base class of its errors has no public home
ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Command(TyperCommand):
    """A command that takes no option twice, unless the option is a list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(order).items():
            if times > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                raise typer.BadParameter(f"{param.opts[0]} is given {times} times; give it once", ctx)
        return super().parse_args(ctx, list(args))


class Program(TyperGroup):
    """The group of all commands. It prints every mistake of the user as one line; a traceback is a bug of ours."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands in their groups, in the order of use."""
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(90)) for name in commands])

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command line, or shows the help where it is empty, and exits: with 2 at a mistake of the user.

        A reader that closes the standard output early, such as `head`, is not a mistake.
        """
        given = options.pop("args", args[0] if args else None)
        words = list(sys.argv[1:] if given is None else given) or ["--help"]
        with streams() as output:
            code = self._code_of(words, options | {"prog_name": "sinkinterp", "standalone_mode": False})
            output.flush()
            if output.error is not None and not isinstance(output.error, BrokenPipeError):
                _print_error(f"cannot write the standard output: {output.error.strerror}; send it to another place")
                code = code or 2
        sys.exit(code)

    def _code_of(self, words: list[str], options: dict[str, Any]) -> int:
        """The exit code of a command line."""
        bars = BARS.set(False)  # commands show bars of their own
        try:
            code = super().main(words, **options)
        except (ClickException, InputError, MemoryError, OSError) as error:
            _print_error(self._message(error, words[0]))
            return 2
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        finally:
            BARS.reset(bars)
        if code == 130:
            print_line(INTERRUPTED)
        return code if isinstance(code, int) else 0

    def _message(self, error: Any, word: str) -> str:
        if isinstance(error, InputError):
            params = getattr(self.commands.get(word), "params", ())
            return in_options(str(error), {str(param.name): param.opts[0] for param in params})
        if isinstance(error, ClickException):
            if near := getattr(error, "possibilities", None):  # of an unknown option
                error.possibilities = get_close_matches(error.option_name, near, cutoff=0.75)
            context = getattr(error, "ctx", None)
            text = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
            return f"{text}; see {context.command_path if context else 'sinkinterp'} --help"
        if isinstance(error, PermissionError):
            return f"permission denied: {error.filename}"
        return f"not enough memory ({error})" if isinstance(error, MemoryError) else f"the system refuses: {error}"


def in_options(message: str, options: Mapping[str, str]) -> str:
    """The message of a function with its arguments, such as length=64, as options of the command: --length 64.

    A call in quotation marks is what was typed, and stays.
    """

    def option(found: re.Match[str]) -> str:
        typed, name, value = found.groups()
        if typed:
            return typed
        if value == "..." and name not in options:  # an option that repeats gives a list, such as --layer for layers
            name = name.removesuffix("s")
        bare = value.strip("\"'")
        if name not in options:
            return found[0]
        return options[name] if value in ("...", "True") else f"{options[name]} {value if ' ' in bare else bare}"

    return re.sub(r"""('\w+\([^']*')|(?<![\w.?&-])([a-z]\w*)=(\.{3}|"[^"]*"|'[^']*'|[^\s,;:()]+)""", option, message)


def _print_error(message: str) -> None:
    print_line(f"error: {message}", style="red")


app = typer.Typer(cls=Program, pretty_exceptions_enable=False, rich_markup_mode=None)
for commands in GROUPS.values():
    for name, command in commands.items():
        app.command(name, cls=Command)(in_groups(command))


def _print_version(is_asked: bool) -> bool:
    if is_asked:
        print_text(f"sinkinterp {__version__}")
        raise typer.Exit
    return is_asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Attention sinks: read them, move them, train them away."""
