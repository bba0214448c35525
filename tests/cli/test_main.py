import json
from pathlib import Path

import pytest
import torch
from backends.zoo import VOCAB, model_of

import sinkinterp as si


@pytest.fixture
def call(call):
    """Runs the command; returns exit code, output, and the files that it left."""
    return lambda *words: (*call(*words), sorted(path.name for path in Path().iterdir()))


@pytest.fixture
def llama(tmp_path):
    model_of("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def token_file(tmp_path, rows):
    (tmp_path / "tokens.json").write_text(json.dumps(rows))
    return tmp_path / "tokens.json"


def test_measure_prints_what_it_saves(call, llama, tmp_path):
    rows = torch.randint(VOCAB, (7, 19)).tolist()
    code, output, files = call(
        "measure", llama, "--tokens", token_file(tmp_path, rows), "--length", 17, "--sequences", 5, "--save", "out.json"
    )
    saved = si.Report.load("out.json")
    assert code == 0 and files == ["out.json"]
    assert (saved.protocol.length, saved.protocol.sequences) == (17, 5)
    report = si.measure(si.load(llama), torch.tensor([row[:17] for row in rows[:5]]))
    torch.testing.assert_close(saved.importance, report.importance, rtol=0, atol=1e-6)
    torch.testing.assert_close(saved.null, report.null, rtol=0, atol=1e-6)
    assert f"{report.alpha().mean():.3f}" in output


def test_a_preset_sets_what_is_not_given(call, llama, tmp_path):
    tokens = token_file(tmp_path, torch.randint(VOCAB, (5, 64)).tolist())
    words = ("measure", llama, "--tokens", tokens, "--sequences", 3, "--save", "out.json", "--force", "--preset")
    for preset, dtype, divisor in (("paper", "float32", "T - k + 1"), ("released-own-models", "bfloat16", "bfloat16")):
        assert call(*words, preset)[0] == 0
        protocol = json.loads(Path("out.json").read_text())["protocol"]
        assert (protocol["length"], protocol["sequences"], protocol["dtype"]) == (64, 3, dtype)
        assert divisor in protocol["divisor"]
    code, output, _ = call(*words, "papers")
    assert code == 2 and "'paper', 'released-open-models', 'released-own-models'" in output


def test_everything_or_the_first_position_alone_is_measured_saved_and_loaded(call, llama):
    words = ("measure", llama, "--drawn", "repeat", "--length", 7, "--sequences", 3, "--save")
    assert (
        call(*words, "all.safetensors")[0]
        == call(*words, "first.safetensors", "--first-only", "--out", "r.html")[0]
        == 0
    )
    everything, first = map(si.Report.load, ("all.safetensors", "first.safetensors"))
    assert everything.protocol.source == "repeated token, seed 0" and {"qk_angles", "loss"} <= everything.extras.keys()
    assert first.positions == (0,) and first.extras == {}


def test_float16_that_overflows_names_the_block_and_the_remedy(call, tmp_path):
    model = model_of("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight.mul_(3e4)
        model.model.layers[1].mlp.down_proj.weight.mul_(3e4)
    model.save_pretrained(tmp_path / "big")
    code, output, _ = call("measure", tmp_path / "big", "--drawn", "random", "--length", 7, "--dtype", "float16")
    assert code == 2 and "activations after block 1 are not finite" in output and "bfloat16" in output


def test_rows_are_those_of_the_heads_that_are_named(call, llama):
    words = ("--drawn", "random", "--length", 7, "--sequences", 3, "--table", "sinks", "--save", "rows.json")
    assert call("measure", llama, *words, "--head", "1.0", "--head", "0.1")[0] == 0
    rows = json.loads(Path("rows.json").read_text())["rows"]
    assert sorted((row["layer"], row["head"]) for row in rows) == [(0, 1), (1, 0)]
