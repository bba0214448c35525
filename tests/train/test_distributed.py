import os
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch._dynamo  # what optimisers import when they first run
from forks import ended, forked, forks
from refusals import refused
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sinkinterp.checks import InputError
from sinkinterp.cli.main import app
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, distributed, loop
from sinkinterp.train.distributed import World, joined
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

pytestmark = pytest.mark.timeout(600)  # several processes, which import everything
RECIPE = Recipe(model=VARIANTS["k_bias"], steps=11, batch=14, micro_batch=3, warmup=5, watch_every=1, save_every=4)
TOKENS = Recipe().data.sample(3, "token_set")


def evaluate(model):
    return {"loss": model(TOKENS, labels=TOKENS).loss.item()}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def trained(recipe, run, stop_at):
    """Trains as one of the processes that the environment describes; the exit code."""

    def stop(step, metrics):
        if step == stop_at and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGINT)

    with joined() as world:
        try:
            loop.train(job_of(recipe, recipe.data, evaluate, world), run, stop)
        except KeyboardInterrupt:
            return 130
    return 0


def codes_of(recipe, run, size, stop_at):
    """The exit codes of processes that train a run; the last is interrupted in the step after `stop_at`: 130 then."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(size)}

    def work(rank):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started with it ignored
        os.environ.update(place | {"RANK": str(rank)})
        os._exit(trained(recipe, run, stop_at))

    return [*map(ended, [forked(partial(work, rank)) for rank in range(size)])]


def assert_same_losses(run, other, steps):
    """Two runs have one history, to 2e-6 nats."""
    ours, theirs = (checkpoint.history_of(checkpoint.folder_of(where, steps)) for where in (run, other))
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == list(range(steps + 1))
    assert ours[0]["loss"] == theirs[0]["loss"]
    for mine, yours in zip(ours[1:], theirs[1:], strict=True):
        assert yours["train_loss"] == pytest.approx(mine["train_loss"], abs=2e-6)
        assert yours["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-5)
        assert yours["loss"] == pytest.approx(mine["loss"], abs=2e-6)


@forks
def test_two_processes_have_the_losses_of_one_stop_together_and_go_on_from_one(tmp_path):
    stages = [codes_of(RECIPE, tmp_path / "two", *stage) for stage in ((2, 6), (1, 8), (2, 0))]
    assert stages == [[130, 130], [130], [0, 0]]
    loop.train(job_of(RECIPE, RECIPE.data, evaluate), tmp_path / "one")
    assert_same_losses(tmp_path / "one", tmp_path / "two", RECIPE.steps)


def exit_code_of(words):
    with pytest.raises(SystemExit) as end:
        app(words)
    sys.stdout.flush()
    return int(end.value.code or 0)


@forks
def test_the_command_runs_in_every_process_that_a_launcher_starts_and_speaks_once(tmp_path, capfd):
    """The launcher is torchrun's own, which forks here and so imports nothing again."""
    words = ["train", "k_bias", "--set", "steps=3", "--set", "batch=14", "--device", "cpu", "--out", f"{tmp_path}/run"]
    port = f"127.0.0.1:{free_port()}"
    where = {"rdzv_backend": "static", "rdzv_endpoint": port, "rdzv_configs": {"rank": 0}, "start_method": "fork"}
    launch = elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, **where), exit_code_of)
    assert launch(words) == {0: 0, 1: 0}
    assert capfd.readouterr().out.count("trained:") == 1
    assert checkpoint.latest(tmp_path / "run") == 3


def test_the_parts_of_a_batch_are_the_batch():
    batch = {"input_ids": torch.arange(42).view(6, 7)}
    parts = [World(rank=rank, size=3).part(batch)["input_ids"] for rank in range(3)]
    assert all(part.shape == (2, 7) for part in parts) and torch.cat(parts).equal(batch["input_ids"])


def test_processes_that_cannot_share_a_batch_say_so_and_other_pieces_are_another_key(tmp_path):
    job = job_of(RECIPE, RECIPE.data, evaluate, World(rank=1, size=3))
    refused(lambda: loop.train(job, tmp_path))
    assert replace(RECIPE, micro_batch=4).key() != RECIPE.key()


def test_a_launcher_that_started_fewer_processes_than_asked_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with joined() as world:
        assert world == World()
    monkeypatch.setenv("MASTER_PORT", "29500")  # which accelerate sets for more than one process
    with pytest.raises(InputError, match="--multi_gpu"), joined():
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with joined() as world:
        assert world == World()


def test_a_launcher_that_shares_out_the_weights_is_refused(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "ACCELERATE_USE_FSDP": "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"leave --use_fsdp out$"), joined():
        pass


def test_alone_there_is_one_world():
    with joined() as world:
        assert world == World() and world.is_first and world.summed(2.0, 3.0) == [2.0, 3.0]
    with joined("auto") as world:
        assert world.device.type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_device_that_is_not_there_is_refused(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"no device '{device}' here"), joined(device):
        pass


def test_gradients_of_all_pieces_but_the_last_stay_in_their_process_also_where_it_is_compiled(monkeypatch):
    class Wrapped(torch.nn.Module):
        no_sync = contextmanager(lambda self: iter(["alone"]))

    monkeypatch.setattr(distributed, "DistributedDataParallel", Wrapped)
    compiled = torch.nn.Module()
    compiled._orig_mod = Wrapped()
    for model in (Wrapped(), compiled):
        for enabled, entered in ((False, "alone"), (True, None)):
            with distributed.gradient_sync(model, enabled) as said:
                assert said == entered
