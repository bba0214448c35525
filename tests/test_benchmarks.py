"""The benchmark's table is whole at a size at which its figures mean nothing; nothing here is timed."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from benchmarks import costs, measure, rows
from benchmarks.costs import CAN_READ_PEAKS, peak_mb
from benchmarks.ways import Setting

pytestmark = pytest.mark.timeout(600)  # the first test waits for all benchmarks
TINY = Setting(13, layers=2, heads=3, width=6, vocab=17)
REAL = rows.Scale(TINY, TINY, long=None, repeats=1, real=measure.REAL_SETTINGS)
LONG = rows.Scale(TINY, TINY, long=TINY, repeats=1)
needs_proc = pytest.mark.skipif(not CAN_READ_PEAKS, reason="no /proc/self/clear_refs to reset high-water marks")


def forty_megabytes(model):
    return lambda tokens: torch.ones(10_000_000 * (tokens.shape[1] > 12))


@needs_proc
def test_the_peak_of_forty_megabytes_made_and_dropped_is_forty_megabytes():
    assert peak_mb(forty_megabytes, Setting(17, layers=2, heads=3, width=6, vocab=17)) == pytest.approx(40, rel=0.05)


@pytest.fixture(scope="module")
def run(tmp_path_factory, module_as_users_run_it):
    """What the command prints and writes with --quick, of a smaller model yet."""
    file, threads, command = tmp_path_factory.mktemp("benchmark") / "figures.json", torch.get_num_threads(), Typer()
    command.command()(measure.main)
    small = replace(measure.QUICK.main, heads=3, width=24)  # whose logits still take megabytes
    with warnings.catch_warnings(action="default"), pytest.MonkeyPatch.context() as patch:  # warnings of the peers
        patch.setattr(measure, "QUICK", replace(measure.QUICK, main=small, peers=small, repeats=1))
        done = CliRunner().invoke(command, ["--quick", "--no-long", "--json", str(file)], catch_exceptions=False)
    torch.set_num_threads(threads)
    return done.stdout, json.loads(file.read_text())


def test_in_two_minutes_every_row_has_a_figure_and_none_a_target(run):
    for row in run[1]["rows"]:
        assert (type(row["figure"]), row["target"], row["verdict"]) == (float, None, ""), row
    assert "Targets are for full sizes, and do not apply" in " ".join(run[0].split())


def test_a_verdict_follows_from_the_target():
    verdicts = [rows.Row("", target, float).verdict(1.0) for target in (None, 0.9, 1.0)]
    assert verdicts == ["", "missed", "met"]
    assert [rows.Row("", target, float, at_least=True).verdict(1.0) for target in (1.0, 1.1)] == ["met", "missed"]


def test_the_targets_are_those_that_were_promised(monkeypatch):
    monkeypatch.setattr(rows, "HAS_REAL", True)
    targets = [(row.target, row.unit) for row in rows.rows(measure.QUICK) if row.target is not None]
    times, memory, starts = [(1.05, ""), (1.30, ""), (1.15, "")], [(1.10, "")] * 2, [(0.3, "s"), (0.7, "s")]
    assert targets[: len(times)] == times
    assert set(starts) <= set(targets)
    assert not CAN_READ_PEAKS or targets[3:5] == memory
    assert [row.target for row in rows.real_rows(REAL) if row.target is not None] == [1.6, 1.1, 1.6, 1.1, 1.2]
    assert [row.target for row in rows.rows(LONG) if "half of T" in row.what] == [2.1, 2.1]
    lengths = [row.what for row in rows.rows(LONG) if row.unit == "MB" and "2 layers" in row.what]
    assert all(f"T={length}:" in what for length, what in zip((13, 26, 52), lengths, strict=True))


def test_every_peer_has_a_row_for_time_and_one_for_memory(run):
    for peer in rows.PEERS:
        kinds = {row["what"].rsplit(": ", 1)[1] for row in run[1]["rows"] if row["what"].startswith(peer)}
        assert kinds == ({"time", "peak memory"} if CAN_READ_PEAKS else {"time"})


def test_a_missing_part_of_the_table_has_a_reason(monkeypatch):
    for can_read, part in ((True, "--long"), (False, "/proc"), (False, "make models")):
        monkeypatch.setattr(rows, "CAN_READ_PEAKS", can_read)
        monkeypatch.setattr(rows, "HAS_REAL", can_read)
        assert any(part in reason for reason in rows.skipped(REAL)), part
    assert not any("memory" in row.what for row in rows.rows(REAL)) and not list(rows.real_rows(REAL))


def test_a_ratio_of_a_call_with_itself_is_one():
    assert costs._ratio(list, list, lambda call: 2.0, repeats=3) == 1.0
