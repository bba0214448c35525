"""All columns by one pass of a kernel: the CPU's flash kernel stands in for CUDA's, which a GPU's own test checks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sinkinterp.attention import fused
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import SOFTMAX
from sinkinterp.attention.masks import BLOCK
from sinkinterp.attention.slots import SinkLogit, SlotRow

T = 2 * BLOCK + 3
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 2e-4}
FIELDS = {
    "causal": {},
    "a scale that bf16 does not hold": {"scale": 0.377},
    "large scores": {"scale": 8.0},
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
    monkeypatch.setattr(AttentionCall, "_block_mass", None)
    call = make_call(queries=T, **fields)
    call = replace(call, **{name: getattr(call, name).to(dtype) for name in "qkv"})
    want = exact(call)
    torch.testing.assert_close(call.column_mass().double(), want, rtol=ERRORS[dtype], atol=1e-6)
    some = torch.randperm(T)[: BLOCK + 1]
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


def test_only_bare_causal_softmax_on_cuda_takes_the_pass(make_call):
    assert not fused.takes_all_columns(make_call())
    there = {name: torch.empty(getattr(make_call(), name).shape, device="meta") for name in "qkv"}
    assert not fused.takes_all_columns(replace(make_call(), **there))


@pytest.mark.parametrize(("queries", "keys", "taken"), [(5, 5, True), (3, 5, False), (1, 1, False)])
def test_on_cuda_the_pass_is_taken_where_every_query_has_its_key(queries, keys, taken):
    q, k = (
        SimpleNamespace(shape=(2, 4, n, 3), device=SimpleNamespace(type="cuda"), requires_grad=True)
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
