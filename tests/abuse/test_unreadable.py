"""Files and folders that their reader may not read, as a user without privileges: one line that says so."""

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path

import pandas
import pytest
from forks import ended, forked, forks
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.cli.main import app

TEXTS = {"text": ["the cat sat on the cat"] * 3}
MEASURE = "measure good --length 4 --sequences 1"
LINES = {  # what may not be read: a line that reads it
    "a.txt": f"{MEASURE} --text a.txt",
    "a.jsonl": f"{MEASURE} --text a.jsonl",
    "a.csv": f"{MEASURE} --text a.csv",
    "a.parquet": f"{MEASURE} --text a.parquet",
    "texts": f"{MEASURE} --text texts",
    "texts/a.txt": f"{MEASURE} --text texts",
    "texts/inner": f"{MEASURE} --text texts",
    "ids.json": f"{MEASURE} --tokens ids.json",
    "a.gguf": "measure a.gguf --length 4",
    "good": f"{MEASURE} --text a.txt",
    "good/config.json": f"{MEASURE} --text a.txt",
    "good/model.safetensors": f"{MEASURE} --text a.txt",
    "good/tokenizer.json": f"{MEASURE} --text a.txt",
    "cache/models": "list models",
    "cache": f"{MEASURE} --text a.txt",
}
NEEDS_NONE = {"cache", "cache/models"}  # what a line can do without


def run_without_privileges(home):
    """In a process of its own: writes the exit code and the error of each line, where what it reads is closed."""
    os.chdir(home)
    os.environ["SINKINTERP_CACHE"] = str(home / "cache")
    if os.getuid() == 0:
        ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    said = {}
    for name, line in LINES.items():
        os.chmod(name, 0)
        result = CliRunner().invoke(app, line.split())
        os.chmod(name, 0o700)
        said[name] = result.exit_code, result.stderr
    os.chmod("good", 0)
    try:
        si.load("good")
    except Exception as error:
        said["python"] = type(error).__name__, str(error)
    os.chmod("good", 0o700)
    Path("said.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def said(files, tmp_path_factory):
    """The exit code and the error of each line, where what it reads may not be read."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(files / "good", home / "good")
    for folder in ("texts/inner", "cache/models"):
        (home / folder).mkdir(parents=True)
    for name in ("a.txt", "texts/a.txt", "a.gguf"):
        (home / name).write_text(TEXTS["text"][0])
    pandas.DataFrame(TEXTS).to_json(home / "a.jsonl", orient="records", lines=True)
    pandas.DataFrame(TEXTS).to_csv(home / "a.csv")
    pandas.DataFrame(TEXTS).to_parquet(home / "a.parquet")
    (home / "ids.json").write_text("[[1, 2, 3, 4]]")
    assert ended(forked(lambda: run_without_privileges(home))) == 0
    return json.loads((home / "said.json").read_text())


@forks
@pytest.mark.skipif(sys.platform != "linux", reason="drops the privileges of root by a call of Linux")
@pytest.mark.parametrize("name", LINES)
def test_what_may_not_be_read_is_named_in_one_line_with_the_fix(said, name):
    code, error = said[name]
    if name in NEEDS_NONE and code == 0:
        return
    error = error.strip().splitlines()[-1]
    assert code == 2 and error.startswith("error: "), error
    assert name.split("/")[0] in error and "ermission denied" in error and "chmod" in error, error


@forks
@pytest.mark.skipif(sys.platform != "linux", reason="drops the privileges of root by a call of Linux")
def test_a_folder_that_may_not_be_read_is_refused_in_python_too(said):
    kind, error = said["python"]
    assert kind == "InputError" and error.startswith("cannot read good") and "chmod" in error
