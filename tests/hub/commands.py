"""Runs commands of sinkinterp one after the other in this process, and prints what came out of each as JSON lines.

`python commands.py FOLDER`: each line of standard input is a JSON list: the words of a command, or ["load", NAME].
The environment says where the Hub is, so this runs in a process of its own.
"""

import json
import os
import sys
from types import SimpleNamespace

from huggingface_hub import file_download
from sinkinterp._experiments.shared.cases import Case
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.checks import InputError
from sinkinterp.cli.main import app
from sinkinterp.data import sources

Case.size.__defaults__ = (7, 23)  # sequences in place of 100, of 23 tokens in place of 64
sources._documented_files = lambda: sources._library_files()[:50]  # docstrings of all take half a minute
file_download.time = SimpleNamespace(sleep=lambda seconds: None)  # five times a second before a download is given up


def answer(words):
    """Exit code and output of a command, or the tokens of a text and the last logits of a model."""
    if words[0] != "load":
        result = CliRunner().invoke(app, words)
        return {"code": result.exit_code, "said": " ".join(result.output.split())}
    try:
        subject = si.load(words[1])
    except InputError as error:
        return {"code": 2, "said": str(error)}
    tokens = subject.tokens(["The first token of a text"]).tokens
    logits = subject.run(tokens).logits
    return {"code": 0, "said": subject.name, "tokens": tokens.tolist(), "last": logits[0, -1].tolist()}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)

os._exit(0)  # without two seconds in which libraries clean up
