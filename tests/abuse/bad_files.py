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
    "half a head": {"num_attention_heads": 1.5},
    "heads that do not divide": {"num_attention_heads": 5, "head_dim": None},
    "three key heads": {"num_key_value_heads": 3},
    "vocabulary x": {"vocab_size": "x"},
    "larger vocabulary": {"vocab_size": VOCAB + 5},
    "wide as the moon": {"hidden_size": 10**9},
    "ten billion layers": {"num_hidden_layers": 10**10},
    "no layers": {"num_hidden_layers": 0},
    "two layers of three": {"num_hidden_layers": 2},
    "four layers of three": {"num_hidden_layers": 4},
    "activation nonsense": {"hidden_act": "nonsense"},
    "rope nonsense": {"rope_parameters": {"rope_type": "nonsense"}},
    "no type": {"model_type": None},
    "hub kernel": {"_attn_implementation": "kernels-community/flash-attn"},
    "hub kernel by its other name": {"attn_implementation": "kernels-community/flash-attn"},
    "dtype nonsense": {"torch_dtype": "nonsense", "dtype": "nonsense"},
}


DAMAGED = {  # a file of a model, and what it holds in place of what it should
    "config-of-a-list": ("config.json", b"[]"),
    "config-of-bytes": ("config.json", b"\xff\xfe\x00"),
    "config-nested-without-end": ("config.json", b"[" * DEEP),
    "weights-of-text": ("model.safetensors", b"weights " * 99),
}
TOKENIZERS = {"tokenizer-of-braces": b"{}", "tokenizer-of-nothing": b"", "tokenizer-of-text": b"x"}
PIPED = ("model.safetensors", "config.json", "generation_config.json")  # files of a model
TENSORS = {  # changes of a dictionary of tensors, whose first is `name`
    "tensor-missing": lambda tensors, name: {key: x for key, x in tensors.items() if key != name},
    "tensor-misshapen": lambda tensors, name: tensors | {name: torch.zeros(3, 5)},
    "tensor-of-another-name": lambda tensors, name: {key.replace(name, "nonsense"): x for key, x in tensors.items()},
    "no-tensors": lambda tensors, name: {},
    "tensor-of-truth-values": lambda tensors, name: tensors | {name: tensors[name] > 0},
    "tensor-of-whole-numbers": lambda tensors, name: tensors | {name: tensors[name].to(torch.int8)},
    "tensor-of-complex-numbers": lambda tensors, name: tensors | {name: tensors[name].to(torch.complex64)},
}
TEXTS = {
    "empty.txt": b"",
    "short.txt": b"the",
    "latin.txt": b"caf\xe9 " * 50,
    "bytes.txt": bytes(range(256)) * 9,
    "null.jsonl": b'{"text": null}\n',
    "list.jsonl": b'{"text": ["the", "cat"]}\n',
    "mixed.jsonl": b'{"text": "the cat"}\n{"text": 7}\n',
    "cut.jsonl": b'{"text": "the cat',
    "other.jsonl": b'{"body": "the cat sat"}\n',
    "nested.jsonl": b'{"text": ' + b"[" * DEEP + b"\n",
    "nested.json": b"[" * DEEP,
    "number.json": b"7",
    "none.parquet": b"PAR1 this is none",
    "none.gguf": b"GGUF this is none",
    "none.wav": b"RIFF this is none",
    "text.docx": b"PK",
    "a.txt": b"the cat sat the cat sat",
    "no-rows.jsonl": b"\n\n\n",
    "white.jsonl": b'{"text": "  \\n "}\n' * 50,
}
TOKENS = {
    f"tokens-{name}.json": content if isinstance(content, bytes) else json.dumps(content).encode()
    for name, content in {
        "none": [],
        "object": {"tokens": [[1, 2]]},
        "true": [[True, False]],
        "empty": [[], []],
        "one": [[1]],
        "beyond": [[1, VOCAB, 3, 1]],
        "of-64-bits": [[1, 2**63, 3, 1]],
        "deep": [[[1, 2], [3, 4]]],
        "bytes": b"\xff\xfe",
        "long-number": f"[[1, {'9' * 5000}]]".encode(),
    }.items()
}


def make(folder: Path) -> None:
    """Writes every file and model folder into `folder`."""
    write_model("llama", WORDS, folder / "good")
    assert CONFIGS["llama"].num_hidden_layers == 3
    for name, change in CONFIG_CHANGES.items():
        changed = _copy(folder, name.replace(" ", "-"))
        config = json.loads((changed / "config.json").read_text())
        (changed / "config.json").write_text(json.dumps(config | change))
    _write_damaged_models(folder)
    for name, content in (TEXTS | TOKENS).items():
        (folder / name).write_bytes(content)
    (folder / "tokens.json").write_text("[[1, 2, 3, 1], [3, 2, 1, 2]]")
    _write_folders_and_links(folder)


def write_model(family: str, vocabulary: list[str], folder: Path) -> Path:
    """A model of a family with a tokenizer of whole words, the first of which is <s>."""
    model_of(family).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>").save_pretrained(folder)
    return folder


def _copy(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder / "good", folder / name))


def _write_damaged_models(folder: Path) -> None:
    for name, (file, content) in DAMAGED.items():
        (_copy(folder, name) / file).write_bytes(content)
    weights = (folder / "good/model.safetensors").read_bytes()
    (_copy(folder, "weights-cut") / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    tensors = load_file(folder / "good/model.safetensors")
    for name, changed in TENSORS.items():
        file = _copy(folder, name) / "model.safetensors"
        save_file(changed(tensors, min(tensors)), file, metadata={"format": "pt"})
    for name, content in TOKENIZERS.items():
        (_copy(folder, name) / "tokenizer.json").write_bytes(content)
    for file in _copy(folder, "no-tokenizer").glob("tokenizer*"):
        file.unlink()
    outside = RwkvConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2)
    RwkvForCausalLM(outside).save_pretrained(folder / "outside")
    (folder / "no-weights").mkdir()
    shutil.copy(folder / "good/config.json", folder / "no-weights")
    (_copy(folder, "weights-that-are-a-folder") / "model.safetensors").unlink()
    (folder / "weights-that-are-a-folder/model.safetensors").mkdir()
    for file in PIPED:
        pipe = _copy(folder, f"pipe-for-{file}") / file
        pipe.unlink()
        os.mkfifo(pipe)


def _write_folders_and_links(folder: Path) -> None:
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
