"""Commands from the name of a model on the Hub to a verdict, against a Hub on the loopback interface."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from corpora import byte_tokenizer
from datasets import Dataset
from hub.loopback import Hub, environment_of

from sinkinterp._experiments import load_module
from sinkinterp.data.choices import Scale

pytestmark = pytest.mark.timeout(300)
BYTES, EOS = 256, "<|endoftext|>"
SIZES = {
    "vocab_size": BYTES + 1, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12, "max_position_embeddings": 64, "bos_token_id": BYTES,
    "eos_token_id": BYTES, "pad_token_id": None,
}  # fmt: skip
GPT2 = {"vocab_size": BYTES + 1, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 64}
CONFIGS = {
    "gpt2": transformers.GPT2Config(**GPT2, bos_token_id=BYTES, eos_token_id=BYTES),
    "llama": transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "opt": transformers.OPTConfig(**SIZES, ffn_dim=12, word_embed_proj_dim=24),
    "pythia": transformers.GPTNeoXConfig(**SIZES),
    "jamba": transformers.JambaConfig(
        **SIZES, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False
    ),
}
ADAPTER = "team/adapter"
XL, OPT, GATED, DATASET = "openai-community/gpt2-xl", "facebook/opt-125m", "meta-llama/Llama-2-70b-hf", "team/harbours"
TABLE_8 = load_module("figure04_scale_ladder").MODELS[Scale.PAPER]
TABLE_1 = load_module("table01_inputs").MODELS[Scale.PAPER]
FIGURE_9 = load_module("figure09_domains").MODELS[Scale.PAPER]
FIGURE_2 = load_module("figure02_norms_angles").MODELS[Scale.PAPER]
LADDER = [TABLE_8[i] for i in (0, 4, 13, 14, 20, 30)]  # each kind, and the largest Pythia beside the smallest
SHORTENED = {"figure04_scale_ladder", "figure19_heads"}  # of the models of Table 8
KINDS = {"openai-community": "gpt2", "EleutherAI": "pythia", "facebook": "opt", "ai21labs": "jamba"}  # by owner


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind of model, with random weights and a tokenizer whose tokens are bytes."""
    parent = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(parent / name)
        byte_tokenizer(EOS, eos_token=EOS).save_pretrained(parent / name)
    (parent / "adapter").mkdir()
    (parent / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": XL}))
    old = shutil.copytree(parent / "opt", parent / "opt without safetensors")
    (old / "model.safetensors").rename(old / "pytorch_model.bin")  # it is not read
    data = parent / "harbours" / "data"
    data.mkdir(parents=True)
    texts = [
        f"In the year {i} the harbour of town {i * i} had a wall, {i % 7} towers and many ships." for i in range(99)
    ]
    Dataset.from_dict({"text": texts}).to_parquet(data / "train-00000-of-00001.parquet")
    (parent / "kinds").mkdir()
    for kind, rest in (("ships", "ships lay in the harbour, and each had "), ("sums", "+ 1 = 2, and 2 + 2 = 4, and ")):
        lines = (json.dumps({"text": f"{i} {rest * 3}"}) for i in range(101))
        (parent / "kinds" / f"{kind}.jsonl").write_text("\n".join(lines))
    return parent


@pytest.fixture(scope="module")
def hub(folders):
    served = {name: folders / KINDS.get(name.partition("/")[0], "llama") for name in (*TABLE_8, GATED)}
    served[OPT] = folders / "opt without safetensors"
    served[ADAPTER] = folders / "adapter"
    made = Hub(served, {DATASET: folders / "harbours"}, converted={OPT: folders / "opt"}, closed={GATED})
    with made.serving() as made.address:
        yield made


@pytest.fixture(scope="module")
def ask(hub, tmp_path_factory):
    """Runs a command in a process whose Hub is ours; returns its exit code and what it said."""
    place = tmp_path_factory.mktemp("user")
    environment = environment_of(hub.address, place / "hf", SINKINTERP_CACHE=str(place / "cache"), COLUMNS="300")
    command = [sys.executable, "-P", str(Path(__file__).with_name("commands.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=place, **pipes) as process:

        def answer(*words):
            print(json.dumps(words), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        answer.place = place
        yield answer
        process.stdin.close()
        process.wait(timeout=30)


def test_a_model_of_the_hub_is_loaded_by_its_name(ask, folders):
    answer = ask("load", XL)
    assert answer["code"] == 0 and answer["said"] == XL
    logits = transformers.AutoModelForCausalLM.from_pretrained(folders / "gpt2")(torch.tensor(answer["tokens"])).logits
    assert answer["last"] == pytest.approx(logits[0, -1].tolist(), abs=1e-5)


def test_an_adapter_of_the_hub_is_checked_as_that_of_a_folder(ask):
    answer = ask("load", ADAPTER)
    refused = ("peft is not installed", "adapter_model.safetensors")
    assert answer["code"] == 2 and any(words in answer["said"] for words in refused)


@pytest.mark.parametrize(
    ("name", "verdicts", "models"),
    [
        ("table07_position_swap", 5, (XL, "openai-community/gpt2", OPT)),
        ("table01_inputs", 4, TABLE_1),
        ("figure02_norms_angles", 5, FIGURE_2),
        ("figure03_thresholds", 2, (XL, TABLE_1[1], TABLE_1[3], TABLE_1[7])),
        ("figure04_scale_ladder", 2, LADDER),
        ("figure09_domains", 3, FIGURE_9),
        ("figure19_heads", 1, TABLE_8[:2]),
        ("gpt2_circuit", 4, ("openai-community/gpt2", "openai-community/gpt2-medium", "openai-community/gpt2-large")),
    ],
)
def test_an_experiment_goes_from_names_of_the_hub_to_verdicts(ask, folders, name, verdicts, models):
    chosen = [word for model in models for word in ("--model", model)] if name in SHORTENED else []
    text = str(folders / "kinds") if name == "figure09_domains" else f"hub:{DATASET}"
    answer = ask("reproduce", name, "--scale", "paper", "--text", text, "--out", "book", *chosen)
    assert answer["code"] == 0, answer["said"]
    chapter = json.loads((ask.place / "book" / f"{name}{'' if chosen else '_paper'}.json").read_text())
    assert list(dict.fromkeys(row["model"] for row in chapter["rows"])) == list(models)
    assert len(chapter["verdicts"]) == verdicts and text.removeprefix("hub:") in json.dumps(chapter)


def test_a_model_is_trained_on_a_streamed_dataset(ask):
    answer = ask(
        "train", "softmax", "--text", f"hub:{DATASET}", "--set", "steps=2", "--set", "batch=4", "--device", "cpu"
    )
    assert answer["code"] == 0, answer["said"]


def test_a_model_that_is_closed_to_the_user_is_one_line(ask):
    answer = ask("load", GATED)
    assert answer["code"] == 2 and "gated" in answer["said"].lower() and "\n" not in answer["said"]


def test_a_name_that_the_hub_does_not_know_is_one_line(ask):
    for words in (("load", "nobody/nothing"), ("measure", XL, "--text", "hub:nobody/texts")):
        answer = ask(*words)
        assert answer["code"] == 2 and "nobody/" in answer["said"], words


def test_a_download_that_breaks_off_leaves_nothing_and_can_be_repeated(ask, hub):
    name = "EleutherAI/pythia-1b-deduped"
    hub.models[name], hub.cut[f"{name}/model.safetensors"] = hub.models["EleutherAI/pythia-1b"], 1000
    broken = ask("load", name)
    assert broken["code"] == 2 and f"cannot load {name}" in broken["said"]
    hub.cut.clear()
    assert ask("load", name)["code"] == 0
