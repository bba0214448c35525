"""Files and model folders that are wrong in one way each, for command lines to name."""

import json
import os
import shutil
from pathlib import Path

import torch
from backends.zoo import CONFIGS, VOCAB, model_of
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, RwkvConfig, RwkvForCausalLM

WORDS = ["<s>", "the", "cat", "sat"]
DEEP = 100_000  # brackets: more than any reader follows
CONFIG_CHANGES = {
    "no heads": {"num_attention_heads": 0},
    "minus one head": {"num_attention_heads": -1},
    "half a head": {"num_attention_heads": 1.5},
    "heads that do not divide": {"num_attention_heads": 5, "head_dim": None},
    "no key heads": {"num_key_value_heads": 0},
    "three key heads": {"num_key_value_heads": 3},
    "vocabulary x": {"vocab_size": "x"},
    "no vocabulary": {"vocab_size": 0},
    "negative vocabulary": {"vocab_size": -7},
    "larger vocabulary": {"vocab_size": VOCAB + 5},
    "width x": {"hidden_size": "x"},
    "no width": {"hidden_size": 0},
    "wide as the moon": {"hidden_size": 10**9},
    "wide beyond 64 bits": {"hidden_size": 10**30},
    "ten thousand layers": {"num_hidden_layers": 10_000},
    "ten billion layers": {"num_hidden_layers": 10**10},
    "layers x": {"num_hidden_layers": "x"},
    "no layers": {"num_hidden_layers": 0},
    "two layers of three": {"num_hidden_layers": 2},
    "four layers of three": {"num_hidden_layers": 4},
    "activation nonsense": {"hidden_act": "nonsense"},
    "rope nonsense": {"rope_parameters": {"rope_type": "nonsense"}},
    "type nonsense": {"model_type": "nonsense"},
    "no type": {"model_type": None},
    "hub kernel": {"_attn_implementation": "kernels-community/flash-attn"},
    "hub kernel by its other name": {"attn_implementation": "kernels-community/flash-attn"},
    "dtype nonsense": {"torch_dtype": "nonsense", "dtype": "nonsense"},
}


def make(folder: Path) -> None:
    """Writes every file and model folder into `folder`."""
    _write_good_model(folder / "good")
    for name, change in CONFIG_CHANGES.items():
        changed = _copy(folder, name.replace(" ", "-"))
        config = json.loads((changed / "config.json").read_text())
        (changed / "config.json").write_text(json.dumps(config | change))
    _write_damaged_models(folder)
    _write_texts(folder)
    _write_tokens(folder)
    _write_chats(folder)


def _write_good_model(folder: Path) -> None:
    model_of("llama").save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>").save_pretrained(folder)
    assert CONFIGS["llama"].num_hidden_layers == 3


def _copy(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder / "good", folder / name))


def _write_damaged_models(folder: Path) -> None:
    for name, content in {
        "config-of-nothing": b"",
        "config-of-a-list": b"[]",
        "config-of-a-number": b"7",
        "config-of-bytes": b"\xff\xfe\x00",
        "config-without-end": b"{",
        "config-nested-without-end": b"[" * DEEP,
    }.items():
        (_copy(folder, name) / "config.json").write_bytes(content)
    weights = (folder / "good/model.safetensors").read_bytes()
    for name, content in {
        "weights-of-nothing": b"",
        "weights-cut": weights[: len(weights) // 2],
        "weights-of-text": b"weights " * 99,
        "weights-of-zeros": bytes(999),
    }.items():
        (_copy(folder, name) / "model.safetensors").write_bytes(content)
    tensors = load_file(folder / "good/model.safetensors")
    first, *others = sorted(tensors)
    for name, changed in {
        "tensor-missing": {key: tensors[key] for key in others},
        "tensor-misshapen": tensors | {first: torch.zeros(3, 5)},
        "tensor-of-another-name": {key: tensors[key] for key in others} | {"nonsense": tensors[first]},
        "no-tensors": {},
        "tensor-of-truth-values": tensors | {first: tensors[first] > 0},
        "tensor-of-whole-numbers": tensors | {first: tensors[first].to(torch.int8)},
        "tensor-of-complex-numbers": tensors | {first: tensors[first].to(torch.complex64)},
    }.items():
        save_file(changed, _copy(folder, name) / "model.safetensors", metadata={"format": "pt"})
    for name, content in {"tokenizer-of-braces": "{}", "tokenizer-of-nothing": "", "tokenizer-of-text": "x"}.items():
        (_copy(folder, name) / "tokenizer.json").write_text(content)
    for file in _copy(folder, "no-tokenizer").glob("tokenizer*"):
        file.unlink()
    outside = RwkvConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2)
    RwkvForCausalLM(outside).save_pretrained(folder / "outside")
    (folder / "no-weights").mkdir()
    shutil.copy(folder / "good/config.json", folder / "no-weights")
    (_copy(folder, "weights-that-are-a-folder") / "model.safetensors").unlink()
    (folder / "weights-that-are-a-folder/model.safetensors").mkdir()
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        pipe = _copy(folder, f"pipe-for-{file}") / file
        pipe.unlink()
        os.mkfifo(pipe)


def _write_texts(folder: Path) -> None:
    for name, content in {
        "empty.txt": b"",
        "blank.txt": b"\n \n\n",
        "short.txt": b"the",
        "latin.txt": b"caf\xe9 " * 50,
        "bytes.txt": bytes(range(256)) * 9,
        "empty.jsonl": b"",
        "latin.jsonl": b'{"text": "caf\xe9"}\n',
        "number.jsonl": b'{"text": 7}\n',
        "null.jsonl": b'{"text": null}\n',
        "list.jsonl": b'{"text": ["the", "cat"]}\n',
        "mixed.jsonl": b'{"text": "the cat"}\n{"text": 7}\n',
        "cut.jsonl": b'{"text": "the cat',
        "plain.jsonl": b"the cat sat\n",
        "other.jsonl": b'{"body": "the cat sat"}\n',
        "nested.jsonl": b'{"text": ' + b"[" * DEEP + b"\n",
        "nested.json": b"[" * DEEP,
        "number.json": b"7",
        "none.parquet": b"PAR1 this is none",
        "empty.parquet": b"",
        "none.csv": b"\x00\x01\x02\xff",
        "none.gguf": b"GGUF this is none",
        "none.wav": b"RIFF this is none",
        "text.docx": b"PK",
        "a.txt": b"the cat sat the cat sat",
        "no-rows.jsonl": b"\n\n\n",
        "no-rows.csv": b"text\n",
        "white.txt": b" \n \t\n" * 50,
        "white.jsonl": b'{"text": "  \\n "}\n' * 50,
    }.items():
        (folder / name).write_bytes(content)
    (folder / "empty-folder").mkdir()
    (folder / "folder.txt").mkdir()
    (folder / "link").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "folder-of-texts").mkdir()
    (folder / "folder-of-texts" / "a.txt").write_text("the cat sat on the cat")
    (folder / "folder-of-links").mkdir()
    (folder / "folder-of-links" / "a.txt").write_text("the cat sat on the cat")
    (folder / "folder-of-links" / "b.txt").symlink_to("nowhere")
    for ending in ("txt", "json", "jsonl", "gguf", "wav"):
        os.mkfifo(folder / f"pipe.{ending}")


def _write_tokens(folder: Path) -> None:
    for name, content in {
        "tokens": [[1, 2, 3, 1], [3, 2, 1, 2]],
        "tokens-none": [],
        "tokens-flat": [1, 2, 3],
        "tokens-object": {"tokens": [[1, 2]]},
        "tokens-text": [["the", "cat"]],
        "tokens-half": [[1, 1.5]],
        "tokens-true": [[True, False]],
        "tokens-null": [[None, 1]],
        "tokens-empty": [[], []],
        "tokens-one": [[1]],
        "tokens-negative": [[1, -2, 3, 1]],
        "tokens-beyond": [[1, VOCAB, 3, 1]],
        "tokens-of-65-bits": [[1, 2**65, 3, 1]],
        "tokens-of-64-bits": [[1, 2**63, 3, 1]],
        "tokens-deep": [[[1, 2], [3, 4]]],
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "tokens-bytes.json").write_bytes(b"\xff\xfe")
    (folder / "tokens-empty-file.json").write_bytes(b"")
    (folder / "tokens-long-number.json").write_text(f"[[1, {'9' * 5000}]]")


def _write_chats(folder: Path) -> None:
    for name, content in {
        "chats-empty": "",
        "chats-text": "hello\n",
        "chats-number": "7\n",
        "chats-list": "[]\n",
        "chats-no-messages": '{"text": "hello"}\n',
        "chats-wrong-messages": '{"messages": 7}\n',
        "chats-no-role": '{"messages": [{"content": "hello"}]}\n',
        "chats-number-content": '{"messages": [{"role": "assistant", "content": 7}]}\n',
        "chats-nested": '{"messages": ' + "[" * DEEP + "\n",
    }.items():
        (folder / f"{name}.jsonl").write_text(content)
    (folder / "chats-latin.jsonl").write_bytes(b'{"messages": [{"role": "user", "content": "caf\xe9"}]}\n')
    chat = {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]}
    (folder / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 12)
