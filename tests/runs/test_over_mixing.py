"""Over-mixing: a text is read once per edit, longer texts have the judged rows alone, and sinks are hidden in turn."""

import pytest
import torch
from sinkinterp._experiments.shared.spread import ALL, spread

import sinkinterp as si
from experiments import over_mixing as chapter
from experiments.shared.cases import Case
from experiments.shared.corpora import DOCSTRINGS
from experiments.shared.effects import LOSS_CHANGE, OTHER_EXCESS, Effects
from sinkinterp.data.progress import silent
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import RemoveColumn
from sinkinterp.table import BLOCK, EDIT, LENGTH, LOSS

NAME, CHECKED = "sinkinterp/text-softmax-48k", (LOSS_CHANGE, OTHER_EXCESS)


@pytest.fixture(scope="module")
def case():
    return Case(NAME, si.load(NAME), None)


def rows_of(case, monkeypatch, length, n=3):
    monkeypatch.setattr(chapter, "PARTS", {(DOCSTRINGS, length): (n, n)})
    return chapter.of_text(case, DOCSTRINGS, length, silent)


def test_rows_are_those_of_spread_and_of_effects_which_read_each_text_for_themselves(case, monkeypatch):
    table = rows_of(case, monkeypatch, 37)
    tokens = case.tokens((3, 37), silent, case.start).tokens
    hidden = [int(i) - 1 for i in table.where(**{EDIT: chapter.EVERY}).records()[0][chapter.HIDDEN].split(", ")]
    onset = int(table.note.partition("before layer ")[2].partition(";")[0])
    behind = range(onset, case.subject.shape.n_layers)
    at = 37 // 3
    edits = chapter.without_sink(at // 2, behind, hidden)
    expected = spread(case.subject, tokens, position=at, edits=edits).records()
    assert len(table.records()) == len(expected)
    for found, other in zip(table.records(), expected, strict=True):
        assert (found[EDIT], found[BLOCK]) == (other[EDIT], other[BLOCK])
        assert [found[name] for name in (ALL, LOSS)] == pytest.approx([other[name] for name in (ALL, LOSS)], abs=1e-5)
    named = {name: [edit] for name, edit in edits.items() if edit}
    for row in Effects(layers=tuple(behind)).rows(case.subject, TokenSet.of(tokens), named):
        found = table.where(**{EDIT: row[EDIT]}).records()[0]
        assert [found[name] for name in CHECKED] == pytest.approx([row[name] for name in CHECKED], abs=1e-5)


def test_longer_texts_have_the_rows_that_rules_read(case, monkeypatch):
    monkeypatch.setattr(chapter, "SHORT", 31)
    whole = rows_of(case, monkeypatch, 31)
    assert list(whole.frame[EDIT].unique()) == list(chapter.without_sink(0, range(1), [0]))
    longer = rows_of(case, monkeypatch, 37)
    assert list(longer.frame[EDIT].unique()) == list(chapter.JUDGED)
    assert set(longer.frame[LENGTH]) == {37}
    assert list(longer.frame.columns) == list(whole.frame.columns)


def test_a_model_reads_no_part_that_is_longer_than_its_context(case, monkeypatch):
    context = case.subject.shape.n_ctx
    monkeypatch.setattr(chapter, "PARTS", {(DOCSTRINGS, 17): (2, 2), (DOCSTRINGS, 8 * context): (2, 2)})
    assert set(chapter.measure(case, silent).frame[LENGTH]) == {17}


def test_keys_are_hidden_one_after_the_other_up_to_eight(case, monkeypatch):
    tokens = torch.randint(1024, (2, 29), generator=torch.Generator().manual_seed(3))
    effects = Effects(layers=tuple(range(case.subject.shape.n_layers)))
    monkeypatch.setattr(chapter, "MARGIN", -1.0)  # every position is above it, so all that may be hidden are
    hidden, _ = chapter.sinks_then(effects, case.subject, tokens)
    assert hidden[0] == 0 and len(set(hidden)) == len(hidden) == chapter.MOST
    monkeypatch.setattr(chapter, "MARGIN", 1.0)
    hidden, report = chapter.sinks_then(effects, case.subject, tokens)
    expected = si.measure(case.subject, tokens, edits=RemoveColumn(positions=[0]), progress=False).importance
    assert hidden == [0]
    torch.testing.assert_close(report.importance, expected)
