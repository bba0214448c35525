"""Biases of projections, worked by hand."""

import pytest
import torch

from sinkinterp import interventions as iv
from sinkinterp.errors import InputError
from sinkinterp.interventions.edit import HeadWeights

WEIGHTS = HeadWeights(torch.randn(3, 5, 7), torch.ones(3, 5), group=2)  # six query heads share three keys
SITES = [
    (iv.ZeroQueryBias, "query_weights"),
    (iv.ZeroKeyBias, "key_weights"),
    (iv.ZeroValueBias, "value_weights"),
]


@pytest.mark.parametrize(("edit", "site"), SITES)
def test_the_bias_of_the_chosen_heads_and_of_whom_they_share_it_with_is_zero_in_the_chosen_layers(edit, site):
    def left(layer, **on):
        weights = getattr(edit(**on), site)(layer, WEIGHTS)
        assert weights.weight is WEIGHTS.weight
        return weights.bias[:, 0].tolist()

    assert left(4) == [0, 0, 0]
    assert left(4, layers=[4]) == [0, 0, 0] and left(3, layers=[4]) == [1, 1, 1]
    assert left(4, heads=[(4, 3)]) == [1, 0, 1] and left(4, heads=[(4, 0), (4, 5), (2, 3)]) == [0, 1, 0]
    assert left(3, heads=[(4, 3)]) == [1, 1, 1]


def test_blind_keys_read_all_other_dimensions_as_before():
    blind = iv.BlindKeys([1, 4], layers=[2]).key_weights(2, WEIGHTS).weight
    x = torch.randn(11, 7)
    expected = torch.einsum("hed,nd->hne", WEIGHTS.weight, x * torch.tensor([1, 0, 1, 1, 0, 1, 1]))
    torch.testing.assert_close(torch.einsum("hed,nd->hne", blind, x), expected)
    assert iv.BlindKeys([1, 4], layers=[2]).key_weights(3, WEIGHTS) is WEIGHTS


@pytest.mark.parametrize(("edit", "site"), SITES)
def test_a_layer_without_a_bias_is_named_where_its_bias_should_be_zero(edit, site):
    bare = HeadWeights(WEIGHTS.weight, None, group=2)
    assert getattr(edit(layers=[4]), site)(3, bare) is bare
    with pytest.raises(InputError, match="layer 4 has no such bias"):
        getattr(edit(layers=[4]), site)(4, bare)
