"""A model has one user at a time: threads answer as one thread does, and Ctrl-C at any line leaves it as it was."""

import copy
import math
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context

import pytest
import torch
from backends.zoo import model_of, tokens_of
from hypothesis import HealthCheck, given, settings, strategies as st

import sinkinterp as si
from sinkinterp.backends.exclusive import exclusive
from sinkinterp.interventions import ChangeMLP, ChangeResidual, Scale, ZeroKeyBias, ZeroQueryBias

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")
TOKENS = tokens_of()[:2, :7]
EDITS = ((), (ZeroKeyBias(),))


@pytest.fixture(scope="module")
def model():
    """With biases of keys, learned positions, and modules in either mode."""
    made = model_of("gpt2")
    made.train()
    for part in made.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    made.get_decoder().h[0].eval()
    return made


@pytest.fixture(scope="module")
def subject(model):
    return si.load(model)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine, the second Ctrl-C comes soon after the first."""
    monkeypatch.setattr("sinkinterp.backends.exclusive.PATIENCE", math.inf)


def state_of(model):
    """All that a user could find changed in a model."""
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    modes = [module.training for module in model.modules()]
    weights = [value.numpy().tobytes() for value in model.state_dict().values()]
    return hooks, modes, getattr(getattr(model, "config", None), "_attn_implementation", None), weights


def measured(subject, edits):
    return subject.run(TOKENS, edits=edits).logits


@torch.no_grad()
def patched(model, edits):
    with si.patched(model, *(edits or (ChangeResidual(Scale(1.0)),))):
        return model(TOKENS).logits


def loaded(model, edits):
    return measured(si.load(model), edits)


def test_threads_inside_one_patched_block_take_turns(model):
    model = copy.deepcopy(model).eval()
    texts = [TOKENS.roll(i, 1) for i in range(8)]
    run = torch.no_grad()(lambda tokens: model(tokens).logits)
    with si.patched(model, ZeroQueryBias(layers=[1]), ChangeMLP(Scale(0.5), positions=[3])):
        expected = [run(text) for text in texts]
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(copy_context().run, run, text) for text in texts]
    for job, right in zip(jobs, expected, strict=True):
        torch.testing.assert_close(job.result(), right, rtol=0, atol=1e-6)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_ctrl_c_at_any_line_the_model_is_what_it_was(interruptible, model, subject, data):
    before, edits = state_of(model), data.draw(st.sampled_from(EDITS))
    way, on = data.draw(st.sampled_from(((measured, subject), (patched, model), (loaded, model))))
    lines = LINES.get((way, edits)) or LINES.setdefault((way, edits), lines_of(lambda: way(on, edits)))
    times = sorted(data.draw(st.sets(st.integers(0, lines), min_size=1, max_size=2)))
    with pytest.raises(KeyboardInterrupt):
        lines_of(lambda: way(on, edits), times)
        raise KeyboardInterrupt  # at its last lines, it may be over
    assert state_of(model) == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def taken(model):
    with exclusive(model):
        pass


def passed(model):
    with torch.no_grad():
        model(TOKENS)


@pytest.mark.parametrize(("way", "edits", "within", "least"), [
    (taken, (), "/backends/exclusive.py", 10),
    (passed, ZeroKeyBias(), "/backends/patched.py", 20),  # there, the end of `with` is a line too
])  # fmt: skip
def test_after_ctrl_c_at_any_line_other_threads_can_take_the_model(interruptible, model, way, edits, within, least):
    with si.patched(model, edits) if edits else nullcontext():
        lines = lines_of(lambda: way(model), within=within)
        assert lines > least
        for line in range(lines):
            with pytest.raises(KeyboardInterrupt):
                lines_of(lambda: way(model), [line], within=within)
                if way is passed:
                    raise KeyboardInterrupt  # it was held until the pass was over
            thread = threading.Thread(target=taken, args=(model,), daemon=True)
            thread.start()
            thread.join(30)
            assert not thread.is_alive(), line


def test_ctrl_c_ends_the_wait_for_a_model_that_another_thread_holds(interruptible, model):
    taken, done = threading.Event(), threading.Event()

    def hold():
        with exclusive(model):
            taken.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(30)
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    try:
        with pytest.raises(KeyboardInterrupt), exclusive(model):
            pass
    finally:
        done.set()
        thread.join()


def test_a_second_ctrl_c_ends_what_takes_too_long(interruptible, model, monkeypatch):
    for patience, seen in ((math.inf, 2), (-1.0, 1)):
        monkeypatch.setattr("sinkinterp.backends.exclusive.PATIENCE", patience)
        inside = []
        with pytest.raises(KeyboardInterrupt), exclusive(model):
            signal.raise_signal(signal.SIGINT)
            inside.append("after one")
            signal.raise_signal(signal.SIGINT)
            inside.append("after two")
        assert len(inside) == seen
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LINES = {}


def lines_of(work, interrupts=(), within="/sinkinterp/backends/"):
    """How many lines of those files `work` runs; Ctrl-C comes before those that `interrupts` counts."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if within not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count - 1 in interrupts:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
