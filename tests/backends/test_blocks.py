"""Blocks of `patched` nest, belong to one thread and task, and leave the model as it was, also after Ctrl-C."""

import asyncio
import copy
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from unittest.mock import Mock
from weakref import proxy

import pytest
import torch
from backends.own_modules import Litgpt, Words
from backends.zoo import everything_of, peaked
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
    iv.SwapPositions(0, 3), iv.ZeroKeyBias(), iv.ChangeMLP(iv.Scale(0.5)),
    si.PatchNormalization(Sigmoid(), layers=[0]), iv.ChangeResidual(iv.Scale(2.0), positions=[2]),
)  # fmt: skip
TINY = GPT2Config(vocab_size=17, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None)
INSIDE = r"is inside si\.patched\(\.\.\.\)"


def tiny():
    """Equal models, which share their configuration."""
    torch.manual_seed(0)
    return peaked(GPT2LMHeadModel(TINY)).eval()


KINDS = {  # how a model shows its passes, and the model that runs them
    "attention of transformers": tiny,
    "attention of its own": lambda: peaked(
        BloomForCausalLM(BloomConfig(vocab_size=17, hidden_size=8, n_head=2))
    ).eval(),
    "a bridge": lambda: bridge_of(tiny()),
    "an envoy": lambda: NNsight(tiny()),
    "a module": lambda: Litgpt().eval(),
}


@torch.no_grad()
def logits_of(model, tokens=TOKENS):
    output = model(tokens)
    return getattr(output, "logits", output)


def in_a_thread(work):
    """What another thread returns, or the exception that it raises, which is raised here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(60)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_nest_and_the_inner_edits_last(kind):
    given = KINDS[kind]()
    subject = si.load(given)
    model, first, second = subject.model, iv.ChangeMLP(iv.Scale(0.5)), iv.ChangeResidual(iv.Scale(2.0), layers=[1])
    before, right = everything_of(model), [subject.run(TOKENS, edits=e).logits for e in ([], [first], [first, second])]
    with si.patched(given, first):
        assert_same(logits_of(model), right[1])
        with si.patched(given, second):
            assert_same(logits_of(model), right[2])
            refused(lambda: subject.run(TOKENS), "measure it outside")
        assert_same(logits_of(model), right[1])
        with pytest.raises(InputError), si.patched(given, iv.ChangeMLP(iv.Zero(), layers=[77])):
            pass
        assert_same(logits_of(model), right[1])
        for work in (copy.deepcopy, pickle.dumps):
            refused(partial(work, model), "cannot be copied")
    assert everything_of(model) == before
    assert_same(logits_of(model), right[0])


def test_blocks_that_end_in_another_order_are_refused_and_all_end():
    model, outer, inner = tiny(), ExitStack(), ExitStack()
    before, right = everything_of(model), logits_of(model)
    outer.enter_context(si.patched(model, EDITS[2]))
    inner.enter_context(si.patched(model, EDITS[4]))
    refused(outer.close, "reverse order")
    assert_same(logits_of(model), right)
    refused(inner.close, "reverse order")
    assert everything_of(model) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_in_another_thread_is_refused_until_the_block_ends(kind):
    given = KINDS[kind]()
    subject = si.load(given)
    right, works = logits_of(subject.model), [lambda: logits_of(subject.model), lambda: subject.run(TOKENS),
                                              lambda: si.patched(given, EDITS[2]).__enter__()]  # fmt: skip
    with si.patched(given, EDITS[2]):
        for work in works:
            with pytest.raises(InputError, match=INSIDE):
                in_a_thread(work)
    assert_same(in_a_thread(works[0]), right)


def test_a_task_of_asyncio_owns_its_block():
    model, seen = tiny(), []

    async def other():
        for work in (
            lambda: logits_of(model),
            si.patched(model, EDITS[2]).__enter__,
            lambda: si.measure(model, TOKENS),
        ):
            with pytest.raises(InputError, match=INSIDE):
                work()
            seen.append(work)

    async def owner():
        with si.patched(model, EDITS[4]):
            right = logits_of(model)
            await asyncio.create_task(other())
            assert_same(logits_of(model), right)

    asyncio.run(owner())
    assert len(seen) == 3


def test_threads_measure_and_patch_a_model_in_turn():
    model = tiny().train()
    before, subject, watch = everything_of(model), si.load(model), si.SinkCallback(TOKENS, 1, most=1.0)
    expected, right = watch.step(model, 1), subject.run(TOKENS, edits=EDITS[2]).logits
    ways = [lambda: watch.step(model, 1) == expected, lambda: bool(si.load(model).shape),
            lambda: subject.run(TOKENS, edits=EDITS[2]).logits.allclose(right, atol=1e-5)]  # fmt: skip
    with ThreadPoolExecutor(len(ways)) as pool:
        jobs = [pool.submit(way) for _ in range(4) for way in ways]
    assert all(job.result() for job in jobs)
    assert everything_of(model) == before


@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_in_a_pass_leaves_the_model_as_it_was(interruptible, kind):
    given = KINDS[kind]()
    subject = si.load(given)
    before = everything_of(subject.model)

    def interrupted(call):
        signal.raise_signal(signal.SIGINT)
        return call

    with pytest.raises(KeyboardInterrupt):
        subject.run(TOKENS, edits=[interrupted, *EDITS[2:]])
    assert everything_of(subject.model) == before
    with pytest.raises(KeyboardInterrupt), si.patched(given, EDITS[2]), si.patched(given, EDITS[4]):
        signal.raise_signal(signal.SIGINT)
    assert everything_of(subject.model) == before
    thread = threading.Thread(target=partial(subject.run, TOKENS), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_a_subject_that_is_pickled_or_copied_measures_the_same_or_says_why_it_cannot(kind):
    subject = si.load(KINDS[kind](), tokenizer=Words())
    assert subject.label(3) == " xxx"
    is_copied, right = kind.startswith("attention"), subject.run(TOKENS, edits=EDITS[2]).logits
    for work in (lambda: pickle.loads(pickle.dumps(subject)), lambda: copy.deepcopy(subject)):
        with nullcontext() if is_copied else pytest.raises(InputError, match="pickled"):
            again = work()
            assert_same(again.run(TOKENS, edits=EDITS[2]).logits, right)
            assert again.tokens("one three").of_one_length().tolist() == [[3, 5]]


@pytest.mark.parametrize("stand_in", [proxy, lambda model: Mock(spec=type(model))], ids=["weak", "mock"])
@pytest.mark.parametrize("use", [si.load, lambda model: si.patched(model, EDITS[2]).__enter__()], ids=["load", "patch"])
def test_what_stands_for_a_model_is_refused_in_one_line(use, stand_in):
    model = tiny()
    refused(lambda: use(stand_in(model)))


@torch.no_grad()
def test_positions_in_a_cache_from_before_the_block_are_not_moved_and_that_is_said():
    model = tiny()
    full = model(TOKENS[:, :4], use_cache=True).past_key_values
    start, swap = model(TOKENS[:, :2], use_cache=True).past_key_values, iv.SwapPositions(0, 3)
    with si.patched(model, swap):
        refused(lambda: model(TOKENS[:, 4:], past_key_values=full), "cache")
        cache = model(TOKENS[:, :4], use_cache=True).past_key_values
        step = model(TOKENS[:, 4:], past_key_values=cache).logits
        assert_same(step, model(TOKENS, use_cache=False).logits[:, 4:])
        with si.patched(model, EDITS[2]):
            again = model(TOKENS[:, :4], use_cache=True).past_key_values
            refused(lambda: model(TOKENS[:, 4:], past_key_values=cache), "cache")
            model(TOKENS[:, 4:], past_key_values=again)
    ids = torch.tensor([[4, 3, 2]])
    right = model(TOKENS[:, 2:], past_key_values=copy.deepcopy(start), position_ids=ids).logits
    with si.patched(model, iv.SwapPositions(2, 4)):
        assert_same(model(TOKENS[:, 2:], past_key_values=start).logits, right)
