"""Processes that write to one place at the same time: one waits for the other, or one of the whole files stays."""

import json
import os
import signal
import time

import pytest
from abuse.damage import files_in
from forks import ended, forked, forks

from sinkinterp.data.packing import PackedText
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokenisers import ByteBPE
from sinkinterp.files import replacing, sole_writer
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

RECIPE = Recipe(model=VARIANTS["k_bias"], steps=24, batch=7, warmup=5, watch_every=6, save_every=6)
JOB = job_of(RECIPE, RECIPE.data, lambda model: {"head": model.lm_head.weight.sum().item()})


def contents(folder):
    return {name: (folder / name).read_bytes() for name in files_in(folder)}


@forks
def test_three_processes_train_once_and_pack_once_and_share_the_result(tmp_path):
    (tmp_path / "texts.txt").write_text("\n\n".join(f"{i} sinks gather on first tokens" for i in range(99)))

    def train_and_pack(i):
        steps, documents = [], []
        loop.train(JOB, tmp_path / "run", lambda step, metrics: steps.append(step))
        text = PackedText(source=Texts(str(tmp_path / "texts.txt")), tokenizer=ByteBPE(258), length=11)
        sha256 = text.prepare(tmp_path, lambda done, of: documents.append(done)).sha256
        (tmp_path / f"{i}.json").write_text(json.dumps([steps, documents, sha256]))

    children = [forked(lambda i=i: train_and_pack(i)) for i in range(3)]
    assert [*map(ended, children)] == [0, 0, 0]
    steps, documents, hashes = zip(*(json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)), strict=True)
    assert sorted(steps) == [[], [], list(range(1, 25))]
    assert sorted(documents) == [[], [], list(range(1, 100))] and len(set(hashes)) == 1
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {"lock", "step-0000018", "step-0000024"}
    assert contents(loop.train(JOB, tmp_path / "alone")) == contents(checkpoint.folder_of(run, 24))


def until(condition):
    for _ in range(20_000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it did not come to pass within twenty seconds")


@forks
@pytest.mark.parametrize("ends_by", ["leaving", "a kill"])
def test_a_folder_is_locked_while_its_writer_lives(tmp_path, ends_by):
    run, signs = tmp_path / "run", tmp_path / "signs"
    signs.mkdir()

    def hold(name, until_told):
        with sole_writer(run):
            (signs / name).touch()
            if until_told:
                until((signs / "leave").exists)

    first = forked(lambda: hold("first", True))
    until((signs / "first").exists)
    second = forked(lambda: hold("second", False))
    time.sleep(0.4)
    assert not (signs / "second").exists() and os.waitpid(second, os.WNOHANG) == (0, 0)
    if ends_by == "leaving":
        (signs / "leave").touch()
    else:
        os.kill(first, signal.SIGKILL)
    until((signs / "second").exists)
    for child in (first, second):
        os.waitpid(child, 0)
    with sole_writer(run):
        assert [path.name for path in run.iterdir()] == ["lock"]


@forks
def test_each_of_two_writers_leaves_a_whole_file(tmp_path):
    file = tmp_path / "deep" / "er" / "file"
    versions = [bytes([i]) * 200_000 for i in range(3)]

    def write(i):
        for _ in range(60):
            with replacing(file) as draft:
                draft.write_bytes(versions[i])

    children = [forked(lambda i=i: write(i)) for i in range(2)]
    until(file.exists)
    seen = set()
    while any(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children[:1]):
        seen.add(file.read_bytes())
    os.waitpid(children[1], 0)
    assert seen <= set(versions) and file.read_bytes() in versions
    assert [path.name for path in file.parent.iterdir()] == ["file"]
