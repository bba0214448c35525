"""Programs that are killed, or that write to one place together, lose nothing; and what counts losses sees them."""

import json
import random
import re
import subprocess
import sys
import time

import pytest
from abuse.damage import contents
from corpora import packed, text_in
from forks import ended, forked, forks

from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe


@forks
@pytest.mark.timeout(600)
def test_programs_that_are_killed_lose_nothing(tmp_path, monkeypatch, capsys):
    from benchmarks import kills

    monkeypatch.setattr(kills.tokenizers, "BATCH_CHARACTERS", kills.tokenizers.BATCH_CHARACTERS)  # it writes both
    monkeypatch.setattr(kills.packing, "BLOCK", kills.packing.BLOCK)
    monkeypatch.setattr(kills, "disable_progress_bar", lambda: None)
    kills.main(times=len(kills.WORKS), folder=tmp_path)
    printed = capsys.readouterr().out
    assert re.findall(r"(?m)^│ (\S+) +│ +1 .* 0 │$", printed) == [*kills.WORKS], printed


@forks
def test_a_program_that_writes_in_place_is_seen_to_lose(tmp_path):
    from benchmarks.kills import Campaign, Work

    def write_in_place(folder):
        with (folder / "file").open("w") as file:
            for _ in range(100):
                file.write("x" * 10_000)
                time.sleep(0.001)

    def length(folder):
        if (folder / "file").exists() and (folder / "file").stat().st_size != 1_000_000:
            raise ValueError("cut off")
        return 0

    campaign, rng = Campaign("in place", Work(write_in_place, length), tmp_path / "work"), random.Random(0)
    while campaign.counts["kills"] < 5:
        campaign.killed(rng)
    assert campaign.losses


INTERRUPTED = """
import signal, sys
from sinkinterp.__main__ import main
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
    if calls >= {moment} and signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.argv = ["sinkinterp", "list", "variants"]
sys.setprofile(count)
main()
"""


@pytest.mark.parametrize("moment", [1, 37, 391, 2003, 7919, 17_389])
def test_ctrl_c_at_any_call_of_a_function_ends_the_program_quietly(moment, interruptible):
    code = INTERRUPTED.format(moment=moment)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


RECIPE = Recipe(model=VARIANTS["k_bias"], steps=24, batch=7, warmup=5, watch_every=6, save_every=6)
JOB = job_of(RECIPE, RECIPE.data, lambda model: {"head": model.lm_head.weight.sum().item()})


@forks
def test_three_processes_train_once_and_pack_once_and_share_the_result(tmp_path):
    text = packed(text_in(tmp_path))

    def train_and_pack(i):
        steps, documents = [], []
        loop.train(JOB, tmp_path / "run", lambda step, metrics: steps.append(step))
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
