"""The private operators of PyTorch, and what happens without them."""

from dataclasses import replace

import pytest
import torch

from sinkinterp.attention import flash


def test_the_private_operators_of_torch_are_there():
    missing = [name for name in ("_CHOICE", "_FLASH_ON_CPU") if getattr(flash, name) is None]
    assert not missing, (
        f"torch {torch.__version__} has renamed or dropped an operator: {missing} of sinkinterp/attention/flash.py. "
        "Results stay right, but slower: every log-sum-exp is gathered block by block, and softmax on a CPU makes its "
        "pattern. Look for the new name in torch/nn/functional.py and set it in flash.py; if there is none, remove "
        "`flash` there and let `fused.with_log_sum` return None"
    )


@pytest.mark.parametrize("name", ["_CHOICE", "_FLASH_ON_CPU"])
def test_without_a_private_operator_a_call_gives_the_same_results(make_call, monkeypatch, name):
    call = make_call()
    z, mass, log_z = call.output(), call.column_mass(), call.log_normaliser()
    assert call.is_fused
    monkeypatch.setattr(flash, name, None)
    again = replace(call)
    assert not again.is_fused
    torch.testing.assert_close((again.output(), again.column_mass(), again.log_normaliser()), (z, mass, log_z))
