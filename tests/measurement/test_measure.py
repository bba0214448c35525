"""What `measure` adds to the reads: groups of equal length, batches, order, padding and the protocol."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from backends.zoo import GPT2, model_of, tokens_of
from refusals import refused
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

import sinkinterp as si
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.data.tokens import PAD, TokenSet
from sinkinterp.measurement import measure as batching
from sinkinterp.measurement.measure import WIDTH, measure_enough
from sinkinterp.metrics import instruments
from sinkinterp.metrics.importance import PAPER, RELEASED, VISIBLE
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS, Metric
from sinkinterp.metrics.residuals import peak

LENGTHS = (5, 17, 2, 11, 5)
ROWS = [row[:n].tolist() for row, n in zip(tokens_of(), LENGTHS, strict=True)]
MODELS = ("gpt2", "mistral with a window", "gpt-oss with sink logits", "jamba with mamba layers")
every_model = pytest.mark.parametrize("name", MODELS)
subject_of = cache(lambda name: si.load(model_of(name)))


@cache
def ragged(name):
    return si.measure(subject_of(name), TokenSet.of_rows(ROWS), instruments=instruments.ALL)


def assert_same(one, other, **tolerance):
    torch.testing.assert_close(one.tensors(), other.tensors(), equal_nan=True, **tolerance)


@every_model
def test_a_ragged_probe_gives_each_sequence_the_numbers_it_has_alone(name):
    whole = ragged(name).tensors()
    for i, row in enumerate(ROWS):
        alone = si.measure(subject_of(name), torch.tensor([row]), instruments=instruments.ALL)
        for answer, value in alone.tensors().items():
            n, found = value.shape[-1], whole[answer][i]
            torch.testing.assert_close(found[..., :n], value[0], rtol=1e-4, atol=1e-5, msg=lambda m, a=answer: a + m)
            assert (found[..., n:] == PAD if answer == "tokens" else found[..., n:].isnan()).all(), answer
            assert answer == "tokens" or not value.isnan().any(), answer


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_to_either_side_measures_the_same(side):
    mask = torch.arange(19) < torch.tensor(LENGTHS)[:, None]
    mask = mask.flip(1) if side == "left" else mask
    tokens = torch.full((5, 19), 3)
    tokens[mask] = torch.tensor([token for row in ROWS for token in row])
    token_set = TokenSet.of(tokens, attention_mask=mask.long())
    assert_same(si.measure(subject_of("gpt2"), token_set, instruments=instruments.ALL), ragged("gpt2"), rtol=0, atol=0)


@every_model
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_of_any_size_give_the_same_report(name, size, monkeypatch):
    monkeypatch.setattr(batching, "sequences_per_pass", lambda subject, length: size)
    progress = []
    every, told = instruments.ALL, lambda *done: progress.append(done)
    report = si.measure(subject_of(name), TokenSet.of_rows(ROWS), instruments=every, progress=told)
    assert_same(report, ragged(name), rtol=1e-4, atol=1e-5)
    counts = {1: (1, 2, 3, 4, 5), 2: (1, 2, 4, 5), 3: (1, 2, 4, 5)}[size]  # lengths 17 | 11 | 5, 5 | 2
    assert progress == [(done, 5) for done in (0, *counts)]


@every_model
def test_chosen_positions_are_sorted_and_unknown_where_a_sequence_is_too_short(name):
    report, whole = si.measure(subject_of(name), TokenSet.of_rows(ROWS), positions=(10, 0, 4)), ragged(name)
    assert report.positions == (0, 4, 10)
    for field in ("importance", "raw_importance", "null", "bias_null"):
        expected = getattr(whole, field)[..., [0, 4, 10]]
        torch.testing.assert_close(getattr(report, field), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert report.alpha(10).isnan().flatten(1).all(1).tolist() == [True, False, True, False, True]


def test_the_convention_is_measured_with_and_said():
    subject = subject_of("mistral with a window")  # 5 keys wide
    reports = {c.description: si.measure(subject, tokens_of(), convention=c) for c in (VISIBLE, PAPER, RELEASED)}
    assert [report.protocol.divisor for report in reports.values()] == list(reports)
    visible, paper, released = reports.values()
    share = torch.arange(17, 0, -1).clamp(max=5) / torch.arange(17, 0, -1)
    for field in ("importance", "null", "bias_null"):
        torch.testing.assert_close(getattr(paper, field), getattr(visible, field) * share)
    torch.testing.assert_close(released.importance, paper.importance, rtol=2**-6, atol=2**-9)


def test_the_protocol_says_what_was_measured():
    token_set = replace(TokenSet.of_rows(ROWS, "five rows"), bos="id 3 first", too_short=7)
    said = si.measure(subject_of("gpt2"), token_set, edits=[si.SwapPositions(0, 1)]).protocol
    assert (said.model, said.sequences, said.length, said.dtype) == ("GPT2LMHeadModel", 5, 17, "float32")
    assert (said.bos, said.source, said.source_sha256) == ("id 3 first", "five rows", token_set.sha256)
    assert (said.texts_too_short, said.revision, said.divisor) == (7, "", VISIBLE.description)
    assert said.edits == ("SwapPositions(0, 1) (p1 <-> p2)",) and said.edits[0] in said.line()
    assert said.versions.keys() >= {"python", "sinkinterp", "torch", "transformers"}


def test_an_instrument_that_is_given_twice_answers_once():
    report = si.measure(subject_of("gpt2"), tokens_of(), instruments=(instruments.LOSS, *instruments.ALL))
    assert len(report.extras) == sum(map(len, instruments.ALL))


REFUSED = [
    *(({"positions": at}, "position") for at in ((), (17,), (-1,), (0, 40))),
    *(
        ({"instruments": (instruments.LOSS, (Metric(name, RESIDUAL, peak),))}, name)
        for name in ("importance", "importances", "tokens", "loss")
    ),
]


@pytest.mark.parametrize(("options", "name"), REFUSED)
def test_positions_and_names_of_metrics_that_cannot_be_are_refused(options, name):
    refused(lambda: si.measure(subject_of("gpt2"), tokens_of(), **options), name)


def test_a_metric_of_ones_own_is_read_by_its_value():
    first = Metric("first", RESIDUAL, lambda x: x[:, 0])
    report = si.measure(subject_of("gpt2"), tokens_of(), instruments=[(first,)])
    assert report.has(first) and not report.has(NEXT_TOKEN_LOSS)
    torch.testing.assert_close(report.extra(first).norm(dim=-1), report.residual_norms[..., 0])


def test_autocast_of_the_caller_changes_no_number():
    subject = si.load("sinkinterp/demo-softmax")
    tokens = torch.arange(24).reshape(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        report = si.measure(subject, tokens)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(report.importance, si.measure(subject, tokens).importance)


@pytest.fixture(scope="module")
def subject():
    return si.load(model_of("gpt2"))


def test_the_bytes_of_a_token_worked_by_hand(subject):
    logits, activations, scores = 97, 24 * 48, 3 * 64 * 4
    assert batching.bytes_per_token(subject) == 4 * (logits + activations) + 4 * (logits + scores)


PLENTY, SOME = 10**12, 2 * 8456 * 100  # 2048 tokens keep a CPU busy; half of SOME holds 100 tokens
FIT = [(PLENTY, 17, 120), (PLENTY, 4096, 1), (SOME, 17, 5), (SOME, 101, 1), (0, 17, 1)]


@pytest.mark.parametrize(("free", "length", "passes"), FIT)
def test_a_pass_takes_what_fits_and_keeps_the_device_busy(subject, monkeypatch, free, length, passes):
    monkeypatch.setattr(batching, "free_bytes", lambda device: free)
    assert batching.sequences_per_pass(subject, length) == passes


def test_a_system_that_does_not_say_has_two_gigabytes_free(monkeypatch):
    assert batching.free_bytes(torch.device("cpu")) > 0
    monkeypatch.delattr(batching.os, "sysconf")
    assert batching.free_bytes(torch.device("cpu")) == 2 * 1024**3


class Waits(TorchDispatchMode):
    """Counts how often Python waits for a number of the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("positions", [(0,), (0, 4, 2), range(11)])
def test_a_measurement_waits_for_the_device_as_often_in_five_layers_as_in_two(positions):
    counts = []
    for layers in (2, 5):
        subject = si.load(GPT2LMHeadModel(GPT2Config(**GPT2 | {"n_layer": layers}, bos_token_id=0, eos_token_id=0)))
        si.measure(subject, tokens_of(11), positions=positions)
        with Waits() as waits:
            si.measure(subject, tokens_of(11), positions=positions)
        counts.append(waits.count)
    assert counts[0] == counts[1] > 0


TOKENS = torch.randint(100, (70, 13), generator=torch.Generator().manual_seed(7))


def enough(subject, epsilon):
    looks = []

    def measured(token_set, why):
        looks.append((len(token_set.tokens), why))
        return si.measure(subject, token_set, instruments=instruments.ALL)

    return measure_enough(lambda n: TokenSet.of(TOKENS[:n]), measured, 70, epsilon), looks


def test_a_measurement_ends_at_the_first_look_at_which_the_interval_is_narrow_and_else_takes_all_sequences():
    subject = si.load("sinkinterp/text-softmax")
    for epsilon, n in ((0.1, 32), (0.3, 70), (0.999, 70)):  # a rate of 0 in 32 texts may be 10%
        report, looks = enough(subject, epsilon)
        whole = si.measure(subject, TOKENS[:n], instruments=instruments.ALL)
        assert_same(report, whole)
        assert report.protocol.source_sha256 == whole.protocol.source_sha256 and report.protocol.sequences == n
        assert sum(size for size, _ in looks) == n  # none is measured twice
        sink = report.sink_rate(0, epsilon)
        assert (sink.high - sink.low <= WIDTH) is (n == 32) is ("of 70: Sink_1" in report.protocol.line())
