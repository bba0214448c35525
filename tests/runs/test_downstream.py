import pytest
from refusals import refused
from runs.choices import accuracy_by_hand

from experiments.shared.downstream import CHOICES, CONTEXT, ENDING, accuracy, endings

MODEL, DOCUMENTS = "sinkinterp/text-softmax", 11


def test_the_right_choice_is_how_the_text_goes_on_and_stands_at_each_place_equally_often():
    texts = [f"{chr(97 + i) * 9} " * 40 for i in range(11)]
    asked = endings(texts, 8)
    assert [question["gold"] for question in asked] == [0, 1, 2, 3, 0, 1, 2, 3]
    for text, question in zip(texts, asked, strict=False):
        right = question["choices"][question["gold"]]
        assert text.startswith(f"{question['query']} {right} ")
        assert CONTEXT <= len(question["query"]) < CONTEXT + 10 and ENDING - 10 <= len(right) < ENDING + 10
        assert len(set(question["choices"])) == CHOICES


def test_short_texts_are_left_out_and_too_few_are_refused():
    refused(lambda: endings(["too short", "word " * 30 + "-" * 900 + " word", *["word " * 80] * 7], 5), "5")


def test_a_missing_tokenizer_is_refused():
    refused(lambda: accuracy("sinkinterp/demo-softmax"))


def test_an_accuracy_is_that_of_a_pass_per_choice_by_hand():
    numbers = accuracy(MODEL, documents=DOCUMENTS)
    assert numbers["acc"] == pytest.approx(accuracy_by_hand(MODEL, DOCUMENTS))
    assert 0 <= numbers["acc_norm"] <= 1 and numbers["acc_stderr"] > 0
