"""Messages of the package name arguments of Python; here they become options of the command that the user typed."""

import re
from collections.abc import Mapping

_ARGUMENT = re.compile(r"""(?<![\w.?&-])([a-z]\w*)=(\.{3}|"[^"]*"|'[^']*'|\[[^\]]*\]|[^\s,;:()]+)""")
_PHRASES = {  # what is said otherwise than by an option's name
    "source=Texts(FILE)": "--text FILE",
    "pictures=False": "--no-pictures",
    "encoder=Silence(), NoEncoder(), Sound(FILE) or Text(TEXT) of sinkinterp.backends.encoder.encoder_input": (
        "--encoder silence, off, FILE or TEXT"
    ),
    "Silence(), Sound(FILE) or NoEncoder()": "silence, FILE or off",
    "Text(...) or NoEncoder()": "TEXT or off",
    "give the messages of each row": "`sinkinterp measure MODEL --chat FILE` reads them",
    "si.load(model, tokenizer=...)": "save its tokenizer in its folder",
}
_WITHOUT = {  # fixes where the command has no such option
    "column": "name the column 'text' in the file",
    "tokens": "give a model with a tokenizer",
    "length": "give shorter texts",
    "sequences": "give more texts",
    "bos": "take another model",
    "dtype": "take a smaller model",
    "device_map": "take a smaller model",
    "encoder": "`measure --encoder` takes it",
    "text": "give a model with a tokenizer",
}


def in_options(message: str, options: Mapping[str, str]) -> str:
    """The message with each argument, such as length=64, as an option, --length 64.

    options: those of the command, by the name of their parameters. An argument that the command does not have takes
    its whole clause with it, in whose place another fix stands. Others, such as settings, stay as they are.
    """
    if "settings" in options:
        options = {**options, "column": "--set data.source.column"}
    for phrase, said in _PHRASES.items():
        message = message.replace(phrase, said)
    clauses = message.split("; ")
    for i, clause in enumerate(clauses):
        named = [] if clause.startswith("got ") else [name for name, _ in _ARGUMENT.findall(clause)]
        missing = [name for name in named if name in _WITHOUT and name not in options and "settings" not in options]
        clauses[i] = _WITHOUT[missing[0]] if missing else _ARGUMENT.sub(lambda match: _option(match, options), clause)
    return "; ".join(clauses)


def _option(argument: re.Match[str], options: Mapping[str, str]) -> str:
    name, value = argument.groups()
    if name not in options:
        return argument[0]
    bare = value.strip("\"'")
    return options[name] if value == "..." else f"{options[name]} {value if ' ' in bare else bare}"
