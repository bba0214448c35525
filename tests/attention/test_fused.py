"""Which kernel takes a call, that each gives what the dense pattern gives, and what happens without them.

No test needs a GPU: `benchmarks.gpu_checks` compares the kernels of one. On fake CUDA tensors nothing is computed:
shapes, strides and dtypes are those that PyTorch says its kernels return. `imitated` computes on the CPU what CUDA's
kernels return, with their padding and their demands.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

from sinkinterp.attention import fused
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import SOFTMAX, Kernel, Sigmoid
from sinkinterp.attention.masks import BLOCK, Causal, Visibility, Window
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


LONG = 2 * BLOCK + 3
ERRORS = {torch.float32: 1e-5, torch.bfloat16: 2e-4}
OF_MASSES = {
    "causal": {},
    "a scale that bf16 does not hold": {"scale": 0.377},
    "large scores": {"scale": 2.0},
    "key slot": {"slot": SlotRow(torch.randn(6, 1, 5).bfloat16().float(), torch.randn(6, 1, 5))},
    "sink logit": {"slot": SinkLogit(torch.randn(6))},
}


def exact(call):
    """The masses in fp64."""
    names = ("q", "k", "v")
    return replace(call, **{name: getattr(call, name).double() for name in names}).pattern()[..., -LONG:].sum(2)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("fields", OF_MASSES.values(), ids=OF_MASSES)
def test_one_pass_gives_what_every_key_receives(make_call, monkeypatch, fields, dtype):
    monkeypatch.setattr(fused, "takes_all_columns", lambda call: True)
    monkeypatch.setattr(AttentionCall, "runs", None)
    call = make_call(queries=LONG, **fields)
    call = replace(call, **{name: getattr(call, name).to(dtype) for name in "qkv"})
    want = exact(call)
    torch.testing.assert_close(call.column_mass().double(), want, rtol=ERRORS[dtype], atol=1e-6)
    some = torch.randperm(LONG)[: BLOCK + 1]  # fewer are read by the log-sum-exp
    torch.testing.assert_close(call.column_mass(some).double(), want[..., some], rtol=ERRORS[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("d_head", [3, 8, 13])
def test_the_kernel_is_given_heads_of_a_multiple_of_eight_dimensions(monkeypatch, d_head, dtype):
    given = []
    monkeypatch.setattr(fused, "attend", given.append)
    q, k = (torch.randn(2, n, LONG, d_head, dtype=dtype) for n in (6, 3))
    assert fused.column_masses(fused.Inputs(0, q, k, k, 0.5), torch.randn(2, 6, LONG)) is None
    n_parts = {torch.float32: 1, torch.bfloat16: 3}[dtype]
    assert given[0].q.shape == given[0].k.shape == (2, 6, LONG, -(-(d_head + n_parts) // 8) * 8)


def test_without_a_kernel_the_masses_come_in_blocks(make_call, monkeypatch):
    call = make_call(queries=LONG)
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
