"""`benchmarks.gpu` runs from end to end on a CPU, at sizes at which its figures mean nothing; nothing here is timed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer

from benchmarks import costs, gpu, gpu_checks
from benchmarks.costs import CAN_READ_PEAKS
from benchmarks.rows import Row
from sinkinterp import interventions as iv
from sinkinterp.attention import fused

pytestmark = pytest.mark.timeout(600)
README = (Path(__file__).parents[1] / "benchmarks" / "README.md").read_text()
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@pytest.mark.skipif(not CAN_READ_PEAKS, reason="no /proc/self/clear_refs to reset high-water marks")
@pytest.mark.filterwarnings("default")
def test_every_row_has_a_figure_and_every_check_passes_at_toy_sizes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda module, **options: module)  # it cannot trace the type checks of tests
    monkeypatch.setattr(costs, "_give_back_what_is_freed", lambda: None)  # else all later tests are slow
    gpu.main(toy_sizes=True, minutes=10, peak_tflops=None, json_out=tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    checks = [row for row in found if row["what"].startswith("check")]
    assert {row["verdict"] for row in checks} == {"met"} and len(checks) >= 20
    for row in found:
        assert isinstance(row["figure"], float) and (row in checks or row["verdict"] == row["goal"] == ""), row
    said = capsys.readouterr()
    assert said.err.startswith(f"{len(found)} rows on a CPU") and said.out.count("\n| ") == len(found) + 2


@no_gpu
def test_without_a_device_one_line_says_so(capsys):
    with pytest.raises(typer.Exit) as exit_of:
        gpu.main(toy_sizes=False, minutes=8, peak_tflops=None, json_out=None)
    assert exit_of.value.exit_code == 2 and capsys.readouterr().err == gpu.NO_DEVICE + "\n"


def test_the_goals_are_those_that_were_promised_and_the_readme_says_what_was_measured():
    rows = [*gpu.rows(gpu.full(989.0))]
    goals = [gpu.goal_of(row) for row in rows if row.target is not None and not row.what.startswith("check")]
    assert (
        goals
        == ["at most 1.05", "at most 1.05", "at most 1.15", "at most 1.05"] * 2
        + ["at least 0.45"] * 2
        + ["at most 1.1", "at most 1.25"] * 8
    )
    listed = [row.what for row in rows if f"| {row.what} |" in README]
    assert listed == ([] if "none of its rows is measured" in README else [row.what for row in rows])


def test_a_row_that_fails_says_why_and_rows_after_the_deadline_are_named():
    def fails():
        raise ValueError("no such kernel\nand more")

    times = iter([0, 1, 5])
    rows = iter([Row("first", 0.5, fails), Row("second", 0.45, lambda: 0.5, at_least=True), Row("third", None, fails)])
    first, second, third = gpu.measured(rows, 3, lambda: next(times))
    assert first.verdict == "failed: ValueError: no such kernel" and first.figure is None
    assert (second.verdict, second.goal, third.verdict) == ("met", "at least 0.45", "not reached in the time")


def test_a_check_sees_a_wrong_log_sum(monkeypatch):
    call, is_fused = gpu_checks.calls(gpu_checks.Size(29, 16), torch.float32)["causal, grouped queries"]
    assert gpu_checks.kernel_difference(call, "cpu", is_fused) < 1e-5
    attended = fused.attended
    monkeypatch.setattr(fused, "attended", lambda call: (attended(call)[0], attended(call)[1] * 1.443))  # log2
    assert gpu_checks.kernel_difference(replace(call), "cpu", is_fused) > 0.1


def test_every_kind_of_intervention_is_checked():
    listed = {type(edit) for edit in gpu_checks.EDITS}
    public = {kind for kind in map(vars(iv).get, iv.__all__) if isinstance(kind, type) and issubclass(kind, iv.Edit)}
    assert public - {iv.Edit} <= listed
