import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends.tiny_gguf import Q4_1, tiny_llama, write_gguf
from forks import ended, forked, forks
from refusals import refused

import sinkinterp as si
from models import __main__ as command, gguf_file, wheels
from models.catalogue import MODELS, Model
from models.wheels import File, Wheel
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.backends.named_models import downloads

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
    """A model in two wheels of a package index of one folder, half of its file in each, and a licence in the first."""
    content = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), Q4_1, with_words=True).read_bytes()
    halves = {"tiny-model": content[: len(content) // 2], "tiny-more": content[len(content) // 2 :]}
    served = [write_wheel(tmp_path / "index", package, half) for package, half in halves.items()]
    return Model(
        name="tiny", origin="GGUF of tiny", licence="MIT", megabytes=1,
        wheels=tuple(Wheel(package, "1.2", 0, sha256(wheel)) for package, wheel in zip(halves, served, strict=True)),
        files=(File("tiny.gguf", sha256(tmp_path / "tiny.gguf"), ("tiny_model/part", "tiny_more/part")),),
        convert=gguf_file.convert_smollm2,
        licence_files=(File("TERMS", hashlib.sha256(b"be kind").hexdigest(), ("tiny_model/TERMS",)),),
    )  # fmt: skip


def write_wheel(index, package, part):
    name = package.replace("-", "_")
    wheel, about = index / f"{name}-1.2-py3-none-any.whl", f"{name}-1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/part", part)
        archive.writestr(f"{name}/TERMS", "be kind")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


@pytest.fixture
def error_of(monkeypatch, capfd):
    """Makes some models; returns the lines of the error."""

    def error_of(*given):
        monkeypatch.setattr(command, "MODELS", given)
        assert command.main() == 1
        return capfd.readouterr().err.splitlines()

    return error_of


def names():
    return sorted(path.name for path in downloads().iterdir())


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Wheels are copied from the index, for tests of what comes after: pip takes half a second to fetch one."""

    def fetched(wheel, folder):
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(*(tmp_path / "index").glob(f"{wheel.folder}-*"), folder))

    monkeypatch.setattr(Wheel, "_fetched", fetched)


def test_a_missing_pip_names_the_fix(model, tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    refused(lambda: model.wheels[0].download(tmp_path))


def test_a_model_goes_from_its_wheel_into_the_cache_and_run_again_it_does_nothing(model, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(command, "MODELS", (model,))
    assert command.main() == 0
    said, folder = capfd.readouterr().out, downloads() / "tiny"
    assert said.startswith("tiny: downloads 0 MB, keeps 1 MB, needs 1 MB meanwhile (") and "licence: MIT" in said
    assert "downloading tiny-model 1.2" in said and f"wrote tiny: GGUF of tiny (0 MB in {folder})" in said
    subject = si.load("local/tiny")
    assert subject.revision == "GGUF of tiny"
    assert subject.run(TOKENS).logits.equal(si.load(tmp_path / "tiny.gguf").run(TOKENS).logits)
    assert load_tokenizer("local/tiny").tokenize("ab  11") == ["ab", "ĠĠ", "1", "1"]  # digits stand alone
    source = json.loads((folder / "SOURCE.json").read_text())
    assert source["packages"] == {f"{wheel.package}==1.2": wheel.sha256 for wheel in model.wheels}
    assert (folder / "TERMS").read_text() == "be kind"
    assert names() == [".lock", ".wheels", "tiny"]
    assert not any((downloads() / ".wheels").iterdir())
    weights = folder / "model.safetensors"
    written = weights.stat()
    (tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl").unlink()
    assert command.main() == 0
    assert capfd.readouterr().out == f"tiny is in {folder}\n" and weights.stat() == written
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    refused(lambda: si.load("local/tiny"))


def test_a_model_that_was_made_in_another_way_is_made_again(model, copied, monkeypatch):
    monkeypatch.setattr(command, "MODELS", (model,))
    command.main()
    monkeypatch.setattr(command, "MODELS", (replace(model, origin="GGUF of tiny, better"),))
    assert command.main() == 0 and si.load("local/tiny").revision == "GGUF of tiny, better"


def test_where_the_index_is_out_of_reach_it_says_so_in_one_line(model, tmp_path, error_of):
    (tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl").unlink()
    (line,) = error_of(model)
    assert line.startswith("no tiny: cannot download tiny-model 1.2: ") and "try again" in line
    assert names() == [".lock", ".wheels"]


def test_downloaded_wheels_are_kept_and_fetched_once(model, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "MODELS", (model,))
    served, away = tmp_path / "index" / "tiny_more-1.2-py3-none-any.whl", tmp_path / "away.whl"
    served.rename(away)
    assert command.main() == 1
    (tmp_path / "index" / "tiny_model-1.2-py3-none-any.whl").unlink()
    away.rename(served)
    assert command.main() == 0 and si.load("tiny").run(TOKENS).logits.isfinite().all()


def test_a_cut_download_that_is_kept_is_fetched_again(model, tmp_path):
    whole = model.wheels[0].download(tmp_path / "place")
    whole.write_bytes(whole.read_bytes()[:-9])
    assert sha256(model.wheels[0].download(tmp_path / "place")) == model.wheels[0].sha256


def test_only_the_models_that_are_named_are_made(model, copied, monkeypatch):
    monkeypatch.setattr(command, "MODELS", (replace(model, name="other"), model))
    assert command.main(["tiny"]) == 0 and not (downloads() / "other").exists()
    refused(lambda: command.main(["tinny"]), "tinny")


def test_a_disk_that_is_too_small_is_refused_before_any_download(model, error_of):
    (line,) = error_of(replace(model, megabytes=10**12))
    assert "free some space" in line and ".wheels" not in names()


FULL = "Traceback (most recent call last):\n  File\nOSError: [Errno 28] No space left on device\n"


def test_a_disk_that_fills_during_the_download_is_one_line_with_its_fix(model, monkeypatch, error_of):
    filled = subprocess.CompletedProcess([], 2, stderr=f"WARNING: slow\nERROR: Exception:\n{FULL}")
    with monkeypatch.context() as pip:
        pip.setattr(wheels.subprocess, "run", lambda *args, **kwargs: filled)
        (line,) = error_of(model)
    assert "tiny-model 1.2: OSError: [Errno 28] No space left on device; free some space" in line
    shutil.rmtree(downloads() / ".wheels" / "tiny")
    (downloads() / ".wheels" / "tiny").write_text("a file in the place of the folder")
    (line,) = error_of(model)
    assert "cannot write" in line


def test_a_wheel_without_its_licence_makes_no_model(model, copied, error_of):
    lost = File("TERMS", "0" * 64, ("tiny_model/LICENCE",))
    assert "no wheel holds tiny_model/LICENCE" in error_of(replace(model, licence_files=(lost,)))[-1]
    assert "tiny" not in names()


def test_the_other_models_are_made_where_one_cannot_be_had(model, monkeypatch):
    absent = replace(model, name="absent", wheels=(Wheel("absent-model", "1.0", 0, "0" * 64),))
    monkeypatch.setattr(command, "MODELS", (absent, model))
    assert command.main() == 1 and (downloads() / "tiny").is_dir()


def test_a_wheel_or_a_file_in_it_with_another_hash_is_refused(model, tmp_path):
    refused(lambda: replace(model.wheels[0], sha256="0" * 64).download(tmp_path / "place"), "download")
    parts = [wheel.download(tmp_path / "place") for wheel in model.wheels]
    refused(lambda: replace(model.files[0], sha256="0" * 64).extract(parts, tmp_path / "place"))


@forks
def test_killed_while_it_converts_it_leaves_nothing_and_starts_again(model, copied, monkeypatch):
    def convert(file, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(command, "MODELS", (replace(model, convert=convert),))
    assert ended(forked(command.main)) == -signal.SIGKILL
    assert "tiny" not in names() and len(names()) == 4  # the lock, the wheels, and two drafts
    refused(lambda: si.load("local/tiny"))
    monkeypatch.setattr(command, "MODELS", (model,))
    assert command.main() == 0
    assert names() == [".lock", ".wheels", "tiny"]


def test_every_model_says_where_it_comes_from_in_words_that_hold():
    for model in MODELS:
        assert re.sub(r"-part\d+", "", str(model.wheels[0])) in model.origin
        assert all(len(item.sha256) == 64 for item in (*model.wheels, *model.files, *model.licence_files))
        assert model.licence_files or "https://" in model.licence
