import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from sinkinterp.attention.masks import Causal
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.loop import accumulate, job_of, update
from sinkinterp.train.recipe import PrefixLM, Recipe, parameter_groups

RECIPE = Recipe(model=VARIANTS["k_bias"], steps=24, batch=7, warmup=5, watch_every=6, save_every=6)
SHALLOW = replace(RECIPE, model=replace(RECIPE.model, n_layers=1))  # which is compiled in less time


def evaluate(model):
    return {"head": model.lm_head.weight.sum().item()}


def train(recipe, run, on_step=lambda step, metrics: None):
    """The folder of the last checkpoint."""
    return loop.train(job_of(recipe, recipe.data, evaluate), run, on_step)


def files(folder):
    tensors = load_file(folder / "model.safetensors") | load_file(folder / "optimizer.safetensors")
    return tensors, (folder / "history.json").read_text()


def assert_same(left, right):
    (a, history_a), (b, history_b) = files(left), files(right)
    assert a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
    assert history_a == history_b


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The last checkpoint of a run that nothing interrupts."""
    return train(RECIPE, tmp_path_factory.mktemp("whole"))


def test_two_trainings_of_one_recipe_are_bitwise_equal_and_another_seed_gives_another_model(tmp_path, whole):
    threads = torch.get_num_threads()
    assert_same(train(RECIPE, tmp_path / "again"), whole)
    other = files(train(replace(RECIPE, seed=1), tmp_path / "other"))[0]
    assert not other["lm_head.weight"].equal(files(whole)[0]["lm_head.weight"])
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_the_step_that_it_came_in(tmp_path, whole, signal_number):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def interrupt(step, metrics):
        if step == 8:
            os.kill(os.getpid(), signal_number)

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, tmp_path / "cut", interrupt)
    assert checkpoint.latest(tmp_path / "cut") == 9
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert_same(train(RECIPE, tmp_path / "cut"), whole)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_ignored_stays_ignored(tmp_path, signal_number):
    signal.signal(signal_number, signal.SIG_IGN)  # what nohup and many CI runners do with SIGINT
    done = train(RECIPE, tmp_path / "run", lambda step, metrics: os.kill(os.getpid(), signal_number))
    assert checkpoint.latest(done.parent) == 24 and signal.getsignal(signal_number) is signal.SIG_IGN


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_stops_at_once(tmp_path):
    def twice(step, metrics):
        deferring = signal.getsignal(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        while signal.getsignal(signal.SIGINT) is deferring:  # two signals at once would be seen as one
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10_000):  # one long sleep would not be cut short where another thread caught the signal
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        train(RECIPE, tmp_path, twice)
    assert checkpoint.latest(tmp_path) == 0


def test_training_off_the_main_thread_works(tmp_path):
    folder = []
    thread = threading.Thread(target=lambda: folder.append(train(replace(RECIPE, steps=6), tmp_path)))
    thread.start()
    thread.join()
    assert folder == [checkpoint.folder_of(tmp_path, 6)]


def test_another_recipe_in_the_folder_is_refused_by_the_keys_that_differ(tmp_path):
    train(replace(RECIPE, steps=6), tmp_path)
    other = replace(RECIPE, lr=0.5, model=replace(RECIPE.model, n_layers=2))
    said = "lr is 0.02 there, 0.5 here", "model.n_layers is 1 there, 2 here", "steps is 6 there, 24 here"
    assert "vocab" not in refused(lambda: train(other, tmp_path), *said)
    assert checkpoint.latest(tmp_path) == 6


def test_a_kill_before_an_old_checkpoint_is_removed_leaves_two_after_the_next_start(tmp_path, monkeypatch):
    def killed(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("sinkinterp.files.remove_whole", killed)
        train(RECIPE, tmp_path)
    assert checkpoint.steps_in(tmp_path) == [6, 12, 18]
    train(RECIPE, tmp_path)
    assert checkpoint.steps_in(tmp_path) == [18, 24]
    shutil.copytree(checkpoint.folder_of(tmp_path, 18), checkpoint.folder_of(tmp_path, 6))  # as a kill at the end does
    train(RECIPE, tmp_path)
    assert checkpoint.steps_in(tmp_path) == [18, 24]


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_half_of_it(tmp_path, whole, monkeypatch):
    def killed(folder, ignore_errors):
        (folder / "config.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", killed)
        train(RECIPE, tmp_path / "cut")
    assert checkpoint.latest(tmp_path / "cut") == 18 and len(list((tmp_path / "cut").glob(".draft-*"))) == 1
    assert sorted(p.name for p in (tmp_path / "cut").glob("step-*")) == ["step-0000012", "step-0000018"]
    assert_same(train(RECIPE, tmp_path / "cut"), whole)
    assert not list((tmp_path / "cut").glob(".draft-*"))


def test_a_finished_run_has_two_checkpoints_and_a_reading_per_interval_and_is_not_trained_again(whole):
    assert sorted(p.name for p in whole.parent.glob("*") if p.is_dir()) == ["step-0000018", "step-0000024"]
    assert [row["step"] for row in checkpoint.history_of(whole)] == [0, 6, 12, 18, 24]
    before, steps = os.stat(whole / "model.safetensors").st_mtime_ns, []
    assert train(RECIPE, whole.parent, lambda step, metrics: steps.append(step)) == whole
    assert not steps and os.stat(whole / "model.safetensors").st_mtime_ns == before


def poison(part, monkeypatch):
    if part == "gradient":
        clip = torch.nn.utils.clip_grad_norm_
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda p, limit: clip(p, limit) * float("inf"))
    else:
        monkeypatch.setattr("sinkinterp.train.loop._targets", lambda batch: float("nan"))


@pytest.mark.parametrize(("part", "message"), [("gradient", "gradient norm is inf"), ("loss", "loss is nan")])
def test_a_number_that_is_not_finite_stops_the_run_before_the_step(tmp_path, monkeypatch, part, message):
    recipe = replace(RECIPE, micro_batch=5)  # pieces are weighted by their targets
    job = job_of(recipe, recipe.data, evaluate)

    def batch(step):
        if step == 9:
            poison(part, monkeypatch)
        return job.batch(step)

    run = partial(loop.train, replace(job, batch=batch), tmp_path)
    refused(run, f"the {message} at step 9; lower lr", "checkpoints")
    assert checkpoint.latest(tmp_path) == 6
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "step-0000006/model.safetensors").values())


def updated(recipe):
    """The model after one update, and the metrics of that step."""
    model = build(recipe.model)
    optimizer = torch.optim.AdamW(parameter_groups(model, recipe.decay, recipe.weight_decay), betas=(0.9, 0.95))
    return model, update(job_of(recipe, recipe.data, evaluate), 1, model, optimizer)


def with_dropout_and_an_idle_parameter():
    model = build(RECIPE.model, 0)
    model.extra = torch.nn.Parameter(torch.ones(3))

    def drop(module, args, output):
        output.last_hidden_state = torch.nn.functional.dropout(output.last_hidden_state, 0.3, module.training)

    model.model.register_forward_hook(drop)
    return model


@pytest.mark.usefixtures("interruptible")
def test_a_model_with_dropout_and_an_idle_parameter_ends_the_same_whatever_was_drawn_and_wherever_it_stopped(tmp_path):
    def train_of(run, seed, stop=None):
        torch.manual_seed(seed)
        job = replace(job_of(RECIPE, RECIPE.data, evaluate), start=with_dropout_and_an_idle_parameter)
        return loop.train(job, run, lambda step, metrics: step == stop and os.kill(os.getpid(), signal.SIGINT))

    whole = train_of(tmp_path / "whole", 1)
    with pytest.raises(KeyboardInterrupt):
        train_of(tmp_path / "cut", 2, stop=7)
    assert_same(whole, train_of(tmp_path / "cut", 3))
    plain, dropped = (load_file(folder / "model.safetensors") for folder in (train(RECIPE, tmp_path / "plain"), whole))
    assert not all(tensor.equal(dropped[name]) for name, tensor in plain.items())


def test_the_first_update_is_adamw_worked_by_hand():
    recipe = replace(RECIPE, clip=1e9, warmup=1, weight_decay=0.5)
    (model, metrics), oracle = updated(recipe), build(recipe.model)
    tokens = recipe.data.sample(recipe.batch, recipe.seed, 1)
    loss = oracle(tokens, labels=tokens).loss
    loss.backward()
    weight, lr = oracle.lm_head.weight, recipe.rate(1)
    want = weight * (1 - lr * 0.5) - lr * weight.grad / (weight.grad.abs() + 1e-8)
    torch.testing.assert_close(model.lm_head.weight, want)
    norm = sum(p.grad.square().sum() for p in oracle.parameters() if p.requires_grad).sqrt().item()
    assert metrics == {"train_loss": loss.item(), "grad_norm": pytest.approx(norm), "lr": lr, "tokens": 7 * 16}


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 7, 100])
def test_pieces_of_a_batch_add_up_to_its_gradient(micro_batch):
    recipe = replace(RECIPE, objective=PrefixLM(3))
    whole, metrics = updated(recipe)
    pieces, their_metrics = updated(replace(recipe, micro_batch=micro_batch))
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(parameter.grad, dict(pieces.named_parameters())[name].grad)
    assert their_metrics == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize("predicted", [(2, 9, 16), (0, 16, 16), (16, 16, 0), (0, 0, 16)])
def test_pieces_with_unequal_numbers_of_targets_weigh_by_them_and_one_that_predicts_nothing_adds_nothing(predicted):
    recipe = replace(RECIPE, batch=3, micro_batch=1, clip=1e9)
    tokens = recipe.data.sample(3, "unequal")
    labels = tokens.where(torch.arange(16) < torch.tensor(predicted)[:, None], -100)
    job = replace(job_of(recipe, recipe.data, evaluate), batch=lambda step: {"input_ids": tokens, "labels": labels})
    model, oracle = build(recipe.model), build(recipe.model)
    want = oracle(tokens, labels=labels).loss
    want.backward()
    torch.testing.assert_close(accumulate(job, job.batch(1), model), want.detach())
    torch.testing.assert_close(model.lm_head.weight.grad, oracle.lm_head.weight.grad)


def test_a_batch_that_predicts_nothing_is_refused():
    tokens = RECIPE.data.sample(3, "unequal")
    batch = {"input_ids": tokens, "labels": torch.full_like(tokens, -100)}
    job = job_of(RECIPE, RECIPE.data, evaluate)
    refused(lambda: accumulate(job, batch, build(RECIPE.model)), "predicted")


def test_bf16_computes_nearby_and_keeps_weights_in_fp32():
    recipe = replace(RECIPE, clip=1e9)
    (model, metrics), (_, exact) = updated(replace(recipe, bf16=True)), updated(recipe)
    assert metrics["train_loss"] != exact["train_loss"]
    assert metrics["train_loss"] == pytest.approx(exact["train_loss"], rel=1e-2)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_task_that_does_not_fit_the_model_is_refused():
    refused(lambda: Recipe(model=replace(VARIANTS["softmax"], vocab=65)), "use model.vocab=64")
    refused(lambda: Recipe(data=Causal()), "Causal()")


def test_training_computes_on_its_number_of_threads_and_leaves_that_of_others(tmp_path):
    with loop.threads(3):
        for count in (1, 2):
            inside, recipe = [], replace(RECIPE, steps=2, threads=count)
            train(recipe, tmp_path / str(count), lambda *_, to=inside: to.append(torch.get_num_threads()))
            assert inside == 2 * [count] and torch.get_num_threads() == 3


def test_a_loss_that_is_not_finite_before_any_step_blames_no_learning_rate(tmp_path):
    check = partial(loop._check_finite, loss=float("nan"), norm=1.0, fit=Recipe())
    assert "lr" not in refused(partial(check, 1), "weights")
    refused(partial(check, 2), "lower lr")


@pytest.fixture
def compiled_by(as_users_run_it, monkeypatch):
    """Compiles with a backend; afterwards nothing compiled is left."""
    compiling = torch.compile

    yield lambda backend: monkeypatch.setattr(torch, "compile", lambda module: compiling(module, backend=backend))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, while it traces
def test_a_compiled_training_has_the_losses_of_a_plain_one_to_rounding(tmp_path, compiled_by):
    graphs = []
    compiled_by(lambda graph, inputs: graphs.append(graph) or graph.forward)
    recipes = SHALLOW, replace(SHALLOW, compiled=True)
    plain, compiled = (checkpoint.history_of(train(recipe, tmp_path / recipe.key())) for recipe in recipes)
    assert graphs
    for one, other in zip(compiled, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_a_model_that_cannot_be_compiled_is_refused_in_a_line(tmp_path, compiled_by):
    def broken(graph, inputs):
        raise RuntimeError("there is no compiler here")

    compiled_by(broken)
    refused(lambda: train(replace(SHALLOW, compiled=True), tmp_path), "compiled=false")


def test_a_recipe_that_is_not_compiled_keeps_its_key():
    assert replace(RECIPE, compiled=False).key() == RECIPE.key() != replace(RECIPE, compiled=True).key()
    assert "compiled" not in RECIPE.to_dict()
