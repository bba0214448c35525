"""SinkCallback: what it says is what `measure` says, and the training does not feel it."""

from functools import partial

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import VOCAB, model_of, subject_of, tokens_of
from lm.family import SPECS
from refusals import refused
from torch import nn
from transformers import AttentionInterface, Trainer, TrainerCallback, TrainingArguments

import sinkinterp as si
from sinkinterp.attention import sites
from sinkinterp.interventions import Change, SetTo
from sinkinterp.lm.model import build
from sinkinterp.measurement.watching import induction, induction_scores, uniform_induction
from sinkinterp.metrics import residuals
from sinkinterp.metrics.importance import above_controls, control_positions
from sinkinterp.metrics.metric import Metric

TOKENS = tokens_of()
ROWS = [{"input_ids": row, "labels": row} for row in torch.randint(VOCAB, (24, 11))]


class Reporter(TrainerCallback):
    """What tensorboard and wandb are told."""

    def __init__(self):
        self.told = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.told.append((state.global_step, dict(logs)))


def trainer_of(folder, steps=6, **settings):
    """A Trainer of a model with dropout."""
    model = model_of("gpt2")
    chosen = {"save_steps": 4, "per_device_train_batch_size": 5, "learning_rate": 1e-2, "report_to": []} | settings
    args = TrainingArguments(str(folder), max_steps=steps, use_cpu=True, disable_tqdm=True, **chosen)
    return Trainer(model, args, train_dataset=ROWS, callbacks=[Reporter()])


def watched(trainer, every=1, **settings):
    trainer.add_callback(si.SinkCallback(TOKENS, every, most=1.0, log=trainer.log, **settings))
    return trainer


def rows_of(trainer):
    return [row for row in trainer.state.log_history if "alpha_1" in row]


def same(a, b):
    return all(x.equal(b[name]) for name, x in a.items())


@pytest.mark.parametrize("bf16", [False, True])
def test_a_run_of_the_trainer_ends_bit_for_bit_as_one_that_nobody_watches(tmp_path, bf16):
    ends = []
    for trainer in (trainer_of(tmp_path / "a", bf16=bf16), watched(trainer_of(tmp_path / "b", bf16=bf16))):
        torch.manual_seed(1)
        trainer.train()
        ends.append((trainer.model.state_dict(), torch.get_rng_state()))
    assert same(ends[0][0], ends[1][0]) and ends[0][1].equal(ends[1][1])
    assert [row["step"] for row in rows_of(trainer)] == [0, 1, 2, 3, 4, 5, 6]


def test_the_numbers_are_those_of_a_measurement_and_reach_history_and_reporters(tmp_path):
    trainer = watched(trainer_of(tmp_path), every=3, epsilon=0.2)
    trainer.train()
    row = rows_of(trainer)[-1]
    peak = Metric("peak", sites.RESIDUAL, residuals.peak)
    report = si.measure(trainer.model.eval(), TOKENS, instruments=[(peak,)])
    excess = report.importance - report.null
    expected = {
        "alpha_1": report.alpha().mean().item(),
        "alpha_1_uniform": report.null_alpha().mean().item(),
        "sink_1": report.sink_rate(0, 0.2).mean,
        "sink_slot": 0.0,
        "norm_ratio": report.residual_ratio().mean(0).max().item(),
        "largest_entry": report.extra(peak).max().item(),
        "above_p99": above_controls(excess[..., control_positions(TOKENS.shape[1])]).mean().item(),
        "induction": induction_scores(si.load(trainer.model), 8, TOKENS.shape[1]).mean(0).max().item(),
    }
    assert row["step"] == 6 and {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert not {"sink_logit", "gate"} & set(row)
    told = trainer.callback_handler.callbacks[1].told
    assert [(step, logs["alpha_1"]) for step, logs in told if "alpha_1" in logs] == [
        (row["step"], row["alpha_1"]) for row in rows_of(trainer)
    ]


def test_a_resumed_run_has_the_history_of_one_that_was_never_stopped(tmp_path):
    whole, resumed = (watched(trainer_of(tmp_path), every=2) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert rows_of(resumed) == rows_of(whole) and [row["step"] for row in rows_of(whole)] == [0, 2, 4, 6]


def test_two_batches_in_one_training_keep_their_own_histories(tmp_path):
    def both(steps):
        trainer = trainer_of(tmp_path, steps)
        for name, tokens in (("a", TOKENS), ("", TOKENS[:1])):
            watched_by = si.SinkCallback(tokens, 2, most=1.0, name=name, log=trainer.log)
            trainer.add_callback(watched_by)
            yield trainer, watched_by

    (trainer, first), (_, second) = both(4)
    trainer.train()
    (trainer, again), (_, second_again) = both(6)
    trainer.train(resume_from_checkpoint=True)
    for early, late, alpha in ((first, again, "a/alpha_1"), (second, second_again, "alpha_1")):
        assert [row["step"] for row in late.history] == [0, 2, 4, 6]
        assert [row[alpha] for row in late.history[:3]] == [row[alpha] for row in early.history]
    assert [row["a/alpha_1"] for row in again.history] != [row["alpha_1"] for row in second_again.history]


def test_a_history_that_two_callbacks_without_names_wrote_is_refused(tmp_path):
    trainer = watched(watched(trainer_of(tmp_path, 4)))
    trainer.train()
    refused(lambda: watched(watched(trainer_of(tmp_path))).train(resume_from_checkpoint=True))


def test_without_a_log_the_numbers_join_the_history_and_a_reporter_is_not_forgotten_silently(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.add_callback(si.SinkCallback(TOKENS, 3, most=1.0))
    trainer.train()
    assert [(row["step"], row["epoch"] > 0) for row in rows_of(trainer)] == [(0, False), (3, True), (6, True)]
    trainer.args.report_to = ["wandb"]
    refused(
        lambda: trainer.callback_handler.callbacks[-1].on_train_begin(trainer.args, trainer.state, trainer.control),
        "trainer",
    )


def loss_of(model, tokens):
    logits = model(tokens)
    logits = getattr(logits, "logits", logits)
    logits = logits if isinstance(logits, torch.Tensor) else model(tokens, tokens)[0]
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("make", [lambda: model_of("opt"), NanoGPT], ids=["transformers", "a module of one's own"])
def test_a_loop_ends_bit_for_bit_as_one_that_nobody_watches(make):
    def run(watch):
        torch.manual_seed(2)
        model = make().train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for step in range(1, 6):
            optimizer.zero_grad()
            loss_of(model, TOKENS % 53).backward()
            optimizer.step()
            if watch is not None:
                assert (watch.step(model, step) is None) == (step % 2 == 1)
        return model.state_dict() | {f"{name}.grad": p.grad for name, p in model.named_parameters()}

    watch = si.SinkCallback(TOKENS % 53, every=2, most=1.0)
    assert same(run(None), run(watch)) and [row["step"] for row in watch.history] == [2, 4]
    assert len({row["alpha_1"] for row in watch.history}) == 2


def test_a_model_is_as_it_was_also_where_its_attention_cannot_be_read():
    def other(module, query, key, value, attention_mask, scaling=None, **kwargs):
        raise AssertionError("this attention cannot be read")

    AttentionInterface.register("of_no_base", other)
    model = model_of("llama").train()
    model.model.layers[1].eval()
    expected = si.SinkCallback(TOKENS, 1).step(model, 1)
    model.set_attn_implementation("of_no_base")
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()
    assert si.SinkCallback(TOKENS, 1).step(model, 1) == expected
    assert model.config._attn_implementation == "of_no_base" and random.equal(torch.get_rng_state())
    assert [module.training for module in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_accelerate_keeps_the_history_and_its_wrappers_are_looked_into(tmp_path):
    from accelerate import Accelerator

    accelerator, watch = Accelerator(cpu=True), si.SinkCallback(TOKENS, 1, most=1.0)
    model = accelerator.prepare(model_of("gpt2"))
    accelerator.register_for_checkpointing(watch)
    assert watch.step(torch.compile(model), 1) == watch.step(model, 2)
    accelerator.save_state(str(tmp_path))
    history, watch.history = watch.history, []
    accelerator.load_state(str(tmp_path))
    assert watch.history == history and [row["step"] for row in history] == [1, 2]


@torch.no_grad()
def test_gates_and_sink_logits_are_named_where_a_model_has_them():
    tokens = torch.randint(97, (1 + 2048 // 13, 13))  # two passes, of which the second has one sequence
    tokens[-1] = 5
    gated, logits = build(SPECS["gated"]), build(SPECS["sink_logit"])
    for logit, layer in zip((3.0, -1.0), logits.model.layers, strict=True):
        layer.self_attn.slots.logit.fill_(logit)
    x = gated.model(tokens, output_hidden_states=True).hidden_states
    values = [
        (layer.input_layernorm(x[i]) @ layer.self_attn.gate.gate_proj.weight.T).sigmoid().mean().item()
        for i, layer in enumerate(gated.model.layers)
    ]
    assert si.SinkCallback(tokens, 1).step(gated, 1)["gate"] == pytest.approx(sum(values) / 2, abs=1e-6)
    numbers = si.SinkCallback(tokens, 1).step(logits, 1)
    assert numbers["sink_logit"] == 1.0 and numbers["sink_slot"] > 0 and "gate" not in numbers


def test_measurements_that_would_take_too_large_a_share_of_the_time_are_left_out():
    model, always = model_of("gpt2"), si.SinkCallback(TOKENS, 2, most=1.0)
    never = si.SinkCallback(TOKENS, 2, most=1e-9)
    for step in range(1, 7):
        always.step(model, step), never.step(model, step)
    assert [row["step"] for row in always.history] == [2, 4, 6] and [row["step"] for row in never.history] == [2]


def test_another_model_is_loaded_anew_and_a_subject_is_taken_as_it_is():
    watch, models = si.SinkCallback(TOKENS, 1, most=1.0), [model_of("gpt2"), model_of("llama")]
    first, second = (watch.step(model, 1) for model in models)
    assert first != second and watch.step(si.load(models[0]), 3) == first


def test_arguments_that_do_not_fit_are_refused():
    refused(lambda: si.SinkCallback(TOKENS, 0))
    refused(lambda: si.SinkCallback(TOKENS, most=0.0), "most")
    refused(lambda: si.SinkCallback(TOKENS, epsilon=2.0), "epsilon")
    for junk in (3, object(), {"a": 1}, [], lambda: 1, b"x", model_of("gpt2"), [[1.5, 2.5]]):
        refused(partial(si.SinkCallback, junk))
    model = model_of("gpt2")
    refused(lambda: si.SinkCallback("a text", 1).step(model, 1))
    model.lm_head.weight.ds_id = 0
    refused(lambda: si.SinkCallback(TOKENS, 1).step(model, 1))


@pytest.mark.parametrize("name", ["gpt2", "llama with grouped queries", "gpt-oss with sink logits"])
@pytest.mark.parametrize("length", [8, 13])
def test_scores_are_those_of_the_whole_pattern(name, length):
    subject = subject_of(name)
    half = torch.randint(subject.shape.vocab, (3, length // 2), generator=torch.Generator().manual_seed(5))
    scores = induction_scores(subject, 3, length, seed=5)
    weights = si.attention_weights(subject, torch.cat((half, half), 1))  # sequence layer head query key
    h = length // 2
    expected = torch.stack([weights[..., i, i - h + 1] for i in range(h, 2 * h)]).mean(0)
    torch.testing.assert_close(scores, expected.float())


def test_uniform_attention_has_the_score_of_the_null():
    subject = subject_of("gpt2")
    half = torch.randint(subject.shape.vocab, (2, 5))
    metric, zero = Metric("induction", sites.CALL, induction), Change(sites.QUERIES, SetTo(0.0))
    scores = si.measure(subject, torch.cat((half, half), 1), edits=zero, instruments=[(metric,)]).extra(metric)
    torch.testing.assert_close(scores, torch.full_like(scores, uniform_induction(11)))
