"""The private operators of PyTorch, and what happens without them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from sinkinterp.attention import fused
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import SOFTMAX
from sinkinterp.attention.masks import BLOCK
from sinkinterp.attention.slots import SinkLogit, SlotRow


def test_the_private_operators_of_torch_are_there():
    names = ("_CHOICE", "_FLASH_ON_CPU", "_FLASH", "_EFFICIENT", "_CUDNN")
    missing = [name for name in names if getattr(fused, name) is None]
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


T = 2 * BLOCK + 3
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 2e-4}
FIELDS = {
    "causal": {},
    "a scale that bf16 does not hold": {"scale": 0.377},
    "large scores": {"scale": 2.0},
    "key slot": {"slot": SlotRow(torch.randn(6, 1, 5).bfloat16().float(), torch.randn(6, 1, 5))},
    "sink logit": {"slot": SinkLogit(torch.randn(6))},
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: its kernels cannot be run")


def exact(call):
    """The masses in fp64."""
    names = ("q", "k", "v")
    return replace(call, **{name: getattr(call, name).double() for name in names}).pattern()[..., -T:].sum(2)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_one_pass_gives_what_every_key_receives(make_call, monkeypatch, fields, dtype):
    monkeypatch.setattr(fused, "takes_all_columns", lambda call: True)
    monkeypatch.setattr(AttentionCall, "runs", None)
    call = make_call(queries=T, **fields)
    call = replace(call, **{name: getattr(call, name).to(dtype) for name in "qkv"})
    want = exact(call)
    torch.testing.assert_close(call.column_mass().double(), want, rtol=ERRORS[dtype], atol=1e-6)
    some = torch.randperm(T)[: BLOCK + 1]  # fewer are read by the log-sum-exp
    torch.testing.assert_close(call.column_mass(some).double(), want[..., some], rtol=ERRORS[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("d_head", [3, 8, 13])
def test_the_kernel_is_given_heads_of_a_multiple_of_eight_dimensions(monkeypatch, d_head, dtype):
    given = []
    monkeypatch.setattr(fused, "attend", given.append)
    q, k = (torch.randn(2, n, T, d_head, dtype=dtype) for n in (6, 3))
    assert fused.column_masses(fused.Inputs(0, q, k, k, 0.5), torch.randn(2, 6, T)) is None
    n_parts = {torch.float32: 1, torch.bfloat16: 3}[dtype]
    assert given[0].q.shape == given[0].k.shape == (2, 6, T, -(-(d_head + n_parts) // 8) * 8)


def test_without_a_kernel_the_masses_come_in_blocks(make_call, monkeypatch):
    call = make_call(queries=T)
    want = call.column_mass()
    monkeypatch.setattr(fused, "takes_all_columns", lambda call: True)
    monkeypatch.setattr(fused, "_CHOICE", None)
    torch.testing.assert_close(replace(call).column_mass(), want)


@pytest.mark.parametrize(("place", "queries", "keys", "taken"), [
    ("cuda", 5, 5, True), ("cuda", 3, 5, False), ("cuda", 5, 3, False), ("cuda", 1, 1, False), ("cpu", 5, 5, False),
])  # fmt: skip
def test_on_cuda_the_pass_is_taken_where_every_query_has_its_key(place, queries, keys, taken):
    q, k = (
        SimpleNamespace(shape=(2, 4, n, 3), device=SimpleNamespace(type=place), requires_grad=True)
        for n in (queries, keys)
    )
    bare = SimpleNamespace(kernel=SOFTMAX, q=q, k=k, mask=None, bias=None, softcap=None)
    with torch.no_grad():
        assert fused.takes_all_columns(bare) == taken
    assert not fused.takes_all_columns(bare)  # where weights are trained


@needs_gpu
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
def test_a_gpus_masses_are_the_cpus(make_call, dtype):
    call = make_call(queries=T, d_head=64)
    here, there = ({name: getattr(call, name).to(place, dtype) for name in "qkv"} for place in ("cpu", "cuda"))
    got = replace(call, **there)
    assert fused.takes_all_columns(got) and got.is_fused
    torch.testing.assert_close(got.column_mass().cpu(), replace(call, **here).column_mass(), rtol=5e-4, atol=1e-5)
