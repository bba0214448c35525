import json
import os
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from sinkinterp.errors import InputError
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.recipe import Recipe
from sinkinterp.train.world import World, joined

RECIPE = Recipe(model=VARIANTS["k_bias"], steps=11, batch=14, micro_batch=3, warmup=5, watch_every=1, save_every=4)
TRAIN = """
import json, sys
from pathlib import Path
from sinkinterp.train import loop
from sinkinterp.train.recipe import Recipe
from sinkinterp.train.world import joined
recipe, run = Recipe.from_dict(json.loads(sys.argv[1])), Path(sys.argv[2])

def stop(step, latest):
    if step == 6 and world.rank == 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)

with joined() as world:
    try:
        loop.train(recipe, run, lambda model: {}, stop, world=world)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    loop.train(recipe, run, lambda model: {}, world=world)
"""


def test_two_processes_have_the_losses_of_one_and_stop_together(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-c", TRAIN, json.dumps(RECIPE.to_dict()), str(tmp_path / "two")]
    both = [
        subprocess.Popen(command, env=os.environ | place | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [process.communicate(timeout=120)[0] for process in both] == ["stopped\n", "stopped\n"]
    two = checkpoint.history_of(checkpoint.folder_of(tmp_path / "two", RECIPE.steps))
    one = checkpoint.history_of(loop.train(RECIPE, tmp_path / "one", lambda model: {}))
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(12))
    for mine, theirs in zip(one[1:], two[1:], strict=True):
        assert theirs["train_loss"] == pytest.approx(mine["train_loss"], abs=1e-6)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-5)


def test_the_parts_of_a_batch_are_the_batch():
    batch = {"input_ids": torch.arange(42).view(6, 7)}
    parts = [World(rank=rank, size=3).share(batch)["input_ids"] for rank in range(3)]
    assert all(part.shape == (2, 7) for part in parts) and torch.cat(parts).equal(batch["input_ids"])


def test_processes_that_cannot_share_a_batch_say_so(tmp_path):
    with pytest.raises(InputError, match="3 processes cannot share 14 sequences; set batch to a multiple"):
        loop.train(RECIPE, tmp_path, lambda model: {}, world=World(rank=1, size=3))


def test_alone_there_is_one_world():
    with joined() as world:
        assert world == World() and world.is_first and world.agreed(5) == 5 and world.summed(2.0, 3.0) == [2.0, 3.0]
    with joined("auto") as world:
        assert world.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"no device '{device}' here"), joined(device):
        pass


def test_a_batch_of_many_pieces_is_the_same_recipe_but_another_key():
    assert replace(RECIPE, micro_batch=4).key() != RECIPE.key()
