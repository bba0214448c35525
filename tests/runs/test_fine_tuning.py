import json
from pathlib import Path

import pytest
from refusals import refused
from safetensors.torch import load_file
from sinkinterp._experiments.figure30_fine_tuning import history_of
from sinkinterp._experiments.shared.fine_tuning import ChatRecipe, Chats, padded, read_chats, split, tokenised
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkinterp.lm.model import LMSpec, build
from sinkinterp.runs.estimate import cost_of
from sinkinterp.train import checkpoint, loop

WORDS = ["<eos>", "<|", "|>", "user", "assistant", "system", "hi", "you", "yes", "no", "good", "day", "?"]
CHAT = [
    {"role": "user", "content": "hi you ?"},
    {"role": "assistant", "content": "yes good"},
    {"role": "user", "content": "no ?"},
    {"role": "assistant", "content": "good day you"},
]


@pytest.fixture
def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(mark, "isolated") for mark in ("<eos>", "<|", "|>")] + [pre_tokenizers.WhitespaceSplit()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")


@pytest.fixture
def chats(tmp_path):
    rows = [{"messages": [{"role": "user", "content": "hi " * n}, {"role": "assistant", "content": "yes " * (n + 1)}]}
            for n in range(1, 24)]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "chats.jsonl")


def words_of(row):
    """What is predicted, in words."""
    return [WORDS[label] for label in row[1] if label != -100]


def test_only_the_assistants_words_and_their_ends_are_predicted(tokenizer):
    chats = tokenised([CHAT], tokenizer, 99)
    assert words_of(chats.rows[0]) == ["yes", "good", "<eos>", "good", "day", "you", "<eos>"]
    ids, labels = chats.rows[0]
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))


@pytest.mark.parametrize("answer", ["yes ", " yes"])
def test_white_space_that_a_tokenizer_drops_marks_no_words_of_the_user(tokenizer, answer):
    chat = [CHAT[0], {"role": "assistant", "content": answer}, *CHAT[2:]]
    predicted = words_of(tokenised([chat], tokenizer, 99).rows[0])
    assert "user" not in predicted and "?" not in predicted and {"yes", "good", "day"} <= {*predicted}


def test_no_chat_is_both_held_out_and_trained_on():
    rows = [([i if i < 38 else i % 10], [i]) for i in range(40)]  # the last two repeat earlier ones
    training, held_out = split(Chats(rows))
    assert [ids for ids, _ in held_out.rows] == [[36], [37]] and training.rows == rows[:36]
    assert split(Chats(rows[:1] * 40))[1].rows == []


def test_chats_are_cut_and_those_without_an_answer_left_out(tokenizer):
    long = [{"role": "user", "content": "hi " * 20}, CHAT[1]]
    chats = tokenised([CHAT, long, CHAT[:1]], tokenizer, 17)
    assert len(chats.rows) == 1 and len(chats.rows[0][0]) == 17
    refused(lambda: tokenised([CHAT], tokenizer, 3), "3")


def test_padding_is_neither_seen_nor_predicted():
    batch = padded([([5, 6, 7], [-100, 6, 7]), ([8], [8])])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_epoch_takes_every_chat_once_and_the_next_in_another_order():
    chats = Chats([([i], [i]) for i in range(7)])
    drawn = [chats.batch(3, 5, step)["input_ids"].flatten().tolist() for step in range(1, 8)]
    flat = [i for batch in drawn for i in batch]
    epochs = [flat[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs) and epochs[0] != epochs[1]


def test_a_model_learns_to_answer_and_an_interrupted_training_ends_as_if_it_had_not_been(tmp_path, tokenizer, chats):
    build(LMSpec(vocab=13, d_model=24, n_heads=3, n_ctx=64)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    sizes = {"length": 59, "steps": 23, "batch": 5, "micro_batch": 2, "lr": 1e-2, "warmup": 3, "save_every": 4}
    recipe = ChatRecipe(model=str(tmp_path / "base"), data=chats, **sizes)

    def stop(step, latest):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop.train(recipe.job(), tmp_path / "cut", stop)
    cut, whole = (loop.train(recipe.job(), tmp_path / name) for name in ("cut", "whole"))
    weights = [load_file(folder / "model.safetensors") for folder in (cut, whole)]
    assert weights[0].keys() == weights[1].keys() and all(weights[0][n].equal(x) for n, x in weights[1].items())
    history = checkpoint.history_of(cut)
    assert history[-1]["valid_loss"] < history[0]["valid_loss"] / 2 and 0 <= history[-1]["sink_1"] <= 1
    with open(chats, "a") as file:
        file.write(json.dumps({"messages": CHAT}) + "\n")
    refused(lambda: loop.train(recipe.job(), tmp_path / "cut"))


def test_a_history_is_that_of_the_chats_as_they_are_now(tmp_path, tokenizer, chats):
    build(LMSpec(vocab=13, d_model=24, n_heads=3, n_ctx=64)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    recipe = ChatRecipe(model=str(tmp_path / "base"), data=chats, length=59, steps=2, batch=2, watch_every=2)
    assert cost_of([recipe], tmp_path / "cache").tokens == 2 * 2 * 59
    first = history_of(recipe, tmp_path / "cache")
    assert history_of(recipe, tmp_path / "cache") == first and cost_of([recipe], tmp_path / "cache").tokens == 0
    lines = Path(chats).read_text().splitlines(keepends=True)
    Path(chats).write_text("".join(lines[::-1]))
    assert history_of(recipe, tmp_path / "cache") != first


def test_the_mark_that_begins_a_file_of_windows_is_no_part_of_a_chat(tmp_path, chats):
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + Path(chats).read_bytes())
    assert read_chats(str(tmp_path / "marked.jsonl")) == read_chats(chats)
