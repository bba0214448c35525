"""Studies whose processes, or whose cluster's workers, are killed in the middle of a run."""

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from forks import forked, forks
from refusals import refused
from sinkinterp._experiments.shared.rules import has_sink
from sinkinterp._experiments.shared.study import BASES, architecture, study

from sinkinterp.data.choices import Scale
from sinkinterp.runs.experiment import TRAINED, Scope, load_experiment
from sinkinterp.runs.workers import LOCAL, Here, Processes, Ray
from sinkinterp.table import MODEL, SEED, STATE

STEPS = 20
STUDY = study(
    claim="killed",
    arms=(architecture("softmax"), architecture("relu")),
    rules=(has_sink("softmax"),),
    bases={Scale.SMOKE: replace(BASES[Scale.SMOKE], steps=STEPS, save_every=5, watch_every=STEPS)},
)


def table(cache, workers):
    return STUDY.table(Scope(Scale.SMOKE, seeds=2, workers=workers, cache=cache))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table that nobody interrupts."""
    return table(tmp_path_factory.mktemp("whole"), Here())


def finished(cache):
    """The final checkpoints, and when they were written."""
    return {str(path): path.stat().st_mtime_ns for path in cache.glob(f"runs/*/step-*{STEPS}/model.safetensors")}


@forks
@pytest.mark.timeout(600)
def test_a_study_that_is_killed_goes_on_and_repeats_no_finished_run(tmp_path, whole):
    def study_with_two_workers():
        os.setsid()
        table(tmp_path / "cache", Processes(2))

    study = forked(study_with_two_workers)
    while not finished(tmp_path / "cache") and os.waitpid(study, os.WNOHANG) == (0, 0):
        time.sleep(0.05)
    os.kill(study, signal.SIGKILL)  # its workers get no signal
    os.waitpid(study, 0)
    assert ends(study)
    before = finished(tmp_path / "cache")
    assert 0 < len(before) <= 4
    assert table(tmp_path / "cache", Here()) == whole
    assert before.items() <= finished(tmp_path / "cache").items()


def ends(group, patience=60):
    """Whether all processes of a group end by themselves."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    return False


def test_a_worker_answers_and_one_that_the_system_kills_is_one_line():
    assert dict(Processes(1).results(abs, [-3, 5])) == {0: 3, 1: 5}
    refused(lambda: list(Processes(1).results(signal.raise_signal, [signal.SIGKILL])))


@dataclass(frozen=True)
class Dying(Ray):
    """A cluster on which the first worker that runs anything is killed while it trains."""

    marker: Path = Path()

    def results(self, function, arguments):
        return super().results(partial(_dies_once, function, self.marker), arguments)


def _dies_once(function, marker, argument):
    if not marker.exists():
        marker.touch()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        argument = replace(argument, steps=100_000)  # so that it is still training when it is killed
    return function(argument)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_of_two_nodes_makes_the_same_table_though_a_worker_is_killed(tmp_path, whole, monkeypatch):
    pytest.importorskip("ray", reason="Ray is an extra: make test-ray")
    import ray
    from ray.cluster_utils import Cluster

    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tests / "runs", tests, tests.parent))))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        workers = Dying(cluster.address, marker=tmp_path / "killed")
        made = table(tmp_path, workers)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert (tmp_path / "killed").exists() and made == whole
    assert [(row[MODEL], row[SEED]) for row in made.records() if row[STATE] == TRAINED] == [
        ("softmax", 0), ("relu", 0), ("softmax", 1), ("relu", 1),
    ]  # fmt: skip


def _killed_once_at_step_13(folder, recipe):
    """Trains a recipe, and writes down every step. The first worker that comes to step 13 is killed."""
    from sinkinterp.runs.trained import trained
    from sinkinterp.train import loop

    plain = loop.update

    def update(job, step, *rest):
        with (folder / f"steps-{recipe.seed}").open("a") as file:
            file.write(f"{step}\n")
        if step == 13 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(job, step, *rest)

    loop.update = update
    try:
        return trained(recipe, folder).history().records()[-1]["step"]
    finally:
        loop.update = plain


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_killed_worker_of_local_ray_loses_its_last_steps_only(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is an extra: make test-ray")
    import ray

    tests = Path(__file__).parents[1]
    paths = [*map(str, (tests / "runs", tests, tests.parent)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    base = replace(BASES[Scale.SMOKE], steps=STEPS, save_every=5, watch_every=STEPS)
    recipes = [replace(base, seed=seed) for seed in range(3)]
    try:
        results = dict(Ray(LOCAL, gpus=1).results(partial(_killed_once_at_step_13, tmp_path), recipes))
        at_once = ray.cluster_resources()["CPU"]
    finally:
        ray.shutdown()
    assert results == dict.fromkeys(range(3), STEPS) and at_once == (torch.cuda.device_count() or 2)
    steps = [[int(line) for line in (tmp_path / f"steps-{seed}").read_text().split()] for seed in range(3)]
    whole = [*range(1, STEPS + 1)]
    assert sorted(steps) == sorted([[*range(1, 14), *range(11, STEPS + 1)], whole, whole])


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_models_are_measured_on_ray_as_they_are_here(monkeypatch):
    """Functions of an experiment travel, though its module has no name that a worker could import."""
    pytest.importorskip("ray", reason="Ray is an extra: make test-ray")
    import ray

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
    models = ["sinkinterp/demo-softmax", "sinkinterp/text-softmax"]
    experiment = load_experiment("figure03_thresholds")
    made = []
    try:
        for workers in (Here(), Ray(LOCAL)):
            made.append(experiment.table(Scope(Scale.SMOKE, models, measurers=workers)).records())
        refused(lambda: experiment.table(Scope(Scale.SMOKE, ["sinkinterp/nowhere"], measurers=Ray(LOCAL))), "nowhere")
    finally:
        ray.shutdown()
    rows, same_rows = made
    assert rows == same_rows and {row[MODEL] for row in rows} == set(models)


def test_a_cluster_that_is_not_there_is_one_line():
    pytest.importorskip("ray", reason="Ray is an extra: make test-ray")
    refused(lambda: list(Ray("127.0.0.1:1").results(str, [1])), "Ray")


def test_ray_that_is_not_installed_is_one_line_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(lambda: Ray(LOCAL), "pip install ray")
