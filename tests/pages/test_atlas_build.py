from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from backends.zoo import model_of, tokens_of
from pages.atlases import about
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.maps import COSINE, NORM_PRODUCT, QUANTITIES, SCORE, WEIGHT
from sinkinterp.attention.sites import Edit
from sinkinterp.pages.atlas import build as detail
from sinkinterp.pages.atlas.build import SLOT, Detail, atlas, richest
from sinkinterp.pages.atlas.encode import atlas_page

MODELS = ("gpt2", "mistral with a window", "gpt-oss with sink logits", "jamba with mamba layers")
TOKENS = tokens_of()[:1]
LENGTH = TOKENS.shape[1]
subject_of = cache(lambda name: si.load(model_of(name)))


def patterns_of(subject, edits=()):
    """Dense patterns of all attention layers, keys only: `layer head query key`."""
    read = {"pattern": lambda call: call.pattern()[..., -call.k.shape[2] :]}
    return subject.run(TOKENS, reads=read, edits=edits)["pattern"][0]


def masks_of(subject):
    read = {"mask": lambda call: call.allowed().expand(1, 1, -1, -1)}
    return subject.run(TOKENS, reads=read)["mask"][0]


@pytest.mark.parametrize("name", MODELS)
def test_an_atlas_holds_every_pair_of_a_short_text(name):
    subject = subject_of(name)
    drawn = atlas(subject, TOKENS, lambda token: f"t{token}")
    dense = patterns_of(subject).flatten(0, 1)
    allowed = masks_of(subject).expand(-1, subject.shape.n_heads, -1, -1).flatten(0, 1)
    expected = dense.masked_fill(~allowed, torch.nan).numpy()
    (state,) = drawn.states
    assert (drawn.side, drawn.bits, tuple(state.channels)) == (1, 16, QUANTITIES)
    np.testing.assert_allclose(state.channels[WEIGHT][:, 0], expected, atol=1e-5)
    products = state.channels[COSINE] * state.channels[NORM_PRODUCT]
    np.testing.assert_allclose(state.channels[SCORE], products, rtol=1e-3, atol=1e-4)
    assert drawn.tokens == [f"t{token}" for token in TOKENS[0].tolist()]
    layers = subject.shape.attention_layers
    assert drawn.maps == [(layer, head) for layer in layers for head in range(subject.shape.n_heads)]
    pairs = np.stack([drawn.pairs[layer] for layer in layers])
    assert np.array_equal(pairs, masks_of(subject)[:, 0].numpy())


@pytest.mark.parametrize("name", MODELS)
def test_the_overviews_importance_is_what_measure_says(name):
    subject = subject_of(name)
    drawn, report = atlas(subject, TOKENS), si.measure(subject, TOKENS)
    for i, place in enumerate(drawn.places):
        alpha = report.slot_importance if place == SLOT else report.alpha(place)
        np.testing.assert_allclose(drawn.states[0].importance[..., i], alpha[0].numpy())
    assert (SLOT in drawn.places) == (report.slot_importance is not None) == (drawn.states[0].slot is not None)
    assert drawn.places[0] == 0


def test_cells_of_several_tokens_come_with_what_every_token_receives():
    subject, heads = subject_of("gpt2"), [(0, 1), (1, 0)]
    drawn = atlas(subject, TOKENS, heads=heads, limit=40)
    importance = si.measure(subject, TOKENS).importance[0]
    expected = torch.stack([importance[layer, head] for layer, head in heads]).mean(0)
    assert drawn.side > 1
    np.testing.assert_allclose(drawn.states[0].received, expected, atol=1e-6)
    assert atlas(subject, TOKENS).states[0].received == ()  # every pair is there


def test_some_heads_are_the_same_as_among_all():
    subject = subject_of("mistral with a window")
    every, some = atlas(subject, TOKENS), atlas(subject, TOKENS, heads=[(1, 3), (0, 2), (1, 0)])
    assert some.maps == [(0, 2), (1, 0), (1, 3)] and some.pairs.keys() == {0, 1}
    where = [every.maps.index(head) for head in some.maps]
    for name, cells in some.states[0].channels.items():
        np.testing.assert_allclose(cells, every.states[0].channels[name][where], rtol=1e-4, atol=1e-6)


def test_with_edits_every_map_stands_before_and_after():
    subject, edit = subject_of("gpt2"), si.SwapPositions(0, 4)
    before, after = atlas(subject, TOKENS, edits=[edit]).states
    assert (before.name, after.name) == ("before", "after")
    for state, edits in ((before, ()), (after, [edit])):
        dense = patterns_of(subject, edits).flatten(0, 1).tril()
        np.testing.assert_allclose(np.nan_to_num(state.channels[WEIGHT][:, 0]), dense, atol=1e-5)


@dataclass(frozen=True)
class Uniform(Edit):
    """Every pattern set, by hand: uniform over half of the row's weight, so that its proxy is uniform."""

    def call(self, call):
        seen = call.allowed().expand(call.q.shape[0], call.q.shape[1], -1, -1).float()
        return call.with_pattern(0.5 * seen / seen.sum(-1, keepdim=True))


def test_patterns_that_an_edit_sets_are_drawn_as_they_are():
    _, after = atlas(subject_of("gpt2"), TOKENS, edits=[Uniform()]).states
    expected = np.where(np.tril(np.ones((LENGTH, LENGTH))), 1 / np.arange(1, LENGTH + 1)[:, None], np.nan)
    np.testing.assert_allclose(after.channels[WEIGHT][:, 0], np.broadcast_to(expected, (12, LENGTH, LENGTH)), rtol=1e-5)


def test_a_smaller_limit_gives_fewer_numbers_and_then_larger_cells():
    sides = [richest(1024, 1200, limit).side for limit in (detail.LIMIT, 10**8, 10**9)]
    assert sides == [13, 4, 1]
    assert richest(64, 144) == Detail(1, 16, QUANTITIES)


@pytest.mark.parametrize(("length", "maps", "limit"), [(1024, 1200, 8_500_000), (16_384, 1, 8_500_000), (97, 7, 5000)])
def test_a_plan_stays_within_its_limit_and_wastes_little(length, maps, limit):
    stored = richest(length, maps, limit)
    most = min(limit / maps, detail.PER_MAP)
    assert stored.size(length) <= most < Detail(stored.side - 1, 8, (WEIGHT,)).size(length)


def test_a_page_under_a_limit_has_exact_cells():
    subject = subject_of("gpt2")
    drawn = atlas(subject, TOKENS, limit=12 * 2 * 45)
    assert (drawn.side, drawn.bits) == (2, 8)
    weights = drawn.states[0].channels[WEIGHT]
    dense = patterns_of(subject).flatten(0, 1).numpy()
    np.testing.assert_allclose(weights[:, 0, 3, 1], dense[:, 6:8, 2:4].max((1, 2)), rtol=1e-4)
    np.testing.assert_allclose(weights[:, 1, 3, 1], dense[:, 6:8, 2:4].mean((1, 2)), rtol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "options"),
    [(tokens_of(), {}), (TOKENS, {"heads": [(0, 99)]}), (TOKENS, {"heads": []}), (TOKENS, {"limit": 3})],
)
def test_an_atlas_of_wrong_tokens_or_options_is_refused(tokens, options):
    refused(lambda: atlas(subject_of("gpt2"), tokens, **options))


def test_the_page_says_summary_first_and_protocol_last():
    html = atlas_page(atlas(subject_of("gpt2"), TOKENS))
    assert "Is there a sink on the first token?" in html and '"protocol":"model: ' in html


def test_a_view_takes_pairs_of_layer_and_head():
    page = si.view(subject_of("gpt2"), TOKENS, heads=[(2, 3), (0, 1)], open_browser=False)
    assert about(page.html)["maps"] == [[0, 1], [2, 3]]
