"""Programs that are killed at random moments lose nothing; and what counts the losses sees them."""

import random
import re
import subprocess
import sys
import time

import pytest
from forks import forks


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
