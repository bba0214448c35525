import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from sinkinterp._experiments.figure30_fine_tuning import history_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sinkinterp.lm.model import LMSpec, build
from sinkinterp.runs.estimate import cost_of
from sinkinterp.runs.trained import ChatRecipe, _split, finetuned
from sinkinterp.train import checkpoint
from sinkinterp.train.chats import PLAIN, Chats, padded, read_chats, tokenised

WORDS = ["<eos>", "<|", "|>", "user", "assistant", "system", "hi", "you", "yes", "no", "good", "day", "?"]
CHATML = (  # no generation marks
    "{% for m in messages %}<|{{ m['role'] }}|> {{ m['content'] }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
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


@pytest.mark.parametrize("template", [None, CHATML], ids=["ours, marked", "by prefixes"])
def test_only_the_assistants_words_and_their_ends_are_predicted(tokenizer, template):
    tokenizer.chat_template = template
    chats = tokenised([CHAT], tokenizer, 99)
    assert words_of(chats.rows[0]) == ["yes", "good", "<eos>", "good", "day", "you", "<eos>"]
    assert chats.rule.startswith("assistants' tokens") and ("marked" in chats.rule) == (template is None)
    ids, labels = chats.rows[0]
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))


@pytest.mark.parametrize("answer", ["yes ", " yes"])
def test_white_space_that_a_tokenizer_drops_marks_no_words_of_the_user(tokenizer, answer):
    chat = [CHAT[0], {"role": "assistant", "content": answer}, *CHAT[2:]]
    predicted = words_of(tokenised([chat], tokenizer, 99).rows[0])
    assert "user" not in predicted and "?" not in predicted and {"yes", "good", "day"} <= {*predicted}


def test_tool_calls_are_refused(tmp_path):
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "weather"}]}
    for row in ({"messages": [CHAT[0], call]}, {"messages": CHAT, "tools": [{"name": "weather"}]}):
        (tmp_path / "tools.jsonl").write_text(json.dumps(row))
        refused(partial(read_chats, str(tmp_path / "tools.jsonl")), "tools")


def test_no_chat_is_both_held_out_and_trained_on():
    rows = [([i if i < 38 else i % 10], [i]) for i in range(40)]  # the last two repeat earlier ones
    training, held_out = _split(Chats(rows, "", 0))
    assert [ids for ids, _ in held_out.rows] == [[36], [37]] and training.rows == rows[:36]
    assert _split(Chats(rows[:1] * 40, "", 0))[1].rows == []


def test_a_template_that_rewrites_what_came_before_trains_on_all_tokens(tokenizer):
    tokenizer.chat_template = "{% if messages | length > 1 %}good {% else %}no {% endif %}" + CHATML
    chats = tokenised([CHAT], tokenizer, 99)
    assert chats.rule == "all tokens" and chats.rows[0][0] == chats.rows[0][1]


def test_chats_are_cut_and_those_without_an_answer_left_out(tokenizer):
    long = [{"role": "user", "content": "hi " * 20}, CHAT[1]]
    chats = tokenised([CHAT, long, CHAT[:1]], tokenizer, 17)
    assert len(chats.rows) == 1 and chats.left_out == 2 and len(chats.rows[0][0]) == 17
    refused(lambda: tokenised([CHAT], tokenizer, 3), "3")


def test_a_chat_that_the_template_refuses_is_one_line_that_names_it(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    refused(lambda: tokenised([CHAT], tokenizer, 99))


def test_padding_is_neither_seen_nor_predicted():
    batch = padded([([5, 6, 7], [-100, 6, 7]), ([8], [8])])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_an_epoch_takes_every_chat_once_and_the_next_in_another_order():
    chats = Chats([([i], [i]) for i in range(7)], "", 0)
    drawn = [chats.batch(3, 5, step)["input_ids"].flatten().tolist() for step in range(1, 8)]
    flat = [i for batch in drawn for i in batch]
    epochs = [flat[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs) and epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", ["llama", "tied llama", "ours"])
def test_a_model_learns_to_answer_and_is_saved_for_transformers(tmp_path, tokenizer, chats, kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 31, "num_hidden_layers": 2, "num_attention_heads": 3}
    llama = LlamaConfig(vocab_size=13, tie_word_embeddings=kind == "tied llama", **sizes)
    ours = LMSpec(vocab=13, d_model=24, n_heads=3, n_ctx=64)
    (build(ours) if kind == "ours" else LlamaForCausalLM(llama)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    recipe = ChatRecipe(
        model=str(tmp_path / "base"), data=chats, length=59, steps=23, batch=5, micro_batch=2, lr=1e-2, warmup=3
    )
    said = []
    folder = finetuned(recipe, tmp_path / "run", on_message=said.append)
    assert said == ["21 chats, loss on assistants' tokens, marked by the template; 0 chats had none"]
    last = checkpoint.folder_of(tmp_path / "run", 23)
    history = checkpoint.history_of(last)
    assert history[-1]["valid_loss"] < history[0]["valid_loss"] / 2 and 0 <= history[-1]["sink_1"] <= 1
    assert all(row["grad_norm"] > 0 for row in history[1:])
    model, again = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (folder, last))
    ids = torch.tensor([[1, 2, 3, 5, 7]])
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    torch.testing.assert_close(model(ids).logits, again(ids).logits, rtol=1e-5, atol=1e-5)
    assert AutoTokenizer.from_pretrained(folder).chat_template == PLAIN


def test_an_interrupted_fine_tuning_ends_as_if_it_had_not_been(tmp_path, tokenizer, chats, caplog):
    build(LMSpec(vocab=13, d_model=24, n_heads=3, n_ctx=64)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    recipe = ChatRecipe(model=str(tmp_path / "base"), data=chats, length=59, steps=11, batch=5, save_every=4)

    def stop(step, latest):
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetuned(recipe, tmp_path / "cut", stop)
    cut, whole = (load_file(finetuned(recipe, tmp_path / name) / "model.safetensors") for name in ("cut", "whole"))
    assert cut.keys() == whole.keys() and all(cut[name].equal(whole[name]) for name in cut)
    _check_repair(recipe, tmp_path / "cut", caplog)
    with open(chats, "a") as file:
        file.write(json.dumps({"messages": CHAT}) + "\n")
    refused(lambda: finetuned(recipe, tmp_path / "cut"))
    refused(lambda: finetuned(replace(recipe, batch=7), tmp_path / "cut"), "batch")


def _check_repair(recipe, run, caplog):
    """Asserts that a damaged model is named and written again from the last checkpoint."""
    file = run / "model" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert finetuned(recipe, run) == run / "model" and file.read_bytes() == whole
    assert caplog.messages[-1].startswith(f"{file} is damaged: its sha256")
    assert caplog.messages[-1].endswith("; it is renamed to damaged-model, and written again")
    assert finetuned(recipe, run) == run / "model" and len(caplog.messages) == 1


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


def test_a_chat_longer_than_the_context_is_refused_with_the_length_to_set(tmp_path, tokenizer, chats):
    build(LMSpec(vocab=13, d_model=24, n_heads=3, n_ctx=5)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    refused(
        lambda: finetuned(ChatRecipe(model=str(tmp_path / "base"), data=chats, length=59, steps=1), tmp_path / "run"),
        "base",
    )
    assert not any((tmp_path / "run").iterdir())
