"""Which kernel takes a call, and that each gives what the dense pattern gives. No test needs a GPU.

On fake CUDA tensors nothing is computed: shapes, strides and dtypes are those that PyTorch says its kernels return.
`imitated` computes on the CPU what CUDA's kernels return, with their padding and their demands.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sinkinterp.attention import fused
from sinkinterp.attention.kernels import Kernel, Sigmoid
from sinkinterp.attention.masks import Causal, Visibility, Window
from sinkinterp.attention.slots import SinkLogit, SlotRow

ROOT = Path(__file__).parents[2]
T, HALF = 11, (torch.bfloat16, torch.float16)
INDEX = torch.arange(T)
BAND = (Causal() & Window(4)).allows(INDEX[:, None], INDEX[None, :])[None, None]
FIRST_TEXT = torch.tensor([True, False])[:, None, None, None]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 1.0, 0.3, 0.01])[None, :, None, None]
PAGE = (ROOT / "docs" / "concepts" / "kernels.md").read_text().partition("| softmax calls |")[2].partition("\n\n")[0]
KERNEL, BLOCKS = "PyTorch's kernel", "runs"  # where no kernel takes a call


class Kind(NamedTuple):
    """A row of the table in the docs: a kind of softmax call, and its path on each device."""

    calls: str
    cpu: str
    cuda: str
    fallback: str


KINDS = [Kind(*line.strip("| ").split(" | ")) for line in PAGE.splitlines()[2:]]
ALIBI = -SLOPES * (INDEX[:, None] - INDEX).abs()


def row(like=torch.float32):
    return SlotRow(torch.randn(6, 1, 5, dtype=like), torch.randn(6, 1, 5, dtype=like))


FIELDS = {
    "causal": {},
    "after a cache": {"queries": 5, "keys": T},
    "one query": {"queries": 1, "keys": T},
    "window": {"mask": BAND},
    "padding, and a query that sees nothing": {"mask": (INDEX > 2) & BAND & FIRST_TEXT},
    "a mask for each head": {"mask": torch.rand(2, 6, T, T, generator=torch.Generator().manual_seed(1)) < 0.4},
    "ALiBi": {"bias": ALIBI},
    "a bias that heads and texts share": {"bias": ALIBI[:1, :1]},
    "ALiBi in a window": {"bias": ALIBI, "mask": BAND},
    "key slot": {"slot": row()},
    "key slot with ALiBi": {"slot": row(), "bias": ALIBI},
    "sink logit": {"slot": SinkLogit(torch.randn(6))},
    "sink logit in a window": {"slot": SinkLogit(torch.randn(6)), "mask": BAND},
    "soft cap": {"softcap": 2.0},
    "soft cap and ALiBi in a window": {"softcap": 2.0, "bias": ALIBI, "mask": BAND},
    "soft cap and sink logit": {"softcap": 2.0, "slot": SinkLogit(torch.randn(6))},
}  # fmt: skip
NO_SOFT_CAP = {name: fields for name, fields in FIELDS.items() if "softcap" not in fields}


def in_blocks(call):
    """Output and log-sum-exp without any kernel."""
    return call.mix(call.pattern()), call.log_normaliser()


@pytest.fixture
def no_kernels(monkeypatch):
    monkeypatch.setattr(fused, "attended", lambda call: None)


def wanted(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "attended", lambda call: None)
        return in_blocks(replace(call))


def dense(q, k, v, added, causal, scale):
    """Output and log-sum-exp with no care for what no query sees; NaN there, as kernels may give."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q.float() @ k.float().mT) * scale + (0 if added is None else added.float())
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


def flash(q, k, v, dropout, causal, debug, *, scale):
    assert q.shape[-1] % 8 == 0 and (not causal or q.shape[2] == k.shape[2])
    return *dense(q, k, v, None, causal, scale), None


def efficient(q, k, v, added, *options, scale):
    wants_log_sum, _, causal = options
    assert wants_log_sum and q.shape[1] == k.shape[1]
    if added is not None:
        assert added.shape == (*q.shape[:3], k.shape[2]) and added.stride(2) % 8 == 0 and added.dtype == q.dtype
    z, log_sum = dense(q, k, v, added, causal, scale)
    return z, torch.nn.functional.pad(log_sum, (0, -q.shape[2] % 32), value=torch.nan), None


def cudnn(q, k, v, added, *options, scale):
    wants_log_sum, _, causal, _ = options
    assert wants_log_sum
    z, log_sum = dense(q, k, v, added, causal, scale)
    return z, log_sum[..., None], None


@pytest.fixture(params=[fused.FLASH, fused.EFFICIENT, fused.CUDNN], ids=["flash", "memory-efficient", "cuDNN"])
def imitated(request, monkeypatch):
    """CUDA's kernels on CPU tensors; the flash kernel is chosen where there is no mask, else the memory-efficient."""
    for name, kernel in {"_FLASH": flash, "_EFFICIENT": efficient, "_CUDNN": cudnn}.items():
        monkeypatch.setattr(fused, name, kernel)
    other = fused.EFFICIENT if request.param == fused.FLASH else request.param

    def chosen(given, added):
        takes_groups = request.param != fused.EFFICIENT and added is None
        return 0 if fused.is_grouped(given) and not takes_groups else request.param if added is None else other

    monkeypatch.setattr(fused, "_chosen", chosen)
    monkeypatch.setattr(fused, "_on_cpu", fused._on_cuda)


@pytest.mark.parametrize("fields", [*NO_SOFT_CAP.values(), {"d_head": 11}], ids=[*NO_SOFT_CAP, "wider heads"])
def test_what_cudas_kernels_return_is_cut_to_the_dense_output_and_log_sum(make_call, imitated, fields):
    call = make_call(**fields)
    torch.testing.assert_close(fused.attended(call), wanted(call), rtol=0, atol=4e-6)


def there(call, dtype):
    """The call on fake CUDA tensors."""

    def moved(value):
        if not torch.is_tensor(value):
            return value
        return torch.empty(value.shape, device="cuda", dtype=dtype if value.is_floating_point() else value.dtype)

    slot = call.slot
    if slot is not None:
        slot = type(slot)(*(moved(getattr(slot, name)) for name in slot.__dataclass_fields__))
    names = ("q", "k", "v", "mask")
    return replace(call, slot=slot, **{name: moved(getattr(call, name)) for name in names})


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("kernel", [fused.FLASH, fused.EFFICIENT, fused.CUDNN])
@pytest.mark.parametrize("fields", [{}, {"mask": BAND}, {"slot": row()}, {"queries": 5, "keys": T}])
def test_on_fake_cuda_tensors_kernels_return_the_calls_shape_and_precision(
    make_call, monkeypatch, fields, kernel, dtype
):
    monkeypatch.setattr(fused, "_chosen", lambda given, added: kernel)
    call = make_call(**fields)
    with FakeTensorMode(allow_non_fake_inputs=True):
        call = there(call, dtype)
        needs_mask = fused.additive(fused._with_row_as_key(call)) is not None
        result = fused.attended(call)
    if kernel == fused.FLASH and needs_mask:  # it takes none
        assert result is None
        return
    z, log_sum = result
    assert (z.shape, z.dtype, z.device.type) == (call.q.shape, dtype, "cuda") and z.stride(-1) == 1
    assert (log_sum.shape, log_sum.dtype) == (call.q.shape[:3], torch.float32)


BY_KIND = dict(
    zip(
        (kind.calls for kind in KINDS),
        (
            ["causal", "after a cache", "one query", "key slot"],
            ["window", "padding, and a query that sees nothing"],
            ["ALiBi", "ALiBi in a window", "key slot with ALiBi"],
            ["ALiBi"],
            ["soft cap", "soft cap and ALiBi in a window", "soft cap and sink logit"],
            ["sink logit", "sink logit in a window"],
            ["sink logit"],
            ["ALiBi"],
            ["causal"],
        ),
        strict=True,
    )
)


def of_kind(make_call, kind, name):
    """A call of a kind, and its precision."""
    call, dtype = make_call(**FIELDS[name]), torch.bfloat16 if "in bf16" in kind.calls else torch.float32
    if ", with gradients" in kind.calls:
        call = trained(call)
    if kind.calls.startswith("other kernels"):
        call = replace(call, kernel=Kernel(similarity=Sigmoid()))
    return call, dtype


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in BY_KIND[kind.calls]])
def test_a_call_takes_the_path_that_the_table_names(make_call, monkeypatch, kind, name):
    call, dtype = of_kind(make_call, kind, name)
    here = replace(call, **{each: getattr(call, each).to(dtype) for each in "qkv"})
    assert taken(here) == kind.cpu
    if "with a sink logit" in kind.calls:
        z = fused.output_alone(here)
        assert z is not None and torch.allclose(z, here.mix(here.pattern()), atol=1e-5)
    monkeypatch.setattr(fused, "_chosen", lambda given, added: fused.EFFICIENT)
    with FakeTensorMode(allow_non_fake_inputs=True):
        call = there(call, dtype)
        if call.bias is not None:
            call = replace(call, bias=torch.empty(call.bias.shape, device="cuda"))
        if ", with gradients" in kind.calls:
            call = trained(call)
        assert taken(call) == kind.cuda
        monkeypatch.setattr(fused, "_CHOICE", None)
        assert taken(call) == BLOCKS
        if "sink logit" not in kind.calls:  # a fake tensor of another device cannot be made wider
            z = fused.output_alone(call)
            assert (z is not None) == (kind in KINDS[:2]) and (z is None or z.shape == call.q.shape)


def trained(call):
    """The call whose bias, or else queries, get a gradient."""
    if call.bias is not None:
        return replace(call, bias=call.bias.clone().requires_grad_())
    return replace(call, q=call.q.clone().requires_grad_())


def taken(call):
    return BLOCKS if fused.attended(call) is None else KERNEL


@pytest.mark.parametrize("fields", NO_SOFT_CAP.values(), ids=NO_SOFT_CAP)
def test_on_a_cpu_the_path_gives_the_dense_output_and_log_sum(make_call, fields):
    call = make_call(**fields)
    z, log_sum = wanted(call)
    torch.testing.assert_close(call.output(), z, rtol=0, atol=2e-6)
    torch.testing.assert_close(call.log_normaliser(), log_sum, rtol=0, atol=2e-6)


def test_gradients_through_a_sink_logit_and_to_a_bias_are_those_of_the_dense_pattern(make_call):
    for fields in (FIELDS["sink logit"], FIELDS["ALiBi"]):
        call = make_call(**fields)
        trained = call.bias.clone() if call.bias is not None else call.slot.logit.clone()
        trained.requires_grad_()
        call = replace(call, bias=trained) if call.bias is not None else replace(call, slot=SinkLogit(trained))
        weights = torch.randn(2, 6, T, 5)
        got, want = (
            torch.autograd.grad((z * weights).sum(), trained)[0] for z in (call.output(), call.mix(call.pattern()))
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("slot", [row(), SinkLogit(torch.randn(6))], ids=["a key and a value", "a sink logit"])
def test_a_slot_before_many_tokens_needs_no_mask_and_trains_as_the_dense_pattern_does(make_call, monkeypatch, slot):
    monkeypatch.setattr(fused, "LONG", T - 1)
    monkeypatch.setattr(Visibility, "allowed", lambda *given: pytest.fail("a mask"))
    slot = type(slot)(*(getattr(slot, name).requires_grad_() for name in slot.__dataclass_fields__))
    call = make_call(slot=slot, queries=T, keys=T)
    leaves = [t.requires_grad_() for t in (call.q, call.k, call.v)]
    leaves += [getattr(slot, name) for name in slot.__dataclass_fields__]
    weights = torch.randn(call.output().shape)
    z = call.output()
    monkeypatch.undo()
    both = z, call.mix(call.pattern())
    trained, dense = ([z, *torch.autograd.grad((z * weights).sum(), leaves)] for z in both)
    torch.testing.assert_close(trained, dense, rtol=0, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(fused.attended(replace(call))[1], wanted(call)[1], rtol=0, atol=1e-5)
