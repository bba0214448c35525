"""Mistakes of the user: each is one line on standard error and exit code 2, whatever command it is made in."""

import sys
from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..data.progress import BARS
from ..errors import InputError
from .terminal import print_line

INTERRUPTED = "interrupted; what was saved so far is kept, and the same command goes on from there"
# typer brings a copy of click since 0.20, so the base class of its errors has one of two homes
ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class Command(TyperCommand):
    """A command that takes no option twice, unless the option is a list."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        single: list[Any] = [param for param in order if param.param_type_name == "option" and not param.multiple]
        for param, times in Counter(single).items():
            if times > 1:
                raise typer.BadParameter(f"it is given {times} times; give it once", ctx, param)
        return super().parse_args(ctx, args)


class Program(TyperGroup):
    """The group of all commands. It prints every mistake of the user as one line; a traceback is a bug of ours."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command line, or shows the help where it is empty, and exits: with 2 at a mistake of the user."""
        given = options.pop("args", args[0] if args else None)
        words = list(sys.argv[1:] if given is None else given) or ["--help"]
        options |= {"prog_name": "sinkinterp", "standalone_mode": False}
        bars = BARS.set(False)  # commands show bars of their own
        try:
            code = super().main(words, **options)
        except (ClickException, InputError, MemoryError, OSError) as error:
            print_line(f"error: {_message(error)}", style="red")
            sys.exit(2)
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        finally:
            BARS.reset(bars)
        if code == 130:
            print_line(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


def _message(error: Any) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ClickException):
        context = getattr(error, "ctx", None)
        text = " ".join(error.format_message().split()).rstrip(".")
        return f"{text[:1].lower()}{text[1:]}; see {context.command_path if context else 'sinkinterp'} --help"
    return f"not enough memory ({error})" if isinstance(error, MemoryError) else f"the system refuses: {error}"
