"""Arguments of metrics that mean nothing."""

from functools import partial

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, jaxtyped
from refusals import refused
from torch import Tensor

from sinkinterp.metrics import importance, qk, residuals

NAN = float("nan")
X, ALPHA = torch.ones(2, 1, 3), torch.ones(2, 3, 5, 7)
TOKENS = torch.zeros(2, 7, dtype=torch.long)
REFUSED = {
    "epsilon": [(read, e) for e in (0.0, 1.0, -0.1, 30.0, NAN) for read in (
        partial(importance.sink_rate, ALPHA[..., 0]), lambda e: importance.sink_grid(ALPHA, (0.3, e)),
        partial(importance.sink_tokens, ALPHA, TOKENS),
    )],
    "epsilons": [(importance.sink_grid, ALPHA, ())],
    "share": [(importance.sink_positions, ALPHA, ALPHA, 0.3, share) for share in (-0.1, 1.0, NAN)],
    "count": [(residuals.top_entries, X, count) for count in (0, 4)],
    "least": [(residuals.steps, torch.ones(5), least) for least in (1.0, 0.5, NAN)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "given"), [(name, given) for name, every in REFUSED.items() for given in every])
def test_an_argument_that_means_nothing_is_refused_by_its_name(name, given):
    read, *arguments = given
    assert refused(partial(read, *arguments)).startswith(name)


@pytest.mark.parametrize("position", [-1, 11, 12])
def test_a_key_that_is_not_there_is_refused(make_call, position):
    refused(lambda: qk.qk_angles(make_call(), position), "position")


@pytest.mark.parametrize("read", [qk.qk_norm_products, qk.qk_angles])
def test_one_key_alone_has_no_others(make_call, read):
    refused(lambda: read(make_call(queries=1)))
    assert read(make_call(queries=2)).isfinite().all()


@jaxtyped(typechecker=beartype)  # ours in its place
def product(x: Float[Tensor, "row column"], y: Float[Tensor, " column"]) -> Float[Tensor, " row"]:
    return x @ y if len(x) > 2 else y


def test_the_sizes_of_every_call_are_its_own():
    ones = torch.ones
    assert product(ones(3, 5), ones(5)).tolist() == [5, 5, 5] == product(ones(3, 5), ones(5)).tolist()
    assert product(ones(7, 2), ones(2)).shape == (7,)


@pytest.mark.parametrize("sizes", [((3, 5), (7,)), ((3,), (3,)), ((2, 5), (5,))])
def test_sizes_are_the_same_in_all_arguments_and_in_the_result(sizes):
    with pytest.raises(BeartypeCallHintViolation):
        product(*map(torch.ones, sizes))


def test_a_tensor_has_the_dtype_that_is_stated():
    with pytest.raises(BeartypeCallHintViolation):
        product(torch.ones(3, 5).long(), torch.ones(5))
