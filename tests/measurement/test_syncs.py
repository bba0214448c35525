"""How often a measurement waits for the device, and how many operations a layer adds."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

import sinkinterp as si

LENGTH = 13


class Counted(TorchDispatchMode):
    """Counts the operations of PyTorch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def counts(layers: int, positions: tuple[int, ...]) -> Counter[str]:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=layers, n_head=3, bos_token_id=0, eos_token_id=0
    )
    subject = si.load(GPT2LMHeadModel(config).eval())
    tokens = torch.randint(61, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    si.measure(subject, tokens, positions=positions)
    with Counted() as counted:
        si.measure(subject, tokens, positions=positions)
    return counted.counts


@pytest.mark.parametrize("positions", [(0,), (0, 4, 2), tuple(range(LENGTH))])
def test_a_measurement_waits_for_the_device_as_often_in_five_layers_as_in_two(positions: tuple[int, ...]) -> None:
    few, many = (counts(layers, positions)["aten._local_scalar_dense.default"] for layers in (2, 5))
    assert few == many


def test_causal_layers_share_one_null() -> None:
    few, many = (counts(layers, (0,))["aten.cumsum.default"] for layers in (2, 5))
    assert few == many
