import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from backends.zoo import model_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import sinkinterp as si

WORDS = ["<s>", "<script>alert(1)</script>", "the", "cat", "sat"]


@pytest.fixture
def call(call):
    """Runs the command; returns exit code and output."""
    return lambda *words: call("view", *words)


@pytest.fixture
def gpt2(tmp_path):
    folder = tmp_path / "gpt2"
    model_of("gpt2").save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>").save_pretrained(folder)
    return folder


def about(file):
    return json.loads(re.search(r'id="about">(.*?)</script>', Path(file).read_text(), re.S)[1])


TEXT = "<script>alert(1)</script> the cat sat the cat"


def test_a_text_becomes_a_page_of_all_its_heads(call, gpt2):
    code, output = call(gpt2, "--text", TEXT, "--out", "page.html")
    said = about("page.html")
    assert code == 0 and output.startswith("wrote page.html")
    assert "".join(said["tokens"]) == f" {TEXT}" and len(said["maps"]) == len(said["layers"]) * said["heads"]


def test_a_file_is_read_and_cut(call, gpt2):
    Path("a.txt").write_text(TEXT)
    code, _ = call(gpt2, "--text", "a.txt", "--length", 4, "--bos", "always", "--out", "page.html")
    said = about("page.html")
    assert (
        code == 0
        and [word.strip() for word in said["tokens"]] == ["<s>", *TEXT.split()[:3]]
        and "a.txt" in said["protocol"]
    )


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
@pytest.mark.parametrize("words", [["--head", "1.2"], ["--layer", 1, "--head", 2]], ids=["name", "layer and head"])
def test_a_picture_is_the_map_of_the_head_that_is_named(call, gpt2, monkeypatch, suffix, words):
    ink = {"png": b"\x89PNG\r\n\x1a\n" + bytes(60), "pdf": b"%PDF-1.4\n1 0 obj\n%%EOF", "svg": b"<svg><g></g></svg>"}
    drawn = []
    monkeypatch.setattr(go.Figure, "to_image", lambda figure, kind, **how: drawn.append(figure) or ink[kind])
    code, output = call(gpt2, "--text", TEXT, *words, "--out", f"map.{suffix}")
    weights = si.attention(str(gpt2), TEXT, layers=1, heads=2)[0]
    assert code == 0 and f"wrote map.{suffix}" in output and Path(f"map.{suffix}").is_file()
    for query, row in enumerate(drawn[0].data[0].z):
        assert row == pytest.approx(weights[query, : query + 1].tolist(), abs=1e-4)
    assert drawn[0].layout.height < drawn[0].layout.width * 1.01


def test_heads_can_be_chosen_and_positions_swapped(call, gpt2):
    code, _ = call(gpt2, "--text", TEXT, "--head", "1.0", "--head", "0.2", "--swap", 0, 3, "--out", "page.html")
    said = about("page.html")
    assert code == 0 and said["maps"] == [[0, 2], [1, 0]] and said["states"] == ["before", "after"]
    assert "SwapPositions(0, 3)" in said["captions"]["head"]


def test_without_a_text_a_checkpoint_of_ours_shows_its_task(call):
    assert call("sinkinterp/demo-k_bias", "--out", "page.html")[0] == 0
    assert about("page.html")["slot_blocks"] and len(about("page.html")["tokens"]) == 16
