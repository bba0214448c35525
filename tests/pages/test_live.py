"""What a live page is answered: JSON, in this process."""

import base64
import gzip
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from backends.zoo import model_of
from hypothesis import given, settings, strategies as st
from pages.atlases import decoded
from refusals import refused

from sinkinterp import interventions
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.load import load
from sinkinterp.checks import InputError
from sinkinterp.measurement.activation_patching import activation_patching
from sinkinterp.measurement.maps import head_maps
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.residuals import PEAK_OVER_MEDIAN, TOP_ENTRIES
from sinkinterp.pages.atlas_page import SCRIPTS as ATLAS, PageData, Scale
from sinkinterp.pages.live import (
    KINDS,
    SCRIPTS as LIVE,
    AnswerData,
    EditData,
    Session,
    StartData,
    edit_of,
    massive_entries,
)
from sinkinterp.pages.page import asset, declared

TEXT = "Return the number of items in the list."
IDS = "3 17 5 9 11 5 8 2 40 3 17"
SWAP = {"kind": "swap", "numbers": [4]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=8), parts, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def text():
    subject = load("sinkinterp/text-softmax")
    return Session(subject)


@pytest.fixture(scope="module")
def demo():
    return Session(load("sinkinterp/demo-softmax"))


@pytest.fixture(scope="module")
def gpt2():
    return Session(load(model_of("gpt2")))


def plane(answer, name, bits):
    """The codes of a block of an answer."""
    data = np.frombuffer(gzip.decompress(base64.b64decode(answer["blocks"][name])), np.uint8)
    return data if bits == 8 else data.reshape(2, -1).T.copy().view("<u2").ravel()


def weights(answer, state, layer, heads):
    """The attention maps of a layer in a state."""
    view = answer["view"]
    (channel,) = (channel for channel in view["channels"] if channel["name"] == "weight")
    scale = Scale(**channel["scale"])
    length = len(view["tokens"])
    codes = plane(answer, channel["blocks"][state][str(layer)], scale.bits)
    return decoded(scale, codes).reshape(heads, length, length)


def test_questions_that_come_at_once_get_the_answers_of_one_after_the_other(text):
    prompts = [TEXT * count for count in (1, 6)]
    expected = [len(text.answer({"prompt": prompt})["view"]["tokens"]) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda i: len(text.answer({"prompt": prompts[i % 2]})["view"]["tokens"]), range(12))
    assert list(answers) == expected * 6


def test_another_prompt_gives_the_map_of_patching(demo):
    other = "5" + IDS[1:]
    clean, corrupted = (torch.tensor([[int(token) for token in prompt.split()]]) for prompt in (IDS, other))
    expected = activation_patching(demo.subject, clean, corrupted, progress=False).where(layer=1).numbers("restored")
    restored = demo.answer({"prompt": IDS, "other": other})["restored"]
    assert restored[1] == pytest.approx(expected, abs=1e-5) and len(restored) == demo.subject.shape.n_layers + 1
    assert demo.answer({"prompt": IDS})["restored"] == []


def test_a_prompt_is_tokenised_while_no_other_question_is_answered(text, monkeypatch):
    tokens, held = Session._tokens, []

    def watched(session, prompt):
        held.append(session._lock.locked())
        return tokens(session, prompt)

    monkeypatch.setattr(Session, "_tokens", watched)
    text.answer({"prompt": TEXT})
    assert held == [True] and not text._lock.locked()


def test_an_answer_is_json_and_its_maps_and_sinks_are_those_that_are_measured(demo):
    answer = json.loads(json.dumps(demo.answer({"prompt": IDS}), allow_nan=False))
    tokens = torch.tensor([[int(word) for word in IDS.split()]])
    expected = np.nan_to_num(head_maps(demo.subject, tokens).values["weight"])
    np.testing.assert_allclose(np.nan_to_num(weights(answer, 0, 0, 1)), expected, rtol=1e-3, atol=1e-9)
    report = measure(demo.subject, tokens)
    assert [row["values"] for row in answer["headline"][:2]] == [
        [f"{report.sink_rate().mean:.1%}"],
        [f"{report.alpha().mean().item():.1%}"],
    ]
    assert answer["view"]["tokens"] == IDS.split() and answer["edits"] == []


def test_a_swap_moves_the_sink_of_the_demo(demo):
    answer = demo.answer({"prompt": IDS, "edits": [SWAP]})
    before, after = (np.nanmean(weights(answer, state, 0, 1)[0], 0) for state in (0, 1))
    assert before[0] > 0.5 > after[0] and after[4] > 0.5
    assert answer["view"]["states"] == ["before", "after"]


def test_the_run_without_edits_is_kept_for_the_next_question(demo, monkeypatch):
    demo.answer({"prompt": IDS})
    run, runs = type(demo.subject).run, []

    def counted(subject, tokens, **asked):
        runs.append(asked["edits"])
        return run(subject, tokens, **asked)

    monkeypatch.setattr(type(demo.subject), "run", counted)
    demo.answer({"prompt": IDS, "edits": [SWAP]})
    assert len(runs) == 2 and all(edits for edits in runs)


def test_a_text_is_tokenised_and_the_next_tokens_have_their_chances(text):
    edit = {"kind": "sigmoid", "numbers": [1, 1]}
    answer = text.answer({"prompt": TEXT, "edits": [edit]})
    assert "".join(answer["view"]["tokens"]).endswith(TEXT)
    for i in range(2):
        chances = [row["chances"][i] for row in answer["next"]]
        assert all(0 <= chance <= 1 for chance in chances) and 0 < sum(chances) <= 1 + 1e-6
    assert answer["edits"] == ["PatchNormalization(Sigmoid(1.0), layers=[1])"]
    ids = text.subject.tokenizer(TEXT, add_special_tokens=True)["input_ids"]
    logits = text.subject.run(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
    row = max(answer["next"], key=lambda row: row["chances"][0])
    assert row["token"] == text.subject.label(int(logits.argmax()))
    assert row["chances"][0] == pytest.approx(logits.max().item(), rel=1e-4)
    assert answer["headline"][-1]["token"] == row["token"]


def test_a_sink_logit_has_a_column_of_its_own(gpt2):
    for edit in ({"kind": "sink_logit", "numbers": [3, 1, 1]}, {"kind": "off_by_one_head", "numbers": [1, 0]}):
        answer = gpt2.answer({"prompt": IDS, "edits": [edit]})
        (slot,) = (row["values"] for row in answer["headline"] if "slot" in row["label"])
        assert slot[0] == "none" and float(slot[1].rstrip("%")) > 0
        before, after = (plane(answer, blocks["1"], 16) for blocks in answer["view"]["slot_blocks"])
        assert not (before > 1).any() and (after > 1).any()
        assert answer["view"]["places"][-1] == -1


def test_the_largest_value_of_an_entry_may_be_in_another_layer_than_most_medians():
    top = torch.tensor([[[[-40.0, 0, 1]], [[90.0, 0, 1]], [[5.0, 0, 2]]]])  # block entry (value, position, dim)
    found = {TOP_ENTRIES.name: top, PEAK_OVER_MEDIAN.name: torch.tensor([[400.0, 300.0, 2.0]])}
    (row,) = massive_entries(SimpleNamespace(extra=lambda metric: found[metric.name]))
    assert (row.size, row.times, row.first, row.last) == (90, 400, 0, 1)


def test_the_largest_entries_say_which_dimension_to_zero(gpt2):
    massive = gpt2.answer({"prompt": IDS})["massive"]
    assert [row["times"] for row in massive] == sorted((row["times"] for row in massive), reverse=True)
    tokens = torch.tensor([[int(word) for word in IDS.split()]])
    x = gpt2.subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][0, :-1].abs()
    for row in massive:
        at_place = x[:, row["position"], row["dim"]]
        assert (at_place / x.flatten(1).sort().values[:, (x[0].numel() - 1) // 2]).max() == pytest.approx(row["times"])
        assert abs(row["size"]) == at_place[row["first"] : row["last"] + 1].max().item()
        assert row["edit"] == {"kind": "zero", "numbers": [row["dim"], 0, gpt2.subject.shape.n_layers]}


def test_suggestions_fit_the_model_and_change_what_it_says(demo, text):
    for session, prompt, second in ((demo, IDS, "swap"), (text, TEXT, "column")):
        suggestions = session.answer({"prompt": prompt})["suggestions"]
        assert [suggestion["edit"]["kind"] for suggestion in suggestions] == ["zero", second, "sigmoid"]
        for suggestion in suggestions:
            answer = session.answer({"prompt": prompt, "edits": [suggestion["edit"]]})
            assert any(len(set(row["values"])) == 2 for row in answer["headline"])


def test_every_kind_of_edit_is_the_edit_that_it_names(gpt2):
    shape = gpt2.subject.shape
    last = shape.n_layers
    edits = {
        "swap": ([4], interventions.SwapPositions(0, 4)),
        "column": ([3], interventions.RemoveColumn(positions=[3])),
        "zero": ([7, 1, last], interventions.ChangeResidual(interventions.Zero(), layers=range(1, last + 1), dims=[7])),
        "sigmoid": ([1, 1], interventions.PatchNormalization(Sigmoid(), layers=[1])),
        "sigmoid_head": ([1, 2], interventions.PatchNormalization(Sigmoid(), heads=[(1, 2)])),
        "sink_logit": ([-1.5, 0, last - 1], interventions.AddSinkLogit(-1.5)),
        "ablate_head": ([1, 2], interventions.ChangeOutputs(interventions.Zero(), heads=[(1, 2)])),
        "off_by_one_head": ([0, 1], interventions.AddSinkLogit(0.0, heads=[(0, 1)])),
    }
    assert edits.keys() == KINDS.keys()
    for kind, (numbers, edit) in edits.items():
        assert edit_of(EditData(kind, list(map(float, numbers))), shape) == edit


def edits_of(*numbers, kind="swap"):
    return {"prompt": IDS, "edits": [{"kind": kind, "numbers": list(numbers)}]}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"prompt": IDS, "other": 3}, "text"),
        ({"prompt": IDS, "other": "1 2 3"}, "length"),
        ({"prompt": "the cat"}, "0 to 63"),
        ({"prompt": "1 " * 9_999}, "more than"),
        ({"prompt": "x" * 20_001}, "at most 20,000"),
        ({"prompt": IDS, "edits": [SWAP] * 21}, "at most 20"),
        (edits_of(4, kind="__class__"), "swap, column, zero"),
        (edits_of(), "0 numbers"),
        (edits_of(0), "two different positions"),
        (edits_of(11), "0 to 10"),
        (edits_of(-1), "got -1"),
        (edits_of(1.5), "got 1.5"),
        (edits_of(10**30), "-1e+06"),
        (edits_of(math.nan, 0, 0, kind="sink_logit"), "finite"),
        (edits_of(5, 5, kind="sigmoid"), "5 to 5"),
        (edits_of(0, 5, kind="off_by_one_head"), "head 5"),
        (edits_of(0, 1, 0, kind="zero"), "last"),
        (edits_of(0, 0, 99, kind="zero"), "0 to 1"),
        (edits_of(10**5, 0, 0, kind="zero"), "dimension"),
    ],
)
def test_a_mistake_is_named_in_one_line(demo, question, words):
    refused(lambda: demo.answer(question), words)


@settings(max_examples=60, deadline=None, database=None)
@given(st.fixed_dictionaries({}, optional={"prompt": st.text(max_size=20) | JSON, "edits": JSON}) | JSON)
def test_any_question_is_answered_in_json_or_refused_in_one_line(text, question):
    try:
        json.dumps(text.answer(question), allow_nan=False)
    except InputError as error:
        assert str(error)


def test_an_id_may_begin_with_zeros_and_is_not_cut(demo):
    assert demo._tokens("0000000000012 3").tokens.tolist() == [[12, 3]]
    for prompt in ("1 " + "9" * 400, "1 640000000000", "1 64"):
        refused(partial(demo._tokens, prompt))


def test_a_long_prompt_is_refused_and_the_longest_one_fits(demo):
    longest = demo.most_tokens
    assert len(demo.answer({"prompt": "3 " * longest})["view"]["tokens"]) == longest
    refused(lambda: demo.answer({"prompt": "3 " * (longest + 1)}), f"more than {longest} tokens")


def code_of(scripts):
    return "".join(map(asset, scripts))


def fields(kind):
    """The names of all fields of a declared type, at every depth."""
    if isinstance(kind, dict):
        return set(kind) - {"*"} | set().union(*map(fields, kind.values()))
    return set().union(*map(fields, kind)) if isinstance(kind, list) else set()


def test_the_scripts_read_every_field_and_no_other_field_of_an_atlas():
    at_top = set(re.findall(r"\babout\.(\w+)", code_of(ATLAS)))
    (taken,) = re.findall(r"\(\{([^}]*)\} = about\);", code_of(ATLAS))
    assert at_top | {name.strip() for name in taken.split(",")} == declared(PageData).keys()


@pytest.mark.parametrize(("root", "kind"), [("start", StartData), ("answer", AnswerData)])
def test_the_live_page_reads_every_field_and_no_other_field(root, kind):
    own = [name for name in LIVE if name.startswith("live/")]
    assert set(re.findall(rf"\b{root}\.(\w+)", code_of(own))) - {"error"} == declared(kind).keys()


@pytest.mark.parametrize(("scripts", "kind"), [(ATLAS, PageData), (LIVE, AnswerData), (LIVE, StartData)])
def test_no_field_is_written_that_no_script_reads(scripts, kind):
    assert not [name for name in fields(declared(kind)) if not re.search(rf"\b{name}\b", code_of(scripts))]
