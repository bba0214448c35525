"""The private operators of PyTorch, and what happens without them."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend

from sinkinterp.attention import fused
from sinkinterp.attention.kernels import log_total
from sinkinterp.attention.masks import key_blocks
from sinkinterp.attention.slots import SlotRow


def test_the_private_operators_of_torch_are_there():
    missing = [name for name in fused.PRIVATE if getattr(fused, name) is None]
    assert not missing, (
        f"torch {torch.__version__} has renamed or dropped an operator: {missing} of sinkinterp/attention/fused.py. "
        "Results stay right, but slower: every log-sum-exp is gathered block by block, and softmax on a CPU makes its "
        "pattern. Look for the new name in torch/nn/functional.py and set it in fused.py; if there is none, remove "
        "its kernel there"
    )


def test_kernels_have_the_numbers_that_torch_gives_them():
    kernels = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    assert [kernel.value for kernel in kernels] == [fused.FLASH, fused.EFFICIENT, fused.CUDNN]


@pytest.mark.parametrize("name", ["_CHOICE", "_FLASH_ON_CPU"])
def test_without_a_private_operator_a_call_gives_the_same_results(make_call, monkeypatch, name):
    call = make_call()
    z, mass, log_z = call.output(), call.column_mass(), call.log_normaliser()
    assert call.is_fused
    monkeypatch.setattr(fused, name, None)
    again = replace(call)
    assert not again.is_fused
    torch.testing.assert_close((again.output(), again.column_mass(), again.log_normaliser()), (z, mass, log_z))


@pytest.mark.parametrize(
    ("queries", "keys", "is_causal"), [(5, 5, True), (2, 2, True), (5, 7, False), (7, 5, False), (1, 1, False)]
)
def test_the_kernels_own_causal_mask_is_the_whole_mask_where_each_query_has_its_key(queries, keys, is_causal):
    q, k = torch.randn(2, 4, queries, 3), torch.randn(2, 2, keys, 3)
    assert fused.is_plainly_causal(fused.Inputs(0, q, k, k, 1.0)) == is_causal


def test_one_query_needs_no_mask_and_heads_of_one_dimension_need_theirs():
    q, k = torch.randn(2, 4, 5, 1), torch.randn(2, 4, 7, 1)
    assert fused.mask_of(fused.Inputs(0, q, k, k, 1.0)).equal(torch.ones(1, 1, 5, 7, dtype=torch.bool).tril(2))
    assert fused.mask_of(fused.Inputs(0, q[:, :, -1:], k, k, 1.0)) is None


@pytest.mark.parametrize(("queries", "keys"), [(11, 11), (5, 11)])
def test_the_public_kernel_returns_what_the_dense_pattern_does(make_call, queries, keys):
    mask = torch.rand(2, 6, queries, keys) < 0.3
    mask[1, 4, 2] = False  # a query that sees nothing
    for fields in ({}, {"mask": mask}):
        call = make_call(queries=queries, keys=keys, **fields)
        z = fused.sdpa(call)
        torch.testing.assert_close(z, call.mix(call.pattern()))
    assert z[1, 4, 2].eq(0).all()


def test_another_device_without_a_path_uses_the_public_kernel(make_call):
    call = make_call(slot=SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 5)))
    assert fused.output_alone(call) is None
    q, k, v, key, value = (t.to("meta") for t in (call.q, call.k, call.v, call.slot.key, call.slot.value))
    there = replace(call, q=q, k=k, v=v, slot=SlotRow(key, value))
    assert fused.output_alone(there).shape == call.output().shape
    assert fused.output_alone(replace(there, softcap=3.0)) is None


def test_a_total_over_blocks_is_the_log_sum_of_all(make_call):
    scores = torch.randn(2, 3, 5, 67)
    blocks = scores.split(13, -1)
    torch.testing.assert_close(log_total(iter(blocks)), scores.exp().sum(-1).log())
    assert [len(block) for block in key_blocks(torch.arange(131))] == [64, 64, 3]
