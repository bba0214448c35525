"""What commands answer: `measure`, `view`, `patch`, `explain`, `cache`, `mask` and `serve`."""

import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch
from abuse.bad_files import write_model
from backends.zoo import VOCAB, model_of
from pages.atlases import about

import sinkinterp as si
from sinkinterp.pages import serve

MODEL = "sinkinterp/demo-softmax"
WORDS = ["<s>", "<script>alert(1)</script>", "the", "cat", "sat"]
TEXT = "<script>alert(1)</script> the cat sat the cat"


@pytest.fixture
def llama(tmp_path):
    model_of("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def gpt2(tmp_path):
    return write_model("gpt2", WORDS, tmp_path / "gpt2")


def test_a_text_becomes_a_page_of_all_its_heads(call, gpt2):
    code, output = call("view", gpt2, "--prompt", TEXT, "--out", "page.html")
    said = about(Path("page.html").read_text())
    assert code == 0 and "wrote page.html" in output
    assert "".join(said["tokens"]) == f" {TEXT}" and len(said["maps"]) == len(said["layers"]) * said["heads"]


def test_a_file_is_read_and_cut(call, gpt2):
    Path("a.txt").write_text(TEXT)
    code, _ = call("view", gpt2, "--text", "a.txt", "--length", 4, "--bos", "always", "--out", "page.html")
    said = about(Path("page.html").read_text())
    assert code == 0 and "a.txt" in said["protocol"]
    assert [word.strip() for word in said["tokens"]] == ["<s>", *TEXT.split()[:3]]


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_picture_is_the_map_of_the_head_that_is_named(call, gpt2, monkeypatch, suffix):
    drawn = []
    monkeypatch.setattr(go.Figure, "to_image", lambda figure, kind, **how: drawn.append(figure) or b"ink")
    code, output = call("view", gpt2, "--prompt", TEXT, "--head", "1.2", "--out", f"map.{suffix}")
    weights = si.attention_weights(str(gpt2), TEXT, layers=[1])[0, 0, 2]
    assert code == 0 and f"wrote map.{suffix}" in output and Path(f"map.{suffix}").is_file()
    for query, row in enumerate(drawn[0].data[0].z):
        assert row == pytest.approx(weights[query, : query + 1].tolist(), abs=1e-4)
    assert drawn[0].layout.height < drawn[0].layout.width * 1.01


def test_heads_can_be_chosen_and_positions_swapped(call, gpt2):
    words = ("--head", "1.0", "--head", "0.2", "--edit", "SwapPositions(0, 3)", "--out", "page.html")
    code, _ = call("view", gpt2, "--prompt", TEXT, *words)
    said = about(Path("page.html").read_text())
    assert code == 0 and said["maps"] == [[0, 2], [1, 0]] and said["states"] == ["before", "after"]
    assert "SwapPositions(0, 3)" in said["protocol"]


def test_without_a_text_a_checkpoint_of_ours_shows_its_task(call):
    assert call("view", "sinkinterp/demo-k_bias", "--out", "page.html")[0] == 0
    said = about(Path("page.html").read_text())
    assert said["slot_blocks"] and len(said["tokens"]) == 16


@pytest.mark.parametrize(
    "options, says",
    [
        ("--site residual", "residual, clean into corrupted"),
        ("--site heads --head 1.1", "attention output, clean into corrupted"),
        ("--site heads --first-order", "first order: wrong by"),
        ("--site heads --direct", "direct: written into the logits"),
        ("--site edges --head 1.1", "pattern, clean into corrupted"),
        ("--site paths", "path from attention output to the logits"),
        ("--site paths --to 1.1.k", "path from attention output to keys 1.1;"),
    ],
)
def test_the_map_is_printed_and_drawn(call, gpt2, options, says):
    words = ("--clean", "the cat sat", "--corrupted", "the the sat", "--answer", "cat", "--instead", "sat")
    code, output = call("patch", gpt2, *words, *options.split(), "--out", "page.html")
    assert code == 0 and "logit difference: clean" in output and "restored" in output and says in output, output
    assert "Clean: the cat sat. Corrupted: the the sat." in Path("page.html").read_text()


def test_one_model_is_patched_into_another_on_a_text(call):
    models = "sinkinterp/text-softmax", "--into", "sinkinterp/text-sigmoid"
    code, output = call("patch", *models, "--prompt", "It moves.", "--out", "page.html")
    assert code == 0 and "text-softmax (clean) into" in output and "alpha_1: clean" in output, output


def test_prompts_and_answers_that_do_not_fit_are_one_line(call, gpt2):
    both = "--clean", "the cat", "--corrupted", "the cat sat"
    for words, message in (
        (both, "(1, 2) and (1, 3)"),
        ((*both[:2], "--corrupted", "the sat", "--answer", "cat"), "together"),
        ((*both, "--site", "paths", "--to", "1.1"), "3.7.k"),
        ((*both, "--site", "paths", "--to", "x.k"), "--to"),
        ((*both, "--site", "paths", "--first-order"), "--first-order"),
        ((*both, "--site", "paths", "--direct"), "--site heads"),
        ((*both[:2], "--corrupted", "the sat", "--answer", "a b", "--instead", "cat"), "2 tokens"),
    ):
        code, output = call("patch", gpt2, *words, "--out", "page.html")
        assert code == 2 and message in output and not Path("page.html").exists(), output


def test_a_sink_is_explained_in_a_sentence_and_on_a_page(call):
    code, output = call("explain", MODEL, "--sequences", 16, "--length", 16, "--out", "page.html")
    assert code == 0 and "Head 0.0 gives the first token 0.7" in output and "from the keys' position (" in output
    html = Path("page.html").read_text()
    assert "position cut: 0." in html and "Which pairs of parts make the score?" in html


def test_a_head_is_explained_with_what_it_writes_into_an_answer(call, gpt2):
    words = ("--prompt", "the cat sat", "--head", "1.1", "--answer", "cat", "--instead", "sat", "--full")
    code, output = call("explain", gpt2, *words)
    assert code == 0 and "itself into the logit of 'cat' less 'sat'" in output and "into the answer" in output, output


@pytest.mark.parametrize(
    "command, answer, tables", [("cache", "These 32 texts do not tell", 3), ("mask", "Leave out no", 3)]
)
def test_the_shipped_twin_is_answered_in_a_sentence_with_its_tables(call, command, answer, tables):
    code, output = call(command, MODEL, "--save", "numbers.json", "--out", "page.html")
    assert code == 0 and answer in output, output
    written = json.loads(Path("numbers.json").read_text())
    assert written["answer"].startswith(answer) and len(written["tables"]) == tables
    assert all(table["rows"] and "null" in table["note"] for table in written["tables"][-1:])
    assert ("mask" in written) == (command == "mask") and answer in Path("page.html").read_text()


def test_heads_are_answered_for_beside_tokens_and_dimensions(call):
    code, _ = call("mask", MODEL, "--sequences", 5, "--heads", "--save", "numbers.json")
    written = json.loads(Path("numbers.json").read_text())
    assert code == 0 and "Leave out no" in written["answer"] and "at +0.01 nats" in written["answer"]
    assert len(written["tables"]) == 5 and written["heads"]["budget"] == 0.01
    assert "tokens" in written["mask"]["blocks"][0]


def test_the_cache_is_rounded_to_the_bits_that_were_asked_for(call):
    code, output = call("cache", MODEL, "--bits", 3, "--bits", 5, "--save", "numbers.json")
    assert code == 0, output
    rounded = json.loads(Path("numbers.json").read_text())["tables"][-1]["rows"]
    assert {row["bits"] for row in rounded} == {3, 5}


@pytest.mark.parametrize("command", ["cache", "mask", "explain"])
def test_fewer_texts_than_were_asked_for_are_refused_and_than_the_default_are_taken(call, command):
    texts = json.dumps(["The first token receives more attention than any other. " * 4] * 3)
    Path("texts.json").write_text(texts)
    line = [command, "sinkinterp/repeats-softmax", "--text", "texts.json", "--length", 11]
    assert call(*line)[0] == 0
    code, output = call(*line, "--sequences", 5)
    assert code == 2 and "5 sequences" in output, output


@pytest.fixture
def served(call, answers_of_live_pages, monkeypatch):
    """Runs the command; returns exit code, output, the addresses that were opened, and what the server answered."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    return lambda *words: (*call("serve", *words), opened, answers_of_live_pages)


@pytest.mark.parametrize("options", [(), ("--no-open",)])
def test_the_page_is_served_until_an_interrupt_and_answers_and_a_browser_opens_it_where_that_is_wanted(served, options):
    code, output, opened, (answer,) = served(MODEL, *options)
    (address,) = re.findall(r"the live page is at (http://127.0.0.1:\S+)", output)
    assert code == 0 and opened == ([] if options else [address])
    assert answer["view"]["tokens"] == ["3", "17", "5", "9"] and answer["edits"] == ["SwapPositions(0, 2) (p1 <-> p3)"]


def test_a_port_that_is_taken_is_one_line(served):
    with serve.server_of(b"") as server:
        code, output, _, _ = served(MODEL, "--port", str(server.server_port))
    assert code == 2 and output.count("error:") == 1 and f"cannot listen on port {server.server_port}" in output


def token_file(tmp_path, rows):
    (tmp_path / "tokens.json").write_text(json.dumps(rows))
    return tmp_path / "tokens.json"


def test_measure_prints_what_it_saves(call, llama, tmp_path):
    rows = torch.randint(VOCAB, (7, 19)).tolist()
    code, output = call(
        "measure", llama, "--tokens", token_file(tmp_path, rows), "--length", 17, "--sequences", 5, "--save", "out.json"
    )
    saved = si.Report.load("out.json")
    assert code == 0 and [path.name for path in Path().iterdir()] == ["out.json"]
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
    code, output = call(*words, "papers")
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
    code, output = call("measure", tmp_path / "big", "--drawn", "random", "--length", 7, "--dtype", "float16")
    assert code == 2 and "activations after block 1 are not finite" in output and "bfloat16" in output


def test_rows_are_those_of_the_heads_that_are_named(call, llama):
    words = ("--drawn", "random", "--length", 7, "--sequences", 3, "--table", "sinks", "--save", "rows.json")
    assert call("measure", llama, *words, "--head", "1.0", "--head", "0.1")[0] == 0
    rows = json.loads(Path("rows.json").read_text())["rows"]
    assert sorted((row["layer"], row["head"]) for row in rows) == [(0, 1), (1, 0)]
