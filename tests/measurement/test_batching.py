import pytest
import torch
from backends.zoo import model_of

import sinkinterp as si
from sinkinterp.measurement import inputs as batching


@pytest.fixture(scope="module")
def subject():
    return si.load(model_of("gpt2"))


def test_the_bytes_of_a_token_worked_by_hand(subject):
    logits, activations, scores = 97, 24 * 48, 3 * 64 * 4
    assert batching.bytes_per_token(subject) == 4 * (logits + activations) + 4 * (logits + scores)


@pytest.mark.parametrize(
    ("free", "length", "passes"),
    [
        (10**12, 17, 120),  # 2048 tokens keep a CPU busy
        (10**12, 4096, 1),
        (2 * 8456 * 100, 17, 5),  # half of it holds 100 tokens
        (2 * 8456 * 100, 101, 1),
        (0, 17, 1),
    ],
)
def test_a_pass_takes_what_fits_and_keeps_the_device_busy(subject, monkeypatch, free, length, passes):
    monkeypatch.setattr(batching, "free_bytes", lambda device: free)
    assert batching.sequences_per_pass(subject, length) == passes


def test_a_system_that_does_not_say_has_two_gigabytes_free(monkeypatch):
    assert batching.free_bytes(torch.device("cpu")) > 0
    monkeypatch.delattr(batching.os, "sysconf")
    assert batching.free_bytes(torch.device("cpu")) == 2 * 1024**3


def test_passes_hold_every_sequence_once_with_its_row(subject, monkeypatch):
    monkeypatch.setattr(batching, "sequences_per_pass", lambda subject, length: 3)
    tokens = torch.arange(7 * 5).reshape(7, 5)
    parts = list(batching.passes(subject, tokens))
    assert [len(rows) for rows, _ in parts] == [3, 3, 1]
    assert all(batch.equal(tokens[rows]) for rows, batch in parts)
    assert torch.cat([rows for rows, _ in parts]).equal(torch.arange(7))
