import base64
import gzip
import json
import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from backends.zoo import model_of, tokens_of
from hypothesis import given, settings, strategies as st
from pages.atlases import NASTY, about, decoded, report_of, small_atlas
from pages.test_page import WORDS, Reader
from refusals import refused

import sinkinterp as si
from sinkinterp.attention.maps import COSINE, NORM_PRODUCT, QUANTITIES, SCORE, WEIGHT
from sinkinterp.attention.sites import Edit
from sinkinterp.pages import atlas as detail, atlas_page as atlases
from sinkinterp.pages.atlas import Detail, atlas, richest
from sinkinterp.pages.atlas_page import SLOT, Scale, atlas_page, encode, linear, logarithmic
from sinkinterp.pages.page import TEMPLATES
from sinkinterp.report.readings import public_name, short_name
from sinkinterp.table import Table

PLACES = ("model", "source", "state", "title", "note", "column", "cell", "token")


@pytest.fixture(scope="module", autouse=True)
def short():
    """Pages without plotly's own code, which is the same in all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atlases, "get_plotlyjs", lambda: "plotly's own code")
        atlases.packed_plotly.cache_clear()
        yield
    atlases.packed_plotly.cache_clear()


def made(words):
    table = Table.of(words["title"], words["note"], ({f"c{words['column']}": words["cell"], "n": 0.5},))
    fields = {name: words[name] for name in ("model", "source")}
    atlas, _ = small_atlas(states=(words["state"], "b"), words=[words["token"]] * 7, tables=(table,), **fields)
    return atlas_page(atlas)


@pytest.fixture(scope="module")
def plain(short):
    return made(dict.fromkeys(PLACES, "word"))


def scale_of(html, channel):
    return next(Scale(**data["scale"]) for data in about(html)["channels"] if data["name"] == channel)


def block(html, name, dtype=np.uint8):
    text = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', html)[1]
    return np.frombuffer(gzip.decompress(base64.b64decode(text)), dtype)


@settings(max_examples=40, deadline=None, database=None)
@given(st.fixed_dictionaries(dict.fromkeys(PLACES, WORDS)))
def test_whatever_the_words_the_tags_are_the_same_and_the_words_are_data(plain, words):
    html = made(words)
    read = Reader(html)
    assert read.tags == Reader(plain).tags
    assert read.inside("title") == [f"sinkinterp: {short_name(words['model'])}"]
    said = about(html)
    assert said["tokens"] == [words["token"]] * 7 and said["states"] == [words["state"], "b"]
    assert said["tables"][0]["rows"] == [[words["cell"], "0.500"]]
    assert said["model"] == short_name(words["model"]) and public_name(words["model"]) in said["lead"]
    assert not words["source"] or f"source: {words['source']}" in said["protocol"]


@pytest.mark.parametrize("word", [*NASTY, "\ud800", "\u2028\u2029", "]]>"])
def test_json_in_a_script_cannot_end_it(word):
    text = TEMPLATES.from_string("{{ data|tojson }}").render(data={word: [word]})
    assert json.loads(text) == {word: [word]}
    assert not set("<>&\u2028\u2029") & set(text) and text.isascii()


def test_the_page_holds_the_weights_to_the_precision_it_states():
    atlas, _ = small_atlas(length=23, side=2, bits=8)
    html, run = atlas_page(atlas), atlas.runs["as it is"]
    scale = scale_of(html, "weight")
    assert "weights to within 2%, or as 0 below" in about(html)["protocol"]
    values = decoded(scale, block(html, "weight-0-4").reshape(3, 2, 12, 12))
    np.testing.assert_allclose(values, run.channels[WEIGHT][3:], rtol=np.expm1(scale.step / 2) * 1.01)
    assert block(html, "pairs-0", "<u4").reshape(12, 12).tolist() == run.pairs[1].tolist()
    assert "pairs-1" not in html  # one mask, one block


def test_two_bytes_hold_scores_to_the_precision_they_state():
    atlas, _ = small_atlas()
    html = atlas_page(atlas)
    scale = scale_of(html, "score")
    low, high = block(html, "score-0-1").reshape(2, 3, 7, 7).astype(int)
    scores = decoded(scale, low + 256 * high)
    np.testing.assert_allclose(scores, atlas.runs["as it is"].channels[SCORE][:3, 0], atol=scale.step)


def test_the_caption_says_how_many_pairs_a_cell_covers(plain):
    coarse = atlas_page(small_atlas(length=23, side=2)[0])
    for html, words in ((coarse, "One stored cell covers 2 x 2 pairs"), (plain, "One cell is one pair")):
        assert words in about(html)["captions"]["head"]


def test_both_states_and_the_slot_share_the_scale_of_weights():
    atlas, dense = small_atlas(states=("before", "after"), slot=True)
    larger = replace(atlas.runs["after"], slot=atlas.runs["after"].slot * 3)
    scale = scale_of(atlas_page(replace(atlas, runs=atlas.runs | {"after": larger})), "weight")
    assert scale.high == pytest.approx(max(larger.slot.max(), np.nanmax(dense)))


def test_one_atlas_is_one_page():
    assert atlas_page(small_atlas()[0]) == atlas_page(small_atlas()[0])


def test_the_head_that_opens_is_the_strongest_also_where_codes_round_two_to_one_number():
    atlas, _ = small_atlas()
    importance = np.zeros((2, 3, 7))
    importance[1, :, 0] = 1 - 2e-6, 1 - 3e-6, 1 - 1e-6
    run = replace(atlas.runs["as it is"], report=report_of(importance))
    opened = encode(replace(atlas, runs={"as it is": run}))[0]
    assert opened.maps[opened.strongest] == (4, 2)


def test_zero_and_what_is_too_small_is_code_1_of_a_logarithmic_scale():
    scale = logarithmic(np.array([0.0, 1e-30, 0.5]), 8)
    assert (scale.low, scale.high) == (pytest.approx(5e-7), 0.5)
    assert scale.codes(np.array([0.0, 1e-30, 1e-7, 5e-7, 0.5])).tolist() == [1, 1, 1, 2, 255]
    assert decoded(scale, np.array([1])).tolist() == [0]


def test_a_scale_of_nothing_or_of_one_number_has_codes():
    assert logarithmic(np.zeros(3), 8).codes(np.zeros(3)).tolist() == [1, 1, 1]
    one = logarithmic(np.full(2, 0.25), 8)
    assert decoded(one, one.codes(np.full(2, 0.25))) == pytest.approx([0.25, 0.25])
    same = linear(np.full(2, -3.0), 8)
    assert decoded(same, same.codes(np.full(2, -3.0))) == pytest.approx([-3, -3])


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
    (run,) = drawn.runs.values()
    assert drawn.detail == Detail(1, 16, QUANTITIES) and tuple(run.channels) == QUANTITIES
    np.testing.assert_allclose(run.channels[WEIGHT][:, 0], expected, atol=1e-5)
    products = run.channels[COSINE] * run.channels[NORM_PRODUCT]
    np.testing.assert_allclose(run.channels[SCORE], products, rtol=1e-3, atol=1e-4)
    assert encode(drawn)[0].tokens == [f"t{token}" for token in TOKENS[0].tolist()]
    layers = subject.shape.attention_layers
    assert drawn.maps == [(layer, head) for layer in layers for head in range(subject.shape.n_heads)]
    pairs = np.stack([run.pairs[layer] for layer in layers])
    assert np.array_equal(pairs, masks_of(subject)[:, 0].numpy())


@pytest.mark.parametrize("name", MODELS)
def test_the_overviews_importance_is_what_measure_says(name):
    subject = subject_of(name)
    drawn, report = atlas(subject, TOKENS), si.measure(subject, TOKENS)
    page, blocks = encode(drawn)
    low, high = (
        np.frombuffer(gzip.decompress(base64.b64decode(blocks["importance-0"])), np.uint8).reshape(2, -1)
    ).astype(int)
    importance = decoded(page.importance.scale, low + 256 * high).reshape(*report.alpha()[0].shape, -1)
    for i, place in enumerate(page.places):
        alpha = report.slot_importance if place == SLOT else report.alpha(place)
        np.testing.assert_allclose(importance[..., i], alpha[0].numpy(), rtol=2e-4)
    assert (SLOT in page.places) == (report.slot_importance is not None) == bool(page.slot_blocks)
    assert page.places[0] == 0


def test_cells_of_several_tokens_come_with_what_every_token_receives():
    subject, heads = subject_of("gpt2"), [(0, 1), (1, 0)]
    drawn = atlas(subject, TOKENS, heads=heads, limit=40)
    importance = si.measure(subject, TOKENS).importance[0]
    expected = torch.stack([importance[layer, head] for layer, head in heads]).mean(0)
    assert drawn.detail.side > 1
    np.testing.assert_allclose(encode(drawn)[0].received, [expected.tolist()], rtol=6e-3)
    assert encode(atlas(subject, TOKENS))[0].received == [[]]  # every pair is there


def test_some_heads_are_the_same_as_among_all():
    subject = subject_of("mistral with a window")
    every, some = atlas(subject, TOKENS), atlas(subject, TOKENS, heads=[(1, 3), (0, 2), (1, 0)])
    (of_some,), (of_every,) = some.runs.values(), every.runs.values()
    assert some.maps == [(0, 2), (1, 0), (1, 3)] and of_some.pairs.keys() == {0, 1}
    where = [every.maps.index(head) for head in some.maps]
    for name, cells in of_some.channels.items():
        np.testing.assert_allclose(cells, of_every.channels[name][where], rtol=1e-4, atol=1e-6)


def test_with_edits_every_map_stands_before_and_after():
    subject, edit = subject_of("gpt2"), si.SwapPositions(0, 4)
    runs = atlas(subject, TOKENS, edits=[edit]).runs
    for name, edits in (("before", ()), ("after", [edit])):
        dense = patterns_of(subject, edits).flatten(0, 1).tril()
        np.testing.assert_allclose(np.nan_to_num(runs[name].channels[WEIGHT][:, 0]), dense, atol=1e-5)


@dataclass(frozen=True)
class Uniform(Edit):
    """Every pattern set, by hand: uniform over half of the row's weight, so that its proxy is uniform."""

    def call(self, call):
        seen = call.allowed().expand(call.q.shape[0], call.q.shape[1], -1, -1).float()
        return call.with_pattern(0.5 * seen / seen.sum(-1, keepdim=True))


def test_patterns_that_an_edit_sets_are_drawn_as_they_are():
    after = atlas(subject_of("gpt2"), TOKENS, edits=[Uniform()]).runs["after"]
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
    assert (drawn.detail.side, drawn.detail.bits) == (2, 8)
    weights = drawn.runs["as it is"].channels[WEIGHT]
    dense = patterns_of(subject).flatten(0, 1).numpy()
    np.testing.assert_allclose(weights[:, 0, 3, 1], dense[:, 6:8, 2:4].max((1, 2)), rtol=1e-4)
    np.testing.assert_allclose(weights[:, 1, 3, 1], dense[:, 6:8, 2:4].mean((1, 2)), rtol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "options"),
    [(tokens_of(), {}), (TOKENS, {"heads": [(0, 99)]}), (TOKENS, {"heads": []}), (TOKENS, {"limit": 3})],
)
def test_an_atlas_of_wrong_tokens_or_options_is_refused(tokens, options):
    refused(lambda: atlas(subject_of("gpt2"), tokens, **options))
