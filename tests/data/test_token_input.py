import numpy as np
import pytest
import torch

from sinkinterp.data.token_input import token_set_of
from sinkinterp.data.tokens import PAD, TokenSet
from sinkinterp.errors import InputError

ROWS = [[5, 7, 9], [2, 3, 4]]


def encode(texts):
    return TokenSet.of_rows([[ord(letter) for letter in text] for text in texts], "letters")


WAYS = {
    "lists": ROWS,
    "tuples": ((5, 7, 9), (2, 3, 4)),
    "a list of arrays": [np.array(row) for row in ROWS],
    "a list of tensors": [torch.tensor(row, dtype=torch.uint8) for row in ROWS],
    "numbers of numpy": [[np.int32(token) for token in row] for row in ROWS],
    "a mapping": {"input_ids": ROWS},
    "a mapping of tensors": {"input_ids": torch.tensor(ROWS), "attention_mask": torch.ones(2, 3)},
    "an array of objects": np.array(ROWS, dtype=object),
    **{dtype: np.array(ROWS, dtype=dtype) for dtype in ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4")},
    **{str(dtype): torch.tensor(ROWS, dtype=dtype) for dtype in (torch.uint8, torch.int16, torch.int32, torch.uint32)},
}


@pytest.mark.parametrize("way", WAYS)
def test_ids_are_the_same_in_every_form(way):
    token_set = token_set_of(WAYS[way], encode)
    assert token_set.tokens.equal(torch.tensor(ROWS)) and token_set.tokens.dtype == torch.long
    assert token_set.lengths is None and token_set.sha256 == TokenSet.of(torch.tensor(ROWS)).sha256


@pytest.mark.parametrize("ids", [[5, 7, 9], np.array([5, 7, 9]), torch.tensor([5, 7, 9]), (5, 7, 9)])
def test_one_list_of_ids_is_one_sequence(ids):
    assert token_set_of(ids, encode).tokens.tolist() == [[5, 7, 9]]


def test_sequences_keep_their_own_lengths():
    token_set = token_set_of([[5, 7, 9], [2, 3]], encode)
    assert token_set.tokens.tolist() == [[5, 7, 9], [2, 3, PAD]] and token_set.lengths.tolist() == [3, 2]


@pytest.mark.parametrize("texts", ["ab", ["ab"], ("ab",), np.array(["ab"])])
def test_texts_are_encoded(texts):
    assert token_set_of(texts, encode).tokens.tolist() == [[97, 98]]


@pytest.mark.parametrize(
    "junk", [None, 3, b"ab", {"a": 1}, {1, 2}, [[0.5, 1.0]], [True, False], ["ab", 3], [[1, 2], "ab"]]
)
def test_anything_else_is_refused_with_calls_that_work(junk):
    with pytest.raises(InputError, match="give a text, a list of texts, or token ids"):
        token_set_of(junk, encode)
