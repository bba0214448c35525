"""Blocks of `patched` overlap, in threads, tasks and forked processes; a pass sees those around it, and all end."""

import asyncio
import copy
import os
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from contextvars import Context
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from backends.own_modules import Litgpt
from backends.test_exclusive import lines_of, state_of
from backends.zoo import peaked
from hypothesis import HealthCheck, Phase, settings, stateful, strategies as st
from nnsight import NNsight
from refusals import refused
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.bridge import bridge_of
from sinkinterp.checks import InputError

pytestmark = pytest.mark.usefixtures("module_as_users_run_it")
TOKENS = torch.arange(1, 11).reshape(2, 5)  # 0 is padding
EDITS = (
    iv.SwapPositions(0, 3),
    iv.ZeroKeyBias(),
    iv.ChangeMLP(iv.Scale(0.5)),
    si.PatchNormalization(Sigmoid(), layers=[0]),
    iv.ChangeResidual(iv.Scale(2.0), positions=[2]),
)
WRONG = (iv.SwapPositions(0, 99), iv.ChangeMLP(iv.Zero(), layers=[77]), lambda call: None, lambda call: 1 / 0)
TINY = GPT2Config(vocab_size=17, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None)
EXAMPLES = int(os.environ.get("SINKINTERP_CONTEXTS", "100"))  # 20,000 once, where blocks change


def tiny():
    """Equal models, which share their configuration."""
    torch.manual_seed(0)
    return peaked(GPT2LMHeadModel(TINY)).eval()


@torch.no_grad()
def logits_of(model):
    output = model(TOKENS)
    return getattr(output, "logits", output)


def in_a_fork(work):
    """What a forked process makes of `work`, a text: its answer, or the exception that it raised."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer = str(work())
        except BaseException as error:
            answer = repr(error)
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def written_by(model):
    return model.generate(TOKENS, max_new_tokens=2, do_sample=False, pad_token_id=0)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


class Place:
    """A context in a thread of its own, or in the main one, as a task is."""

    def __init__(self, pool=None):
        self.context, self.pool = Context(), pool

    def __call__(self, work, *args):
        if self.pool is None:
            return self.context.run(work, *args)
        return self.pool.submit(self.context.run, work, *args).result(60)


class Contexts(stateful.RuleBasedStateMachine):
    """A model that three places load, measure, patch, run, interrupt, copy and fork, while its owner changes it."""

    blocks, places, one_edit = stateful.Bundle("blocks"), st.integers(0, 2), st.integers(0, len(EDITS) - 1)
    model, answers, apart = None, {}, {}  # for all examples: each leaves the model as it was

    def __init__(self):
        super().__init__()
        if Contexts.model is None:
            Contexts.model = tiny()
            Contexts.state, Contexts.subject = state_of(self.model), si.load(self.model)
        self.pool = ThreadPoolExecutor(3)
        self.at = [Place(ThreadPoolExecutor(1)), Place(), Place()]
        self.open = []  # the place, the edit and the exit of every open block, in the order of entering
        self.attention, self.is_set_inside = "sdpa", False

    def answer(self, edits, tokens=TOKENS):
        """The logits of an equal model with these edits, as they are measured where nothing is patched."""
        key = edits, self.model.dtype, str(tokens.tolist())
        if key not in self.answers:
            if key[1] not in self.apart:
                self.apart[key[1]] = si.load(tiny().to(key[1]))
            self.answers[key] = self.apart[key[1]].run(tokens, edits=edits).logits
        return self.answers[key]

    def edits_at(self, place):
        return tuple(edit for where, edit, _ in self.open if where is place)

    def check_pass(self, place, edits, run):
        """A pass of a place makes the edits of the blocks around it, or is refused."""
        if self.open and (self.is_set_inside or not edits):
            with pytest.raises(InputError, match="set it before" if edits else r"copy_context\(\)\.run"):
                place(run, self.model)
        else:
            assert_same(place(run, self.model), self.answer(edits))

    @stateful.initialize(target=blocks, entered=st.lists(st.tuples(places, one_edit), max_size=3))
    def begin(self, entered):
        return stateful.multiple(*(self.enter(*each) for each in entered))

    @stateful.precondition(lambda self: len(self.open) < 4)
    @stateful.rule(target=blocks, at=places, edit=one_edit)
    def enter(self, at, edit):
        block = ExitStack()
        self.at[at](block.enter_context, si.patched(self.model, EDITS[edit]))
        self.open.append((self.at[at], EDITS[edit], block))
        return self.open[-1]

    @stateful.rule(block=stateful.consumes(blocks), at=places)
    def leave(self, block, at):
        """In any order, from any place."""
        self.at[at](block[2].close)
        self.open.remove(block)
        self.is_set_inside &= bool(self.open)

    @stateful.rule(at=places)
    def run(self, at):
        self.check_pass(self.at[at], self.edits_at(self.at[at]), logits_of)

    @stateful.precondition(lambda self: not self.is_set_inside)
    @stateful.rule(at=places)
    def generate(self, at):
        if edits := self.edits_at(self.at[at]):
            tokens = self.at[at](written_by, self.model)
            for n in (5, 6):
                assert tokens[:, n].equal(self.answer(edits, tokens[:, :n])[:, -1].argmax(-1))

    @stateful.rule(at=places, edits=st.lists(one_edit, max_size=1))
    def measure(self, at, edits):
        edits = tuple(EDITS[edit] for edit in edits)
        work = partial(self.subject.run, TOKENS, edits=edits)
        if self.edits_at(self.at[at]):
            refused(lambda: self.at[at](work))
        else:
            assert_same(self.at[at](work).logits, self.answer(edits))

    @stateful.rule(at=places, wrong=st.sampled_from(WRONG))
    def run_and_measure_wrongly(self, at, wrong):
        for work in (partial(self.model, TOKENS + 10**6), partial(self.subject.run, TOKENS, edits=wrong)):
            with pytest.raises((InputError, IndexError, ZeroDivisionError)):
                self.at[at](work)

    @stateful.rule(at=st.integers(1, 2), line=st.integers(0, 1500))
    def interrupt(self, at, line):
        """Ctrl-C before a line of a pass, in a block or of a measurement."""
        edits, subject = self.edits_at(self.at[at]), self.subject
        pass_of = partial(logits_of, self.model) if edits else partial(subject.run, TOKENS)
        with pytest.raises((KeyboardInterrupt, InputError) if self.is_set_inside else KeyboardInterrupt):
            self.at[at](lines_of, pass_of, (line,))
            raise KeyboardInterrupt  # it was over before that line

    @stateful.rule(at=places)
    def load(self, at):
        if not self.edits_at(self.at[at]):
            assert_same(self.at[at](lambda: si.load(self.model).run(TOKENS).logits), self.answer(()))

    @stateful.precondition(lambda self: not self.is_set_inside)
    @stateful.rule(edits=st.tuples(*[one_edit] * 3))
    def all_at_once(self, edits):
        """Every place enters another block, runs inside and leaves, or measures, while the others do."""

        def work(place, edit):
            if not (edit or self.edits_at(place)):
                return self.subject.run(TOKENS, edits=[EDITS[edit]]).logits
            with si.patched(self.model, EDITS[edit]):
                return logits_of(self.model)

        jobs = [self.pool.submit(p.context.run, work, p, edit) for p, edit in zip(self.at, edits, strict=True)]
        for place, edit, job in zip(self.at, edits, jobs, strict=True):
            assert_same(job.result(60), self.answer((*self.edits_at(place), EDITS[edit])))

    @stateful.precondition(lambda self: not self.is_set_inside)
    @stateful.rule(edits=st.tuples(*[one_edit] * 3), turns=st.permutations(range(3)))
    def tasks(self, edits, turns):
        """Tasks of one loop enter one after the other, and leave in the order of their turns."""

        async def task(edit, turn):
            with si.patched(self.model, EDITS[edit]):
                for _ in range(turn + 1):
                    await asyncio.sleep(0)
                    assert_same(logits_of(self.model), self.answer((EDITS[edit],)))

        async def all_of_them():
            await asyncio.gather(*map(task, edits, turns))

        asyncio.run(all_of_them())

    @stateful.precondition(lambda self: self.open)
    @stateful.rule(at=places)
    def fork(self, at):
        """The process that is forked has the blocks of the thread that forks alone."""
        place, edits = self.at[at], self.edits_at(self.at[at])
        beside = [block for block in self.open if block[0].pool is place.pool]

        def work():
            if not edits:
                assert_same(self.subject.run(TOKENS).logits, self.answer(()))
            machine = copy.copy(self)
            machine.open, machine.is_set_inside = beside, self.is_set_inside and bool(beside)
            machine.check_pass(lambda run, model: run(model), edits, logits_of)
            return "all is right"

        self.answer(()), self.answer(edits)  # before: what the other process adds is lost
        assert place(in_a_fork, work) == "all is right"

    @stateful.rule(at=places)
    def copied(self, at):
        for work in (copy.deepcopy, pickle.dumps):
            for what in (self.model, self.subject) if self.open else (self.model,):
                with pytest.raises(InputError, match="cannot be copied") if self.open else nullcontext():
                    self.at[at](work, what)

    @stateful.rule(dtype=st.sampled_from((torch.float32, torch.float64)))
    def cast(self, dtype):
        self.model.to(dtype)

    @stateful.rule(name=st.sampled_from(("sdpa", "eager")))
    def set_attention(self, name):
        self.model.set_attn_implementation(name)
        self.is_set_inside = bool(self.open)
        self.attention = self.attention if self.open else name

    @stateful.invariant()
    def the_model_is_what_it_was(self):
        if not self.open:
            hooks, modes, attention, _ = state_of(self.model)
            assert (hooks, modes, attention) == (*self.state[:2], self.attention)
            assert not any({"forward", "_attn"} & vars(part).keys() for part in self.model.modules())

    def teardown(self):
        for place, _, block in self.open:
            place(block.close)
        self.model.to(torch.float32).set_attn_implementation("sdpa")
        for pool in (self.pool, self.at[0].pool):
            pool.shutdown()
        assert state_of(self.model) == self.state


Contexts.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=5, deadline=None, derandomize=True, database=None,
    phases=[Phase.generate], suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestContexts = pytest.mark.usefixtures("interruptible")(Contexts.TestCase)


KINDS = {  # how a model shows its passes, and the model that runs them
    "attention of its own": lambda: peaked(
        BloomForCausalLM(BloomConfig(vocab_size=17, hidden_size=8, n_head=2))
    ).eval(),
    "a bridge": lambda: bridge_of(tiny()),
    "an envoy": lambda: NNsight(tiny()),
    "a module": lambda: Litgpt().eval(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_every_kind_of_model_may_overlap_and_it_is_measured_beside_them(kind):
    model = KINDS[kind]()
    subject, edits = si.load(model), [iv.ChangeMLP(iv.Scale(0.5)), iv.ChangeResidual(iv.Scale(2.0), layers=[1])]
    before, right = state_of(subject.model), [subject.run(TOKENS, edits=some).logits for some in ([], *edits, edits)]
    places, blocks = [Context(), Context()], [ExitStack(), ExitStack()]
    for place, block, edit in zip(places, blocks, edits, strict=True):
        place.run(block.enter_context, si.patched(model, edit))
    for place, logits in zip(places, right[1:3], strict=True):
        assert_same(place.run(logits_of, subject.model), logits)
        for work in (copy.deepcopy, pickle.dumps):
            refused(partial(work, subject.model))
    assert_same(subject.run(TOKENS, edits=edits).logits, right[3])
    places[1].run(blocks[0].close)
    assert_same(places[1].run(logits_of, subject.model), right[2])
    assert_same(si.load(model).run(TOKENS).logits, right[0])
    places[0].run(blocks[1].close)
    assert state_of(subject.model) == before
    assert_same(logits_of(subject.model), right[0])


def test_a_training_is_watched_while_other_threads_measure_and_patch_its_model():
    model = tiny()
    before, subject = state_of(model), si.load(model)
    watches = [si.SinkCallback(TOKENS, 1, most=1.0) for _ in range(2)]
    expected = watches[0].step(model, 1)

    def patched():
        with si.patched(model, EDITS[2]):
            return logits_of(model)

    ways = [*(partial(watch.step, model, 1) for watch in watches), partial(si.measure, model, TOKENS), patched]
    ways += [lambda: si.load(model), partial(subject.run, TOKENS)]
    with ThreadPoolExecutor(len(ways)) as pool:
        jobs = [pool.submit(way) for _ in range(4) for way in ways]
    assert [job.result() for job in jobs[::6]] == [expected] * 4
    assert not [job.exception() for job in jobs if job.exception()]
    assert state_of(model) == before


def test_a_process_that_is_forked_while_a_thread_measures_does_not_wait_for_it():
    model, taken, done = tiny(), threading.Event(), threading.Event()
    subject = si.load(model)

    def stop(call):
        taken.set()
        done.wait(60)
        return call.q.new_zeros(len(call.q), 1)

    thread = threading.Thread(target=lambda: subject.run(TOKENS, reads={"x": stop}))
    thread.start()
    taken.wait(60)
    try:
        assert in_a_fork(lambda: tuple(subject.run(TOKENS).logits.shape)) == "(2, 5, 17)"
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("kind", [*KINDS, "tiny"])
def test_a_subject_that_is_pickled_or_copied_measures_the_same_or_says_why_it_cannot(kind):
    subject = si.load((KINDS | {"tiny": tiny})[kind](), tokenizer={"a": 3, "b": 5})
    assert subject.label(3) == "a"
    is_copied, right = kind in ("attention of its own", "tiny"), subject.run(TOKENS, edits=EDITS[2]).logits
    for work in (lambda: pickle.loads(pickle.dumps(subject)), lambda: copy.deepcopy(subject)):
        with nullcontext() if is_copied else pytest.raises(InputError, match="cannot be copied or pickled; copy its"):
            again = work()
            assert_same(again.run(TOKENS, edits=EDITS[2]).logits, right)
            assert again.tokens("ab").of_one_length().tolist() == [[3, 5]]


def test_a_measurement_is_refused_while_another_thread_runs_the_model_in_training():
    model, over = tiny().train(), threading.Event()
    subject, right = si.load(model), logits_of(tiny().eval())

    def train():
        while not over.is_set():
            model(TOKENS)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        with pytest.raises(InputError, match="measure it between its passes"):
            for _ in range(1000):
                assert_same(subject.run(TOKENS).logits, right)
    finally:
        over.set()
        thread.join()
    assert_same(subject.run(TOKENS).logits, right)
    assert all(part.training and not part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("stand_in", [weakref.proxy, lambda model: Mock(spec=type(model))], ids=["weak", "mock"])
@pytest.mark.parametrize("use", [si.load, lambda model: si.patched(model, EDITS[2]).__enter__()], ids=["load", "patch"])
def test_what_stands_for_a_model_is_refused_in_one_line(use, stand_in):
    model = tiny()
    refused(lambda: use(stand_in(model)))
