"""Biases of projections, worked by hand."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from refusals import refused

from sinkinterp import interventions as iv
from sinkinterp.attention.sites import HeadWeights
from sinkinterp.backends.anatomy.projections import LazyWeights

WEIGHTS = HeadWeights(torch.randn(3, 5, 7), torch.ones(3, 5), group=2)
SITES = [
    (iv.ZeroQueryBias, "query_weights"),
    (iv.ZeroKeyBias, "key_weights"),
    (iv.ZeroValueBias, "value_weights"),
]


@pytest.mark.parametrize(("edit", "site"), SITES)
def test_the_bias_of_the_chosen_heads_is_zero_in_the_chosen_layers(edit, site):
    def left(layer, **on):
        weights = getattr(edit(**on), site)(layer, WEIGHTS)
        assert weights.weight is WEIGHTS.weight
        return weights.bias[:, 0].tolist()

    assert left(4) == [0, 0, 0]
    assert left(4, layers=[4]) == [0, 0, 0] and left(3, layers=[4]) == [1, 1, 1]
    named = "heads" if edit is iv.ZeroQueryBias else "kv_heads"
    assert left(4, **{named: [(4, 1)]}) == [1, 0, 1] and left(4, **{named: [(4, 0), (4, 2), (2, 1)]}) == [0, 1, 0]
    assert left(3, **{named: [(4, 1)]}) == [1, 1, 1]


@pytest.mark.parametrize("edit", [iv.ZeroKeyBias, iv.ZeroValueBias])
def test_keys_and_values_are_chosen_by_kv_heads(edit):
    refused(lambda: edit(heads=[(4, 1)]))
    refused(lambda: edit(kv_heads=[(4, 1)], layers=[4]), "kv_heads")
    refused(lambda: edit(kv_heads=[(4, 1), (4, 1)]), "kv_heads")


def test_a_weight_is_computed_once_and_only_where_it_is_asked_for():
    made = []
    lazy = LazyWeights(cache(lambda: made.append(1) or WEIGHTS.weight), WEIGHTS.bias, 2)
    other = iv.ZeroKeyBias(kv_heads=[(4, 1)]).key_weights(4, lazy)
    assert other.bias[:, 0].tolist() == [1, 0, 1] and lazy.bias is WEIGHTS.bias and not made
    assert other.weight is lazy.weight is replace(other, bias=lazy.bias).weight and made == [1]


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
    refused(lambda: getattr(edit(layers=[4]), site)(4, bare), "4")
