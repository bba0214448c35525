"""Whatever a user does with a model, in any order, its weights, hooks and modes are afterwards what they were."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from backends.test_exclusive import lines_of
from backends.zoo import model_of, tokens_of
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import sinkinterp as si
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.errors import InputError
from sinkinterp.interventions import ChangeMLP, ChangeResidual, Scale, SwapPositions, Zero, ZeroKeyBias, ZeroQueryBias

TOKENS = tokens_of()[:2, :5]
OF_ACTIVATIONS = (
    SwapPositions(0, 3),
    si.PatchNormalization(Sigmoid(), layers=[1]),
    ChangeResidual(Zero(), layers=[1], dims=[2]),
    ChangeMLP(Scale(0.5)),
)
OF_WEIGHTS = (ZeroKeyBias(), ZeroQueryBias(layers=[0]))
WRONG = (SwapPositions(0, 99), ChangeResidual(Zero(), layers=[77]), lambda call: None, lambda call: 1 / 0)
edits = st.lists(st.sampled_from(OF_ACTIVATIONS + OF_WEIGHTS), max_size=2)


def weights_of(model):
    return [value.numpy().tobytes() for value in model.state_dict().values()]


def surroundings_of(model):
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    return hooks, [module.training for module in model.modules()], model.config._attn_implementation


class Model(RuleBasedStateMachine):
    """A model that is loaded, measured, patched, saved, interrupted and shared by threads."""

    def __init__(self):
        super().__init__()
        self.model = model_of("gpt2")
        self.model.get_decoder().h[0].train()
        self.weights, self.surroundings = weights_of(self.model), surroundings_of(self.model)
        self.subject = si.load(self.model)
        self.blocks = []  # blocks of `patched` that are open
        self.answers = {}

    @precondition(lambda self: not self.blocks)
    @rule(given=edits)
    def measure(self, given):
        report = si.measure(self.subject, TOKENS, edits=given)
        expected = self.answers.setdefault(tuple(given), report.importance)
        assert report.importance.equal(expected)

    @precondition(lambda self: self.blocks)
    @rule()
    def measure_inside_a_block(self):
        with pytest.raises(InputError):
            si.measure(self.subject, TOKENS)

    @precondition(lambda self: not self.blocks)
    @rule(wrong=st.sampled_from(WRONG))
    def measure_wrongly(self, wrong):
        with pytest.raises((InputError, ZeroDivisionError)):
            si.measure(self.subject, TOKENS, edits=wrong)

    @precondition(lambda self: not self.blocks)
    @rule()
    def load(self):
        self.subject = si.load(self.model)

    @precondition(lambda self: len(self.blocks) < 3)
    @rule(edit=st.sampled_from(OF_ACTIVATIONS + OF_WEIGHTS))
    def enter(self, edit):
        block = ExitStack()
        block.enter_context(si.patched(self.model, edit))
        self.blocks.append(block)

    @precondition(lambda self: self.blocks)
    @rule()
    def leave(self):
        self.blocks.pop().close()

    @precondition(lambda self: self.blocks)
    @rule(bad=st.booleans())
    @torch.no_grad()
    def run_inside_a_block(self, bad):
        if bad:
            with pytest.raises(InputError):
                self.model(TOKENS + 10**6)
        else:
            assert self.model(TOKENS).logits.isfinite().all()

    @precondition(lambda self: not self.blocks)
    @rule(given=st.lists(edits, min_size=2, max_size=4))
    def measure_in_threads(self, given):
        with ThreadPoolExecutor(len(given)) as pool:
            reports = list(pool.map(lambda several: si.measure(self.subject, TOKENS, edits=several), given))
        for several, report in zip(given, reports, strict=True):
            assert report.importance.equal(self.answers.setdefault(tuple(several), report.importance))

    @precondition(lambda self: not self.blocks)
    @rule(given=edits, line=st.integers(0, 1500))
    def interrupt(self, given, line):
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda: self.subject.run(TOKENS, edits=given), (line,))
            raise KeyboardInterrupt  # it was over before that line

    @precondition(lambda self: not self.blocks)
    @rule(given=edits)
    def save(self, given):
        report = si.measure(self.subject, TOKENS, edits=given)
        assert si.Report.from_dict(report.to_dict()).importance.equal(report.importance)

    @invariant()
    def the_model_is_what_it_was(self):
        assert weights_of(self.model) == self.weights
        if not self.blocks:
            assert surroundings_of(self.model) == self.surroundings

    def teardown(self):
        while self.blocks:
            self.leave()
        self.the_model_is_what_it_was()


Model.TestCase.settings = settings(
    max_examples=10, stateful_step_count=10, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestStatesOfAModel = pytest.mark.usefixtures("interruptible")(Model.TestCase)
