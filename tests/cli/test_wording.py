"""Fixes exist where the user stands: arguments in Python, options on the command line."""

import ast
import re
from pathlib import Path

import pytest
import typer

import sinkinterp
from sinkinterp.cli.main import app, in_options

PACKAGE = Path(sinkinterp.__file__).parent
COMMANDS = typer.main.get_command(app).commands
OPTIONS = {name for command in COMMANDS.values() for param in command.params for name in param.opts if name[:2] == "--"}

FILES = [file for file in PACKAGE.rglob("*.py") if "cli" not in file.relative_to(PACKAGE).parts]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_sentence_below_the_command_line_names_an_option(file):
    nodes = [*ast.walk(ast.parse(file.read_text()))]
    documented = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = {id(node.body[0].value) for node in documented if isinstance(node.body[0], ast.Expr)}
    said = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
    words = [word for text in said if isinstance(text, str) for word in re.findall(r"(?<!\S)--[a-z-]+(?!\w*:)", text)]
    others = {"--head"} if file.name == "workers.py" else set()  # of ray
    assert not (OPTIONS - others) & set(words)


OF_MEASURE = {"length": "--length", "bos": "--bos", "device_map": "--device-map", "tokens": "--tokens"}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("use length=64 or less", "use --length 64 or less"),
        ('a; use bos="never" or a smaller length=...', "a; use --bos never or a smaller --length"),
        ("bos=... and tokens=... are given together", "--bos and --tokens are given together"),
        ('it is too large; use device_map="auto"', "it is too large; use --device-map auto"),
        ("no such field; name the column: column='a b'", "no such field; name the column 'text' in the file"),
        ("got length=1 and x=2 of a file a=b.txt", "got --length 1 and x=2 of a file a=b.txt"),
        ("https://x.y/?length=3 and model.length=4", "https://x.y/?length=3 and model.length=4"),
    ],
)
def test_arguments_become_options_of_the_command(said, expected):
    assert in_options(said, OF_MEASURE) == expected
