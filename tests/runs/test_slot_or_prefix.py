"""Slots against prefixes: the same tokens are scored, edits do what their names say, and rules hold planted rows."""

import json
from contextlib import nullcontext

import pytest
import torch

import sinkinterp as si
from experiments import slot_or_prefix as chapter
from experiments.shared import corpora, prefixes
from experiments.shared.cases import Case
from sinkinterp.applications.quantising import fake_quantised
from sinkinterp.data.progress import silent
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.runs.experiment import Outcome
from sinkinterp.table import EDIT, INPUT, LENGTH, MODEL, Table, high_of, low_of

NAME = "sinkinterp/text-softmax-48k"
TEXTS = torch.randint(1024, (3, 17), generator=torch.Generator().manual_seed(5))
SEEN = torch.randint(1024, (5, 13), generator=torch.Generator().manual_seed(7))
PART = chapter.Part("C4", 17, (3, 3), (chapter.PLAIN, chapter.SLOT), (*chapter.W8, chapter.NULL))


@pytest.fixture(scope="module")
def subject():
    return si.load(NAME)


def read(subject, front):
    (reading,) = chapter.read(subject, front, SEEN, [(PART, TEXTS)])
    return reading


@pytest.mark.parametrize("prefix", [(11,), (11, 7, 500)])
def test_a_prefix_in_the_cache_is_that_prefix_before_the_text(subject, prefix):
    cache = prefixes.kept_in_cache(subject, prefix)
    with_tokens = token_losses(subject, prefixes.before(prefix, TEXTS))[:, len(prefix) :]
    torch.testing.assert_close(prefixes.loss_behind(subject, cache, TEXTS), with_tokens, atol=1e-5, rtol=1e-5)
    again = prefixes.loss_behind(subject, cache, TEXTS)
    torch.testing.assert_close(again, with_tokens, atol=1e-5, rtol=1e-5)  # a pass leaves the cache as it was


def test_every_front_scores_the_same_tokens_and_leaves_the_model_as_it_was(subject):
    plain = token_losses(subject, TEXTS)
    for front in (chapter.Front(chapter.PLAIN), chapter.Front(chapter.SLOT, position=0), chapter.Front("two", (3, 9))):
        losses = read(subject, front).losses
        assert {loss.shape for loss in losses.values()} == {(3, 16)}
        assert losses["loss"].allclose(plain, atol=1e-5) == (front.name == chapter.PLAIN)
        assert token_losses(subject, TEXTS).equal(plain)


def test_sixteen_bits_cost_nothing_and_eight_bits_do(subject):
    losses = read(subject, chapter.Front(chapter.PLAIN)).losses
    assert (losses[chapter.NULL] - losses["loss"]).abs().max() < 2e-3
    for way in chapter.W8:
        assert (losses[way] - losses["loss"]).abs().max() > 2e-3


@pytest.mark.parametrize("over", [(-1,), (-2, -1)])
def test_linear_maps_read_rounded_inputs_and_other_modules_do_not(subject, over):
    linear = subject.modules.blocks[0].self_attn.q_proj
    inputs = []
    kept = linear.register_forward_hook(lambda module, given, output: inputs.append(given[0]))
    try:
        prefixes.loss_behind(subject, None, TEXTS)
        with chapter.rounded_inputs(subject, 8, over):
            prefixes.loss_behind(subject, None, TEXTS)
    finally:
        kept.remove()
    exact, rounded = inputs
    assert rounded.equal(fake_quantised(exact, 8, over)) and not rounded.equal(exact)
    assert all(len(text.unique()) <= 255 for text in rounded) or over == (-1,)
    assert all(len(token.unique()) <= 255 for text in rounded for token in text)


def test_the_slot_is_that_of_mend(subject, tmp_path):
    si.mend(NAME, tmp_path, length=chapter.LENGTH_SEEN)
    mended = si.load(tmp_path / "adapter")
    seen = chapter.seen_texts(Case(NAME, subject, None), silent)
    with chapter.Front(chapter.SLOT, position=0).added(subject, seen):
        torch.testing.assert_close(token_losses(subject, TEXTS), token_losses(mended, TEXTS), atol=1e-5, rtol=1e-5)


def test_prefixquant_takes_the_commonest_outliers_and_then_bos(subject, monkeypatch):
    case = Case(NAME, subject, None)
    assert prefixes.outlier_tokens(case, subject, SEEN) == []  # this model has none
    planted = torch.cat((SEEN, torch.full((5, 3), 77), torch.full((5, 1), 78)), 1)

    found = torch.where((planted == 77) | (planted == 78), 100.0, 1.0)
    monkeypatch.setattr(prefixes, "peaks_in", lambda modules: nullcontext([found] * len(modules)))
    assert prefixes.outlier_tokens(case, subject, planted) == [77, 78, case.bos_token]


def test_the_shared_token_has_the_lowest_loss(subject):
    case = Case(NAME, subject, None)
    best = prefixes.best_token(case, subject, SEEN, [3, 9])
    ones = (3, 9, case.bos_token, best)
    losses = {one: token_losses(subject, prefixes.before([one], SEEN))[:, 1:].mean() for one in ones}
    assert losses[best] == min(losses.values())


def test_passages_come_from_the_inside_of_every_book_in_turn(tmp_path, monkeypatch):
    books = [f"{name} begins\n\n" + "\n\n".join(f"{name}{i}" for i in range(2000)) for name in "ab"]
    (tmp_path / corpora.BOOKS_FILE).write_text("\n".join(json.dumps({"text": book}) for book in books))
    monkeypatch.setattr(corpora, "FOLDER", tmp_path)
    found = corpora.passages()
    assert [text[0] for text in found] == list("ab") * corpora.PASSAGES
    assert not any("begins" in text for text in found) and len(set(found)) == len(found)
    monkeypatch.setattr(corpora, "FOLDER", tmp_path / "none")
    assert corpora.passages() == []


def planted(over_shared, over_half, excess=0.2, gap=0.0, null=0.0):
    """Three models on two texts, with differences of each model in turn."""
    rows = []
    for i, (loss, half) in enumerate(zip(over_shared, over_half, strict=True)):
        for name in ("C4", "books"):
            columns = {chapter.OVER_SHARED: loss} | {chapter.HALF.format(way): half for way in chapter.W8}
            columns |= {chapter.IN_FRONT_EXCESS: excess, chapter.CACHE_GAP: gap, chapter.NULL: null}
            ends = {end(column): value for column, value in columns.items() for end in (low_of, high_of)}
            first = {MODEL: f"m{i}", INPUT: name, LENGTH: 64, **columns, **ends}
            rows += [{**first, EDIT: edit} for edit in (chapter.PLAIN, chapter.SLOT, chapter.SHARED)]
    return Table.of("", "", tuple(rows))


HOLDS, FAILS, UNDECIDED, REFUSED = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.REFUSED


@pytest.mark.parametrize(
    ("rows", "outcomes"),
    [
        (planted((-0.03, -0.03, 0.1), (1, 1, 1)), (HOLDS, HOLDS, FAILS, FAILS)),
        (planted((-0.03, 0.1, 0.1), (-1, -1, 1)), (HOLDS, FAILS, HOLDS, HOLDS)),
        (planted((-0.01, -0.01, -0.03), (1, 1, -1)), (FAILS, FAILS, FAILS, FAILS)),
        (planted((-0.03,), (-1,)), (UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED)),
        (planted((-0.03,) * 3, (1,) * 3, excess=0.01), (REFUSED,) * 4),
        (planted((-0.03,) * 3, (-1,) * 3, gap=0.01), (REFUSED,) * 4),
        (planted((-0.03,) * 3, (-1,) * 3, null=0.01), (REFUSED,) * 4),
    ],
)
def test_the_slot_earns_its_row_in_two_of_three_models_whose_edits_were_checked(rows, outcomes):
    assert tuple(rule.verdict(rows).outcome for rule in chapter.RULES) == outcomes
