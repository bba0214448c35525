"""What people install works without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of the package as a wheel holds it, and the environment of a program that imports it from there."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    cache = folder / "cache"
    return folder / "site", {**os.environ, "PYTHONPATH": str(folder / "site"), "SINKINTERP_CACHE": str(cache)}


@pytest.fixture
def call(installed, tmp_path):
    def run(*words):
        program = [sys.executable, "-m", "sinkinterp", *words]
        done = subprocess.run(program, cwd=tmp_path, env=installed[1], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def test_the_wheel_holds_the_package_its_checkpoints_and_the_experiments(installed):
    site, _ = installed
    names = {path.name for path in (ROOT / "experiments").glob("[!_]*.py")}
    assert names <= {path.name for path in (site / "sinkinterp" / "_experiments").iterdir()}
    assert (site / "sinkinterp" / "checkpoints" / "text-softmax" / "model.safetensors").is_file()
    assert not (site / "tests").exists()


def test_from_the_wheel_a_text_is_measured(call):
    code, output = call("measure", "sinkinterp/text-softmax", "--text", "some words of a text")
    assert code == 0 and "Sink_1" in output, output


def test_from_the_wheel_an_experiment_is_reproduced(call, tmp_path):
    code, output = call("reproduce", "propositions", "--scale", "smoke", "--seeds", "1", "--out", "book")
    assert code == 0 and (tmp_path / "book" / "propositions.html").is_file(), output
