"""What a live page is answered: JSON, in this process."""

import base64
import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from backends.zoo import model_of
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkinterp.attention.similarities import Sigmoid
from sinkinterp.backends.load import load
from sinkinterp.backends.model_files import load_tokenizer, words_of
from sinkinterp.errors import InputError
from sinkinterp.interventions import AddSinkLogit, ChangeResidual, PatchNormalization, SwapPositions, Zero
from sinkinterp.measurement.measure import attention_maps, measure
from sinkinterp.pages.live.edits import KINDS, edits_from
from sinkinterp.pages.live.session import Session

TEXT = "Return the number of items in the list."
IDS = "3 17 5 9 11 5 8 2 40 3 17"
SWAP = {"kind": "swap", "position": 4}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=8), parts, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def text():
    source = "sinkinterp/text-softmax"
    return Session(load(source), load_tokenizer(source), words_of(source))


@pytest.fixture(scope="module")
def demo():
    return Session(load("sinkinterp/demo-softmax"), None)


@pytest.fixture(scope="module")
def gpt2():
    return Session(load(model_of("gpt2")), None)


def weights(answer, state, layers, heads):
    length = len(answer["tokens"])
    codes = np.frombuffer(base64.b64decode(answer["states"][state]["maps"]), np.uint8)
    return codes.reshape(layers, heads, length, length) / 255


def test_questions_that_come_at_once_get_the_answers_of_one_after_the_other(text):
    prompts = [TEXT * count for count in (1, 6)]
    expected = [len(text.answer({"prompt": prompt})["tokens"]) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda i: len(text.answer({"prompt": prompts[i % 2]})["tokens"]), range(40))
    assert list(answers) == expected * 20


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
    expected = attention_maps(demo.subject, tokens).numpy()
    np.testing.assert_allclose(weights(answer, 0, 1, 1), expected, atol=0.5 / 255 + 1e-6)
    report, (state,) = measure(demo.subject, tokens), answer["states"]
    assert state["sink_1"] == report.sink_rate() and state["slot"] is None
    assert state["alpha_1"] == pytest.approx(report.alpha().mean().item(), abs=1e-5)
    assert state["uniform_alpha_1"] == pytest.approx(report.null_alpha().mean().item(), abs=1e-5)
    np.testing.assert_allclose(state["importance"][0][0], report.importance[0, 0, 0], atol=1e-4)
    assert answer["tokens"] == IDS.split() and answer["edits"] == []


def test_a_swap_moves_the_sink_of_the_demo(demo):
    before, after = demo.answer({"prompt": IDS, "edits": [SWAP]})["states"]
    at = [state["importance"][0][0] for state in (before, after)]
    assert at[0][0] > 0.5 > at[1][0] and at[1][4] > 0.5


def test_a_text_is_tokenised_and_the_next_tokens_have_their_chances(text):
    edit = {"kind": "sigmoid", "layer": 1}
    answer = text.answer({"prompt": TEXT, "edits": [edit]})
    assert "".join(answer["tokens"]).endswith(TEXT) and len(answer["states"]) == 2
    for i, state in enumerate(answer["states"]):
        chances = [row["chances"][i] for row in answer["next"]]
        assert all(0 <= chance <= 1 for chance in chances) and 0 < sum(chances) <= 1 + 1e-6
        assert sum(chance > 0.99 * max(chances) for chance in chances) >= 1 and 0 <= state["alpha_1"] <= 1
    assert answer["edits"] == ["PatchNormalization(Sigmoid(1.0), layers=[1])"]
    ids = text.tokenizer(TEXT, add_special_tokens=True)["input_ids"]
    logits = text.subject.run(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
    row = answer["next"][0]
    assert row["chances"][0] == pytest.approx(logits[row["id"]].item(), rel=1e-4)


def test_a_sink_logit_has_a_column_of_its_own(gpt2):
    before, after = gpt2.answer({"prompt": IDS, "edits": [{"kind": "sink_logit", "layer": 1, "logit": 3}]})["states"]
    assert before["slot"] is None and before["alpha_slot"] is None
    slot = np.frombuffer(base64.b64decode(after["slot"]), np.uint8).reshape(
        len(gpt2.subject.shape.attention_layers), -1
    )
    assert slot[1].any() and not slot[0].any() and after["alpha_slot"] > 0


def test_the_largest_entries_say_which_dimension_to_zero(gpt2):
    massive = gpt2.answer({"prompt": IDS})["massive"]
    assert [abs(row["value"]) for row in massive] == sorted((abs(row["value"]) for row in massive), reverse=True)
    first = min(massive, key=lambda row: row["layer"])
    residual = gpt2.subject.run(torch.tensor([[int(word) for word in IDS.split()]]), residuals={"x": lambda x: x})
    entry = residual.residuals["x"][0, first["layer"], first["position"], first["dim"]].item()
    assert entry == pytest.approx(first["value"], abs=1e-3)
    zero = {"kind": "zero", "first": first["layer"], "last": first["layer"], "dim": first["dim"]}
    assert len(gpt2.answer({"prompt": IDS, "edits": [zero]})["states"]) == 2


def test_every_kind_of_edit_is_the_edit_that_it_names():
    plain = [
        SWAP,
        {"kind": "zero", "first": 2, "last": 4, "dim": 7},
        {"kind": "sigmoid", "layer": 3},
        {"kind": "sink_logit", "layer": 0, "logit": -1.5},
    ]
    assert edits_from(plain) == [
        SwapPositions(0, 4),
        ChangeResidual(Zero(), layers=range(2, 5), dims=[7]),
        PatchNormalization(Sigmoid(), layers=[3]),
        AddSinkLogit(logit=-1.5, layers=[0]),
    ]
    assert {fields["kind"] for fields in plain} == KINDS.keys()


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (None, "a question has a prompt and edits"),
        ({"prompt": IDS, "code": 1}, "a question has"),
        ({"prompt": 3}, "the prompt is a text"),
        ({"prompt": ""}, "at least 2 token ids"),
        ({"prompt": "the cat"}, "at least 2 token ids from 0 to 63"),
        ({"prompt": "1 64"}, "from 0 to 63"),
        ({"prompt": "1 " * 9_999}, "shorten it"),
        ({"prompt": "x" * 20_001}, "at most 20,000"),
        ({"prompt": IDS, "edits": {}}, "edits are a list"),
        ({"prompt": IDS, "edits": [SWAP] * 21}, "at most 20"),
        ({"prompt": IDS, "edits": [3]}, "one of swap, zero, sigmoid, sink_logit"),
        ({"prompt": IDS, "edits": [{"kind": ["swap"]}]}, "an edit has a kind"),
        ({"prompt": IDS, "edits": [{"kind": "__class__"}]}, "an edit has a kind"),
        ({"prompt": IDS, "edits": [{"kind": "swap"}]}, "takes position; got nothing"),
        ({"prompt": IDS, "edits": [{**SWAP, "first": 1}]}, "takes position; got position, first"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": 0}]}, "two different positions"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": 11}]}, "its last position is 10"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": -1}]}, "a whole number from 0; got -1"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": 1.5}]}, "a whole number from 0; got 1.5"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": True}]}, "of ordinary size"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": None}]}, "of ordinary size"),
        ({"prompt": IDS, "edits": [{**SWAP, "position": 10**30}]}, "of ordinary size"),
        ({"prompt": IDS, "edits": [{"kind": "sink_logit", "layer": 0, "logit": math.nan}]}, "of ordinary size"),
        ({"prompt": IDS, "edits": [{"kind": "sigmoid", "layer": 5}]}, "there is no layer 5"),
        ({"prompt": IDS, "edits": [{"kind": "zero", "first": 1, "last": 0, "dim": 0}]}, "from the first to the last"),
        ({"prompt": IDS, "edits": [{"kind": "zero", "first": 0, "last": 10**6, "dim": 0}]}, "more than any model has"),
        ({"prompt": IDS, "edits": [{"kind": "zero", "first": 0, "last": 0, "dim": 10**5}]}, "there is no dimension"),
    ],
)
def test_a_mistake_is_named_in_one_line(demo, question, words):
    with pytest.raises(InputError) as mistake:
        demo.answer(question)
    assert words in str(mistake.value) and "\n" not in str(mistake.value)


@settings(max_examples=60, deadline=None, database=None)
@given(st.fixed_dictionaries({}, optional={"prompt": st.text(max_size=20) | JSON, "edits": JSON}) | JSON)
def test_whatever_is_asked_the_answer_is_json_or_a_mistake_in_one_line(text, question):
    try:
        json.dumps(text.answer(question), allow_nan=False)
    except InputError as error:
        assert str(error)


def test_hostile_prompts_are_tokens(text):
    prompt = "</script><img src=x onerror=alert(1)> \ud800 \u2028"
    tokens = text.answer({"prompt": prompt})["tokens"]
    assert "<img src=x" in "".join(tokens)


def test_a_long_prompt_is_refused_and_the_longest_one_fits(demo):
    longest = demo.most_tokens
    assert len(demo.answer({"prompt": "3 " * longest})["tokens"]) == longest
    with pytest.raises(InputError, match=f"more than {longest} tokens"):
        demo.answer({"prompt": "3 " * (longest + 1)})
