"""What is pushed to a Hub is read back from it, bit for bit, with a card that the Hub's own reader understands."""

import json
import subprocess
import sys

import pytest
from hub.loopback import Hub, environment_of
from huggingface_hub import ModelCard
from refusals import refused
from transformers import LlamaConfig, LlamaForCausalLM

from sinkinterp import files
from sinkinterp.backends import adapters
from sinkinterp.backends.adapters import SlotsAlone, fingerprint, write_adapter
from sinkinterp.backends.named_models import SHIPPED
from sinkinterp.train.checkpoint import push

PUSH = """
import json, sys
from pathlib import Path
import torch
import sinkinterp as si
from sinkinterp.applications.mend import Mended, MendRecipe
from sinkinterp.runs.trained import Run
from sinkinterp.train.recipe import recipe_in

base, adapter, twin = sys.argv[1:]
last = {"alpha_1": 0.1, "alpha_1_uniform": 0.2, "sink_1": 0.0, "step": 0}
Mended(MendRecipe(model=base), Path(adapter), None, [last]).push_to_hub("team/mended")
Run(recipe_in(Path(twin)), Path(twin)).push_to_hub("team/twin")
tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
for pushed, folder in (("team/mended", adapter), ("team/twin", twin)):
    assert si.load(pushed).run(tokens).logits.equal(si.load(folder).run(tokens).logits), pushed
"""


def test_an_adapter_and_a_run_are_read_back_from_the_hub(tmp_path):
    base, adapter, twin = tmp_path / "base", tmp_path / "adapter", SHIPPED / "demo-softmax"
    sizes = {"hidden_size": 24, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, max_position_embeddings=64, **sizes))
    model.save_pretrained(base)
    of = {"run": "of this test", "step": 0, "base": fingerprint(model)}
    slots = adapters.AddedLogit(first=0.5)
    adapters.add_slots(model, slots)
    SlotsAlone().prepare(model)
    files.write_sealed(adapter, of, lambda draft: write_adapter(draft, model, slots, SlotsAlone(), str(base), of))
    served = {f"team/{name}": tmp_path / "hub" / name for name in ("mended", "twin")}
    for folder in served.values():
        folder.mkdir(parents=True)
    command = [sys.executable, "-c", PUSH, *map(str, (base, adapter, twin))]
    with Hub(served).serving() as address:
        environment = environment_of(address, tmp_path / "hf", HF_TOKEN="hf_x")
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    for folder, own in zip(served.values(), (adapter, twin), strict=True):
        assert all((folder / file.name).read_bytes() == file.read_bytes() for file in own.iterdir() if file.is_file())
        card = ModelCard.load(folder / "README.md")
        assert card.data.library_name == "sinkinterp" and "base_model" not in card.data.to_dict()
        json.loads(card.text.partition("```json")[2].partition("```")[0])


def test_a_damaged_folder_is_not_pushed_and_without_a_hub_it_is_one_line(tmp_path):
    (tmp_path / "file").write_text("a")
    files.seal(tmp_path)
    refused(lambda: push(tmp_path, "team/x", "card", True), "team/x")  # offline
    (tmp_path / "file").write_text("b")
    with pytest.raises(files.Damaged):
        push(tmp_path, "team/x", "card", True)
