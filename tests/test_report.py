from dataclasses import fields, replace

import pytest
import torch
from adapters.zoo import model_of, tokens_of

import sinkinterp as si
from sinkinterp.errors import InputError
from sinkinterp.metrics.intervals import difference
from sinkinterp.report import Report
from sinkinterp.tabulate import compare


@pytest.fixture(scope="module")
def subjects():
    return {name: si.load(model_of(name)) for name in ("gpt2", "gpt-oss with sink logits")}


@pytest.mark.parametrize("name", ["gpt2", "gpt-oss with sink logits"])
def test_a_saved_report_is_loaded_as_it_was(subjects, name, tmp_path):
    report = si.measure(subjects[name], tokens_of(), positions=(0, 4))
    report.save(tmp_path / "report.safetensors")
    loaded = Report.load(tmp_path / "report.safetensors")
    for field in fields(report):
        ours, theirs = getattr(report, field.name), getattr(loaded, field.name)
        assert ours.equal(theirs) if isinstance(ours, torch.Tensor) else ours == theirs
    assert [p.name for p in tmp_path.iterdir()] == ["report.safetensors"]


def test_a_file_that_is_no_report_is_refused(tmp_path):
    (tmp_path / "other.safetensors").write_bytes(b"not a report")
    with pytest.raises(InputError, match=r"no saved report; give a file that Report\.save wrote"):
        Report.load(tmp_path / "other.safetensors")


def test_an_edit_is_compared_sequence_by_sequence(subjects):
    before = si.measure(subjects["gpt2"], tokens_of())
    after = si.measure(subjects["gpt2"], tokens_of(), edits=[si.SwapPositions(0, 4)])
    table = compare(before, after)
    row = {row["quantity"]: row for row in table.rows}["alpha_1, mean over heads"]
    change = (after.alpha() - before.alpha()).mean((1, 2))
    assert row["change"] == pytest.approx(change.mean().item(), abs=1e-6)
    assert row["change low"] <= row["change"] <= row["change high"]
    assert "SwapPositions" in table.note and "change by sequence" in table.note


def test_a_report_compared_with_itself_has_changed_by_nothing(subjects):
    report = si.measure(subjects["gpt-oss with sink logits"], tokens_of())
    assert {row[cell] for row in compare(report, report).rows for cell in ("change", "change low", "change high")} == {
        0.0
    }


def test_reports_on_different_tokens_are_not_paired(subjects):
    one = si.measure(subjects["gpt2"], tokens_of())
    other = replace(one, protocol=replace(one.protocol, source_sha256="another"))
    assert "different sequences" in compare(one, other).note


def test_pairing_narrows_the_interval_of_a_shared_shift():
    base = torch.randn(41)
    paired, apart = (difference(base, base + 0.5, paired) for paired in (True, False))
    assert paired.mean == pytest.approx(apart.mean, abs=1e-6) == pytest.approx(0.5, abs=1e-6)
    assert paired.high - paired.low < 1e-6 < apart.high - apart.low
    assert apart.low < 0.5 < apart.high
