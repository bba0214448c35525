"""Operations on tensors worked by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.interventions.changes import Apply, ClampNorm, MatchedNoise, Operation, WithoutMassive

X = torch.randn(3, 5, 7, 11, generator=torch.Generator().manual_seed(0))  # sequence head pos d
LAYER = 2


def test_each_operation_by_hand():
    assert iv.Zero()(LAYER, X).equal(0 * X)
    assert iv.SetTo(-1.5)(LAYER, X).equal(0 * X - 1.5)
    assert iv.Scale(2.0)(LAYER, X).equal(X + X)
    assert iv.SwapWith(0, 4)(LAYER, X).equal(X[:, :, [4, 1, 2, 3, 0, 5, 6]])
    torch.testing.assert_close(iv.MeanOfOthers()(LAYER, X)[1, 2, 3], X[1, 2, 1:].mean(0))


def test_numbers_that_are_left_out_are_those_that_the_documentation_names():
    for short, whole in (
        (MatchedNoise(), MatchedNoise(0)), (iv.MeanOfOthers(), iv.MeanOfOthers(1)),
        (WithoutMassive(), WithoutMassive(100.0, 1000.0)), (iv.AddSinkLogit(), iv.AddSinkLogit(0.0)),
    ):  # fmt: skip
        assert short == whole


@pytest.mark.parametrize("limit", [0.0, 0.5, 3.0, 100.0])
def test_clamping_never_lengthens_never_turns_and_stops_at_the_limit(limit):
    x = X.clone()
    x[0, 0, 0] = 0
    clamped = ClampNorm(limit)(LAYER, x)
    before, after = x.norm(dim=-1), clamped.norm(dim=-1)
    torch.testing.assert_close(after, before.clamp(max=limit))
    assert (after <= before).all()
    torch.testing.assert_close(clamped * before[..., None], x * after[..., None])
    short = before <= limit
    assert clamped[short].equal(x[short])


def test_massive_entries_become_zero_and_others_stay():
    x = torch.full((2, 3, 5), 0.5)
    x[0, 1, 2], x[0, 2, 4], x[1, 0, 0] = -600.0, 90.0, 400.0  # 1,200, 180 and 800 times the median of their sequence
    found = WithoutMassive()(LAYER, x)
    expected = x.clone()
    expected[0, 1, 2] = 0
    assert found.equal(expected) and WithoutMassive(80, 100)(LAYER, x).eq(0).sum() == 3


def test_a_single_sequence_stands_for_all_and_several_for_themselves():
    one, each = torch.randn(1, 5, 7, 11), torch.randn(3, 5, 7, 11)
    assert iv.Put({LAYER: one})(LAYER, X)[2].equal(one[0])
    assert iv.Put({LAYER: each})(LAYER, X).equal(each)
    assert iv.Add({LAYER: each})(LAYER, X).equal(X + each)
    assert iv.Add({LAYER: torch.zeros_like(X)})(LAYER, X).equal(X)


def test_one_vector_stands_for_all_and_a_function_is_an_operation():
    vector = torch.randn(11)
    assert iv.Add(vector)(LAYER, X).equal(X + vector) and iv.Put(vector)(LAYER, X)[2, 3, 4].equal(vector)
    alike = iv.Add(vector)
    alike.check_sequences(4)
    assert alike.for_sequences(torch.tensor([1])) is alike and repr(alike) == "Add(tensor(11,))"
    refused(lambda: iv.Add(torch.zeros(10))(LAYER, X), "10")
    edit = iv.ChangeResidual(lambda x: x / 2, layers=[LAYER], positions=[3])
    assert edit.residual(LAYER, X[:, 0])[:, 3].equal(X[:, 0, 3] / 2)
    assert edit.residual(LAYER, X[:, 0])[:, 4].equal(X[:, 0, 4]) and isinstance(edit.operation, Apply)
    for wrong in (iv.Zero, 3):
        refused(partial(iv.ChangeResidual, wrong), "operation")


def test_rows_choose_the_sequences_of_given_activations():
    each, one = torch.arange(4.0)[:, None, None], torch.full((1, 1, 1), 9.0)
    rows = torch.tensor([3, 1])
    chosen = iv.Put({0: each, 1: one}).for_sequences(rows)
    assert chosen.values[0].flatten().tolist() == [3, 1] and chosen.values[1].flatten().tolist() == [9]
    for alike in (iv.Put({1: one}), iv.Zero(), MatchedNoise()):
        assert alike.for_sequences(rows) is alike
        alike.check_sequences(4)
    edit = iv.ChangeResidual(iv.Add({0: each}), layers=[0]).for_sequences(rows)
    assert edit.residual(0, torch.zeros(2, 1, 1)).flatten().tolist() == [3, 1]


@pytest.mark.parametrize("shape", [(3, 5, 7, 10), (3, 5, 6, 11), (3, 4, 7, 11), (2, 5, 7, 11), (5, 7, 11)])
def test_activations_of_another_shape_are_refused_in_one_line(shape):
    for kind in (iv.Put, iv.Add):
        refused(partial(kind({LAYER: torch.zeros(shape)}), LAYER, X))


def test_what_an_operation_cannot_do_is_refused():
    refused(lambda: iv.Put({2: X})(3, X), "3")
    for make in (ClampNorm, WithoutMassive, partial(WithoutMassive, 1.0)):
        refused(partial(make, -0.01))
        make(0.0)
    with pytest.raises(NotImplementedError):
        Operation()(LAYER, X)


def test_an_exchange_with_a_position_that_is_not_there_is_refused_before_anything_runs():
    for other, absent in ((0, 7), "7"), ((-1, 2), "-1"):
        refused(partial(iv.SwapWith(*other).check, 7), absent)
    for fine in (iv.SwapWith(0, 6), iv.Zero()):
        fine.check(7)


@pytest.mark.parametrize(("seed", "layer"), [(0, 2), (3, 2), (3, 5)])
def test_matched_noise_is_the_draw_of_its_seed_and_layer_in_population_deviations(seed, layer):
    draw = torch.randn(X.shape[1:], generator=torch.Generator().manual_seed(1000 * seed + layer))
    deviation = (X - X.mean(2, keepdim=True)).square().mean(2, keepdim=True).sqrt()
    torch.testing.assert_close(MatchedNoise(seed)(layer, X), X.mean(2, keepdim=True) + deviation * draw)


def test_a_mean_of_others_skips_any_number_that_leaves_one():
    for skip in (0, 1, 6):
        iv.MeanOfOthers(skip).check(7)
        torch.testing.assert_close(iv.MeanOfOthers(skip)(LAYER, X), X[:, :, skip:].mean(2, keepdim=True).expand_as(X))
        residual = X[:, 0]
        torch.testing.assert_close(iv.MeanOfOthers(skip)(LAYER, residual), iv.MeanOfOthers(skip)(LAYER, X)[:, 0])
    for skip in (-1, 7, 8):
        refused(partial(iv.MeanOfOthers(skip).check, 7), "7")


@pytest.mark.parametrize(
    "values", [{3: torch.zeros(5)}, {3: torch.tensor(1.0)}, {3: [[1.0]]}, {0.5: X}, [X], X, torch.tensor(1.0)]
)
def test_given_activations_are_tensors_of_vectors_by_layer(values, as_users_run_it):
    for kind in (iv.Put, iv.Add):
        refused(partial(kind, values))


def test_every_sequence_takes_what_is_given_at_its_own_place():
    given = torch.randn(2, 5, 7, 11)
    rows, places = torch.tensor([1, 0, 1]), torch.tensor([[LAYER, 3, -1, -1], [LAYER, -1, 6, 4], [LAYER + 1, 0, 0, 0]])
    put, expected = iv.changes.PutAt({LAYER: given}, rows, places), X.clone()
    expected[0, 3] = given[1, 3]
    expected[1, :, 6, 4] = given[0, :, 6, 4]
    assert put(LAYER, X).equal(expected) and put.for_sequences(torch.tensor([1]))(LAYER, X[1:2]).equal(expected[1:2])
    rows_of_residuals = iv.changes.PutAt({LAYER: given[:, 0]}, rows, places[:, [0, 1, 3, 2]])  # which have no heads
    residual, expected = rows_of_residuals(LAYER, X[:, 0]), X[:, 0].clone()
    expected[0], expected[1, 4, 6] = given[1, 0], given[0, 0, 4, 6]
    assert residual.equal(expected)
    refused(lambda: iv.changes.PutAt({LAYER: given[:, :, 1:]}, rows, places)(LAYER, X))
    refused(lambda: put(LAYER + 1, X))
    lower = replace(put, places=places - torch.tensor([1, 0, 0, 0]))
    assert lower(LAYER, X)[:2].equal(X[:2])  # whose places are in another layer
    assert repr(put) == f"PutAt({{{LAYER}: tensor(2, 5, 7, 11)}})"
    put.check_sequences(3)
    for count in (2, 4):
        refused(partial(put.check_sequences, count), str(count))


def test_operations_leave_their_input_alone():
    before, given = X.clone(), {LAYER: torch.ones(3, 5, 7, 11)}
    plain = (
        iv.Zero(), iv.SetTo(2.0), iv.Scale(3.0), ClampNorm(0.1), WithoutMassive(), iv.MeanOfOthers(), MatchedNoise(),
    )  # fmt: skip
    for operation in (*plain, iv.SwapWith(1, 2), iv.Put(given), iv.Add(given)):
        operation(LAYER, X)
    assert X.equal(before) and given[LAYER].eq(1).all()
