"""What people install works without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = """
import sys
from sinkinterp.cli.main import app
for line in sys.argv[1:]:
    try:
        app(line.split())
    except SystemExit as end:
        assert end.code == 0, line
"""


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


def test_the_wheel_holds_the_package_its_checkpoints_and_the_experiments(installed):
    site, _ = installed
    names = {path.name for path in (ROOT / "experiments").glob("[!_]*.py")}
    assert names <= {path.name for path in (site / "sinkinterp" / "_experiments" / "files").iterdir()}
    assert (site / "sinkinterp" / "checkpoints" / "text-softmax" / "model.safetensors").is_file()
    assert not (site / "tests").exists()


def test_from_the_wheel_a_text_is_measured_and_an_experiment_is_reproduced(installed, tmp_path):
    lines = (
        "measure sinkinterp/text-softmax --prompt words",
        "reproduce propositions --scale smoke --seeds 1 --out book",
    )
    words = [sys.executable, "-c", RUN, *lines]  # one process, which imports everything once
    done = subprocess.run(words, cwd=tmp_path, env=installed[1], capture_output=True, text=True)
    assert done.returncode == 0 and "Sink_1" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "book" / "propositions.html").is_file()
