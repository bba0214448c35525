from dataclasses import replace

import numpy as np
import pytest
import torch
from attention.layouts import layouts, random_mask
from refusals import refused

from sinkinterp.attention import maps
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import ClampedSum, Kernel, Raw, Sigmoid, Unit
from sinkinterp.attention.maps import of_heads, pairs, slot_cells
from sinkinterp.attention.masks import Causal, Prefix
from sinkinterp.attention.slots import SinkLogit, SlotRow

T = 23
INDEX = torch.arange(T)


CALLS = layouts(T, 6) | {
    "prefix": {"mask": (Causal() | Prefix(5)).allows(INDEX[:, None], INDEX)[None, None]},
    "mask of each head": {"mask": random_mask(T)},
    "sigmoid": {"kernel": Kernel(similarity=Sigmoid(), normaliser=Unit(), alpha=0.3)},
    "signed": {"kernel": Kernel(similarity=Raw(), normaliser=ClampedSum())},
    "after a cache": {"keys": 29},
}
every_call = pytest.mark.parametrize("fields", CALLS.values(), ids=CALLS)


def expected(dense, allowed, side):
    """Largest and mean over allowed pairs of each square, one square after the other."""
    allowed = np.broadcast_to(allowed, dense.shape)
    rows, columns = -(-dense.shape[2] // side), -(-dense.shape[3] // side)
    cells = np.full((*dense.shape[:2], 2, rows, columns), np.nan)
    for b, h, i, j in np.ndindex(*dense.shape[:2], rows, columns):
        square = (b, h, slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side))
        values = dense[square][allowed[square]]
        if len(values):
            cells[b, h, :, i, j] = values.max(), values.mean()
    return cells


@pytest.fixture(params=[1, 2, 3, 7, 11, 40])
def side(request):
    return request.param


@every_call
def test_cells_are_the_largest_and_the_mean_of_the_dense_pattern(make_call, monkeypatch, fields, side):
    monkeypatch.setattr(maps, "SPAN", 5)
    call = make_call(queries=T, **fields)
    dense = call.proxy().pattern()[..., -call.k.shape[2] :].double().numpy()
    oracle = expected(dense, call.allowed().numpy(), side)
    np.testing.assert_allclose(maps.cells(call, side).numpy(), oracle, rtol=1e-4, atol=1e-6)


@every_call
def test_slot_cells_are_those_of_the_patterns_first_column(make_call, fields, side):
    call = make_call(queries=T, **fields)
    cells = slot_cells(call, side).numpy()
    if call.slot is None:
        assert np.isnan(cells).all() and cells.shape == (2, 6, 2, -(-T // side))
    else:
        column = call.proxy().pattern()[..., :1].double().numpy()
        oracle = expected(column.repeat(side, 3), np.ones_like(column, bool).repeat(side, 3), side)[..., 0]
        np.testing.assert_allclose(cells, oracle, rtol=1e-4)


@every_call
def test_pairs_count_what_may_attend(make_call, monkeypatch, fields, side):
    monkeypatch.setattr(maps, "SPAN", 5)
    call = make_call(queries=T, **fields)
    counts, allowed = pairs(call, side), call.allowed()[:, :1].expand(2, -1, -1, -1)
    assert counts.sum((1, 2)).tolist() == allowed.sum((1, 2, 3)).tolist()
    oracle = np.isnan(expected(allowed.double().numpy(), allowed.numpy(), side)[:, 0, 0])
    assert np.array_equal(counts.numpy() == 0, oracle)
    corner = allowed[:, 0, :side, :side].sum((1, 2))
    assert counts[:, 0, 0].tolist() == corner.tolist()


@pytest.mark.parametrize("name", ["causal", "window", "key slot", "after a cache"])
def test_the_score_is_cosine_times_norm_product(make_call, name):
    call = make_call(queries=T, **CALLS[name])
    score, cosine, product = (maps.cells(call, 1, tile)[:, :, 1] for tile in maps.QUANTITIES[1:])
    torch.testing.assert_close(score, cosine * product, equal_nan=True, rtol=1e-4, atol=1e-5)
    seen = call.allowed().expand_as(score)
    torch.testing.assert_close(score[seen], call.scores()[seen])
    assert cosine[seen].abs().max() <= 1 + 1e-6


@pytest.mark.parametrize("shared", [False, True])
def test_some_heads_keep_their_own_keys_masks_and_slots(make_call, shared):
    fields = {"mask": CALLS["mask of each head"]["mask"], "bias": torch.randn(1, 6, T, T)}
    if shared:
        fields = {name: value[:, 2:3] for name, value in fields.items()}
    for slot in (None, SinkLogit(torch.randn(6)), SlotRow(torch.randn(6, 1, 5), torch.randn(6, 1, 5))):
        call = make_call(queries=T, slot=slot, **fields)
        some = of_heads(call, [5, 0, 2])
        torch.testing.assert_close(some.pattern(), call.pattern()[:, [5, 0, 2]])
        torch.testing.assert_close(maps.cells(some, 3), maps.cells(call, 3)[:, [5, 0, 2]], equal_nan=True)


def test_a_pattern_that_an_edit_set_has_cells_too(make_call):
    call = make_call(queries=T, slot=SinkLogit(torch.randn(6)))
    given = torch.rand(2, 6, T, T + 1).tril(1)
    given = given / given.sum(-1, keepdim=True)
    fixed = call.with_pattern(given)
    oracle = expected(given[..., 1:].double().numpy(), fixed.allowed().numpy(), 4)
    np.testing.assert_allclose(maps.cells(fixed, 4).numpy(), oracle, rtol=1e-5)
    torch.testing.assert_close(slot_cells(of_heads(fixed, [4]), T)[:, 0, 0, 0], given[:, 4, :, 0].amax(-1))
    assert fixed.slot_mass().equal(given[..., 0].sum(2))
    assert not replace(call, slot=None).with_pattern(given[..., 1:]).slot_mass().any()


def test_values_of_a_quantity_reach_its_bounds_and_do_not_leave_them():
    key = torch.tensor([[[[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]]])
    call = AttentionCall(0, 300 * key, key, key, 1.0)  # cosines of 1, -1 and 0, weights of 1 and 0
    ends = ((0, 1), (None, None), (-1, 1), (0, None))
    for quantity, (low, high) in zip(maps.QUANTITIES, ends, strict=True):
        values = maps.visible(call, quantity)[call.allowed()]
        assert (quantity.low, quantity.high) == (low, high) and 10**-quantity.decimals <= 0.01
        assert low in (None, values.min().item()) and high in (None, values.max().item())


def test_the_largest_of_each_square_is_that_of_the_cells_and_squares_without_a_pair_stay_empty(make_call, side):
    call = make_call(queries=T, mask=CALLS["mask of each head"]["mask"])
    for quantity in maps.QUANTITIES:
        largest = maps.pooled(maps.visible(call, quantity), side)
        torch.testing.assert_close(largest, maps.cells(call, side, quantity)[:, :, 0], equal_nan=True)


def test_no_map_of_all_pairs_is_made(make_call, monkeypatch):
    sizes = []
    scores = AttentionCall.scores
    monkeypatch.setattr(AttentionCall, "scores", lambda self, *a: sizes.append(out := scores(self, *a)) or out)
    call = make_call(queries=1031, n_heads=2, n_kv_heads=1, batch=1)
    maps.cells(call, 13)
    assert max(size.shape[2] * size.shape[3] for size in sizes) <= maps.SPAN**2
    assert sum(size.shape[2] * size.shape[3] for size in sizes) < 0.8 * 1031**2  # blocks of the future are left out


def test_a_side_below_one_is_an_input_error(make_call):
    refused(lambda: maps.cells(make_call(), 0))
