"""Mistakes of the user: each is one line on standard error and exit code 2, in every command."""

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..backends.files.named_models import models
from ..checks import READABLE, InputError, nearest
from ..data.progress import BARS
from ..files import data_of
from .changing import compare
from .drawing import demo, gallery, serve, view
from .explaining import explain, patch
from .listing import info, listing
from .measuring import cache, check, domains, mask, measure
from .options import checked
from .reproducing import book, reproduce, story
from .terminal import print_line, print_text, streams
from .training import finetune, mend, train

INTERRUPTED = "interrupted; the same command goes on from what it saved, or begins again if it saved nothing"
# typer brings a copy of click since 0.20, so the base class of its errors has one of two homes
ClickException: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def is_model(word: str) -> bool:
    """Tells if a word looks like the name or the folder of a model: smollm2, gpt2-medium, OWNER/NAME."""
    name = r"[A-Za-z][A-Za-z._-]*\d[\w.-]*|[\w.-]+/[\w./-]+"
    return bool(re.fullmatch(name, word)) or os.path.isdir(word) or word in models()


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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands:
            meant = f"; write `sinkinterp measure {shlex.quote(word)}`" * is_model(word)
            fix = meant or nearest(word, self.commands)
            known = f"; the commands are {', '.join(self.commands)}"
            raise InputError(f"no such command {word!r}{fix or known}; see sinkinterp --help")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs a command line, or shows the help where it is empty, and exits: with 2 at a mistake of the user.

        A reader that closes the standard output early, such as `head`, is not a mistake.
        """
        given = options.pop("args", args[0] if args else None)
        words = list(sys.argv[1:] if given is None else given) or ["--help"]
        options |= {"prog_name": "sinkinterp", "standalone_mode": False, "obj": words}
        with streams() as output:
            code = self._code_of(words, options)
            if output is not None:
                output.flush()
                if output.error is not None and not isinstance(output.error, BrokenPipeError):
                    fix = "free some space, or send it to another place"
                    _print_error(f"cannot write the standard output: {output.error.strerror}; {fix}")
                    code = code or 2
        sys.exit(code)

    def _code_of(self, words: list[str], options: dict[str, Any]) -> int:
        """The exit code of a command line."""
        bars = BARS.set(False)  # commands show bars of their own
        try:
            code = super().main(words, **options)
        except (ClickException, InputError, MemoryError, OSError) as error:
            _print_error(_with_model(in_options(_message(error), self._options_of(words)), words))
            return 2
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        finally:
            BARS.reset(bars)
        if code == 130:
            print_line(INTERRUPTED)
        return code if isinstance(code, int) else 0

    def _options_of(self, words: list[str]) -> dict[str, str]:
        """The options of the command that a line names, by their parameters."""
        command: Any = self.commands.get(words[0])
        options = [] if command is None else [param for param in command.params if param.param_type_name == "option"]
        named = {param.name: next(name for name in param.opts if name[:2] == "--") for param in options}
        return {str(name).removesuffix("_out"): option for name, option in named.items()}


def _print_error(message: str) -> None:
    print_line(f"error: {message}", style="red")


def _message(error: Any) -> str:
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ClickException):
        context, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
        said = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        text = str(InputError(said))  # which cuts long names
        word = option or "argument(s)" * ("extra argument" in text)
        options = {name for param in context.command.params for name in param.opts} if context else set()
        fix = nearest(word, options) if word else ""
        if context is not None and not fix and text.startswith("Missing argument 'model'"):
            fix = f"; name one, as in `{context.command_path} sinkinterp/text-softmax`"
        if "requires an argument" in text:
            fix = f"; write it with a value, such as {option} VALUE"
        if "(Possible" in text:
            text, fix = text.partition(" (Possible")[0], fix or nearest(option, options, 0.7)
        return f"{text[:1].lower()}{text[1:]}{fix}; see {context.command_path if context else 'sinkinterp'} --help"
    if isinstance(error, PermissionError):
        return f"permission denied: {error.filename}; {READABLE}"
    return f"not enough memory ({error})" if isinstance(error, MemoryError) else f"the system refuses: {error}"


def _with_model(message: str, words: list[str]) -> str:
    """The message with the models of a command line in the lines that it says to write."""
    first = [words[1]] if words[1:] and re.fullmatch(r"[^-\s]\S*", words[1]) else []
    named = [shlex.quote(word) for word in dict.fromkeys((*first, *filter(is_model, words[1:])))]

    def filled(match: re.Match[str]) -> str:
        places = match[2].count("MODEL")
        return f"{match[1]} {' '.join(named[:places])}" if len(named) >= places else match[0]

    return re.sub(r"(`sinkinterp \w+)((?: MODEL\b)+)", filled, message)


_ARGUMENT = re.compile(r"""(?<![\w.?&-])([a-z]\w*)=(\.{3}|"[^"]*"|'[^']*'|\[[^\]]*\]|[^\s,;:()]+)""")
_SAID = data_of("cli/wording.toml")


def in_options(message: str, options: Mapping[str, str]) -> str:
    """The message with each argument, such as length=64, as an option, --length 64.

    options: those of the command, by the name of their parameters. An argument that the command does not have takes
    its whole clause with it, in whose place another fix stands. Others, such as settings, stay as they are.
    """
    if "settings" in options:
        options = {**options, "column": "--set data.source.column"}
    for phrase, said in _SAID["phrases"].items():
        message = message.replace(phrase, said)
    clauses, without = message.split("; "), _SAID["without"]
    for i, clause in enumerate(clauses):
        named = [] if clause.startswith("got ") else [name for name, _ in _ARGUMENT.findall(clause)]
        missing = [name for name in named if name in without and name not in options and "settings" not in options]
        clauses[i] = without[missing[0]] if missing else _ARGUMENT.sub(lambda match: _option(match, options), clause)
    return "; ".join(clauses)


def _option(argument: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = argument.groups()
    if name not in options:
        return argument[0]
    bare = value.strip("\"'")
    return options[name] if value in ("...", "True") else f"{options[name]} {value if ' ' in bare else bare}"


app = typer.Typer(cls=Program, pretty_exceptions_enable=False)
COMMANDS = (
    *(train, finetune, mend, gallery, view, patch, explain, serve, reproduce),
    *(book, story, demo, measure, compare, domains, check, cache, mask, info, listing),
)
for command in COMMANDS:
    app.command("list" if command is listing else None, cls=Command)(checked(command))


def _print_version(is_asked: bool) -> bool:
    if is_asked:
        from .. import __version__

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
