import re

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings, strategies as st
from refusals import refused
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast

import sinkinterp as si
from sinkinterp.data.tokenizers import plain_tokenizer, token_labels
from sinkinterp.data.tokens import PAD, TokenSet, token_set_of


def test_token_sets_are_named_by_their_tokens():
    tokens = torch.arange(6).reshape(2, 3)
    assert TokenSet.of(tokens).sha256 == TokenSet.of(tokens.int()).sha256 == TokenSet.of(tokens.T.contiguous().T).sha256
    assert TokenSet.of(tokens).sha256 != TokenSet.of(tokens + 1).sha256
    assert TokenSet.of(tokens).tokens is tokens


class Named:
    """Iterates the names of what it holds, as an ActivationCache does, and is no Mapping."""

    def __init__(self, held):
        self.held = held
        self.keys = held.keys

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return iter(self.held)


@pytest.mark.parametrize("kind", [Named, nn.ModuleDict, nn.ParameterDict])
def test_names_of_what_an_object_holds_are_not_its_texts(kind):
    held = {"blocks one": nn.Parameter(torch.ones(3))} if kind is not nn.ModuleDict else {"blocks one": nn.Identity()}
    refused(lambda: token_set_of(kind(held), encode), f"a {kind.__name__} is neither a text nor token ids")


RAGGED = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14], [15, 16, 17], [18, 19]]


def padded(before, width=11, pad=3, rows=RAGGED):
    """The rows in a tensor with `before[i]` pads to their left and the rest to their right, and their mask."""
    tokens, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        there = slice(before[i], before[i] + len(row))
        tokens[i, there], mask[i, there] = torch.tensor(row), 1
    return tokens, mask


LEFT, RIGHT, MIDDLE = [11 - len(row) for row in RAGGED], [0] * 5, [1, 5, 9, 0, 4]


def test_groups_are_the_true_tokens_of_each_length_longest_first_with_their_rows():
    tokens, mask = padded(LEFT)
    groups = [(rows.tolist(), group.tolist()) for rows, group in TokenSet.of(tokens, "", mask).groups()]
    assert groups == [([1], [[8, 9, 10, 11, 12]]), ([0, 3], [[5, 6, 7], [15, 16, 17]]), ([2, 4], [[13, 14], [18, 19]])]


def test_a_token_set_without_padding_is_one_group_of_all_its_rows():
    tokens = torch.arange(15).reshape(3, 5)
    ((rows, group),) = TokenSet.of(tokens).groups()
    assert rows.tolist() == [0, 1, 2]
    assert group is tokens


def test_the_padding_is_a_token_that_no_embedding_takes():
    with pytest.raises(IndexError):
        torch.nn.Embedding(101, 3)(TokenSet.of_rows(RAGGED).tokens)


@pytest.mark.parametrize(("before", "width", "pad"), [(LEFT, 11, 3), (MIDDLE, 11, 0), (RIGHT, 5, 7), (RIGHT, 17, 0)])
def test_paddings_of_the_same_sequences_have_equal_hashes(before, width, pad):
    tokens, mask = padded(before, width, pad)
    for kind in (torch.bool, torch.long, torch.float):
        assert TokenSet.of(tokens, "", mask.to(kind)).sha256 == TokenSet.of_rows(RAGGED).sha256
    assert TokenSet.of(tokens.int(), "", mask).sha256 == TokenSet.of_rows(RAGGED).sha256


@pytest.mark.parametrize(
    "rows",
    [
        [[5, 6, 7, 8], [9, 10, 11, 12], *RAGGED[2:]],  # another boundary
        [*RAGGED[:-1], [18, 20]],  # another token
        [RAGGED[1], RAGGED[0], *RAGGED[2:]],  # another order
        [*RAGGED[:-1], [18, 19, 3]],  # a pad that is a token
        RAGGED[:-1],
    ],
)
def test_other_sequences_have_another_hash(rows):
    assert TokenSet.of_rows(rows).sha256 != TokenSet.of_rows(RAGGED).sha256
    cuts = ([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])  # alike in memory, with padding
    assert len({TokenSet.of_rows(cut).sha256 for cut in cuts}) == 2


@pytest.mark.parametrize("before", [[0, 0, 0], [2, 2, 2], [6, 0, 3]])
def test_sequences_of_one_length_are_a_token_set_without_padding(before):
    rows = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]
    plain = TokenSet.of(torch.tensor(rows))
    tokens, mask = padded(before, rows=rows)
    for found in (TokenSet.of(tokens, attention_mask=mask), TokenSet.of_rows(rows)):
        assert found.lengths is None
        assert found.tokens.equal(plain.tokens)
        assert found.sha256 == plain.sha256
    assert TokenSet.of(plain.tokens, attention_mask=torch.ones(3, 5)).sha256 == plain.sha256


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
    **{dtype: np.array(ROWS, dtype=dtype) for dtype in ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4")},
    **{str(dtype): torch.tensor(ROWS, dtype=dtype) for dtype in (torch.uint8, torch.int16, torch.int32, torch.uint32)},
}


@pytest.mark.parametrize("way", WAYS)
def test_ids_are_the_same_in_every_form(way):
    token_set = token_set_of(WAYS[way], encode)
    assert token_set.tokens.equal(torch.tensor(ROWS)) and token_set.tokens.dtype == torch.long
    assert token_set.lengths is None and token_set.sha256 == TokenSet.of(torch.tensor(ROWS)).sha256


GIVEN = [
    *((ids, [[5, 7, 9]]) for ids in ([5, 7, 9], np.array([5, 7, 9]), torch.tensor([5, 7, 9]), (5, 7, 9))),
    *((texts, [[97, 98]]) for texts in ("ab", ["ab"], ("ab",), pd.Series(["ab"]))),
    (Dataset.from_dict({"body": ["ab"]})["body"], [[97, 98]]),
    (pd.Series([5, 7, 9], index=["a", "b", "c"]), [[5, 7, 9]]),
    ([[5, 7, 9], [2, 3]], [[5, 7, 9], [2, 3, PAD]]),
]


@pytest.mark.parametrize(("given", "tokens"), GIVEN)
def test_one_list_is_one_sequence_texts_are_encoded_and_sequences_keep_their_own_lengths(given, tokens):
    found = token_set_of(given, encode)
    assert found.tokens.tolist() == tokens
    assert len(tokens) == 1 or found.lengths.tolist() == [3, 2]


FORMS = {
    "lists": lambda tensor: tensor.tolist(),
    "tuples": lambda tensor: tuple(map(tuple, tensor.tolist())),
    "arrays": lambda tensor: [row.numpy() for row in tensor],
    "an array": lambda tensor: tensor.numpy(),
    "tensors": list,
    "a tensor": lambda tensor: tensor,
}


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(2, 7), min_size=1, max_size=5), data=st.data())
def test_a_padded_answer_of_a_tokenizer_is_its_true_tokens_in_every_form(lengths, data):
    """Lists are what a tokenizer returns by default. Padding may be on either side, and ragged lists have none."""
    rows = [list(range(10 * i, 10 * i + length)) for i, length in enumerate(lengths, 1)]
    width = max(lengths) + data.draw(st.integers(0, 2))
    ids, mask = padded([data.draw(st.sampled_from((0, width - length))) for length in lengths], width, 3, rows)
    form, other = (FORMS[data.draw(st.sampled_from(sorted(FORMS)))] for _ in range(2))
    answer = {"input_ids": form(ids), "attention_mask": other(mask)}
    plain = {"input_ids": rows, "attention_mask": [[1] * length for length in lengths]}
    for given_ids in (answer, plain):
        assert token_set_of(given_ids, encode).sha256 == TokenSet.of_rows(rows).sha256


ONE = [5, 7, 9, 2]
BAD_MASKS = {
    **{
        name: (ONE, mask) for name, mask in {
            "too short": [1, 1, 1], "too long": [1, 1, 1, 1, 0], "a hole": [1, 0, 1, 1], "text": [1, 1, "1", 1],
            "one text": "1111", "nothing": [None] * 4, "a number": 1, "other numbers": [0, 2, 1, 1],
            "another number of rows": [[1] * 4] * 2, "three axes": torch.ones(1, 1, 4),
        }.items()
    },
    "wider than ragged rows": ([ONE, ONE[:2]], torch.ones(2, 4)),
    "shorter than one row": ([ONE, ONE[:2]], [[1] * 4, [1]]),
    **{
        name: ([ONE, ONE], torch.tensor([first, [1] * 4])) for name, first in {
            "two runs": [0, 1, 0, 1], "a two": [1, 1, 1, 2], "one token": [0, 0, 1, 0], "no token": [0] * 4,
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("ids", "mask"), BAD_MASKS.values(), ids=BAD_MASKS)
def test_a_mask_that_does_not_fit_its_ids_is_refused(ids, mask):
    refused(lambda: token_set_of({"input_ids": ids, "attention_mask": mask}, encode))


TEXTS = [
    "The cat's  sat\n\n on the mat, 17 times", "caf\xe9 \u4e16\u754c \U0001f642\U0001f469\u200d\U0001f680 na\xefve",
    "\tx = <0xE4>", "\ufffd is the letter of what is unknown",
]  # fmt: skip


def trained(model, trainer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    tokenizer.train_from_iterator(["the cat sat on the mat the cats sat times"] * 5, trainer)
    return tokenizer


def byte_level():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    return trained(models.BPE(), trainer, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def sentencepiece():
    """As the tokenizers of Llama and Gemma are: spaces become \u2581, letters outside the vocabulary bytes."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581TheCcatsonm", "\u2581t", "\u2581th",
              "\u2581the"]  # fmt: skip
    merges = [("\u2581", "t"), ("\u2581t", "h"), ("\u2581th", "e")]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def joined(label, ids):
    """The bytes that labels show. Texts of these tests hold no backslash: each is that of a byte."""
    labels = "".join(map(label, ids)).encode()
    return re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), labels)


BYTES = {
    "byte-level BPE": lambda: PreTrainedTokenizerFast(tokenizer_object=byte_level()),
    "SentencePiece": lambda: PreTrainedTokenizerFast(tokenizer_object=sentencepiece(), bos_token="<s>"),
}


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("text", TEXTS)
def test_labels_joined_are_the_bytes_of_the_text(name, text):
    tokenizer = BYTES[name]()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    labels = joined(token_labels(tokenizer), ids)
    assert labels.removeprefix(b" ") == text.encode()
    assert labels.decode().removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")


@pytest.mark.parametrize("name", BYTES)
def test_pieces_of_a_letter_have_labels_of_their_own(name):
    tokenizer = BYTES[name]()
    ids = tokenizer("a\U0001f642\u4e16", add_special_tokens=False)["input_ids"]
    label = token_labels(tokenizer)
    labels = [label(i) for i in ids]
    assert tokenizer.bos_token is None or label(tokenizer.bos_token_id) == tokenizer.bos_token
    assert len(set(labels)) == len(set(ids)) and "\ufffd" not in "".join(labels) and r"\x9f" in "".join(labels)


@pytest.mark.parametrize("text", ["the cats sat", "on, the mats"])
def test_labels_of_word_pieces_joined_are_what_the_tokenizer_decodes(text):
    vocab = ["[UNK]", "the", "cat", "sat", "on", "mat", "##s", ","]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    ids = fast(text)["input_ids"]
    label = token_labels(fast)
    decoded = fast.decode(ids, clean_up_tokenization_spaces=False)
    assert "".join(map(label, ids)).removeprefix(" ") == decoded and label(vocab.index("##s")) == "s"


def test_the_words_of_a_model_are_those_labels():
    subject = si.load("sinkinterp/text-softmax")
    ids = subject.tokens("caf\xe9 \u4e16", bos="never").tokens[0].tolist()
    assert joined(subject.label, ids).decode() == "caf\xe9 \u4e16"


IDS = torch.tensor([[5, 3, 8, 1, 2], [4, 4, 7, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def read(**inputs):
    return token_set_of({"input_ids": IDS, "attention_mask": MASK, **inputs}, None)


@pytest.mark.parametrize("name", ["pixel_values", "pixel_values_videos", "image_grid_thw", "input_features", "labels",
                                  "input_values", "decoder_input_ids", "inputs_embeds", "prefix_mask",
                                  "pixel_attention_mask", "past_key_values", "a name nobody knows"])  # fmt: skip
def test_an_input_that_may_change_a_pass_is_refused_by_name(name):
    for value in (torch.ones(2, 3, 4), np.zeros((2, 5)), [[1.0]]):
        refused(lambda value=value: read(**{name: value}), repr(name))
    assert len(read(**{name: None}).tokens) == 2


def test_types_and_positions_that_a_model_takes_anyway_pass():
    for zeros in (torch.zeros_like(IDS), np.zeros((2, 5), int), [[0] * 5] * 2, None):
        assert read(token_type_ids=zeros).tokens.equal(read().tokens)
    before, places = MASK.flip(1), torch.arange(5)
    for plain in (places.expand(2, -1), places[None], places, torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 9, 9]])):
        assert read(position_ids=plain).tokens.equal(read().tokens)
    assert read(attention_mask=before, position_ids=[[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]]).lengths.tolist() == [5, 3]
    refused(lambda: read(token_type_ids=MASK), "'token_type_ids' is not read")
    for moved in (places + 1, torch.zeros_like(IDS), places.flip(0)):
        refused(lambda moved=moved: read(position_ids=moved), "'position_ids' is not read")
    refused(lambda: read(attention_mask=before, position_ids=places), "'position_ids' is not read")


def test_two_functions_are_a_tokenizer_whose_labels_are_what_it_decodes():
    tokenizer = plain_tokenizer((lambda text: [*map(ord, text)], lambda ids: "".join(map(chr, ids))))
    assert "".join(map(token_labels(tokenizer), tokenizer("caf\xe9")["input_ids"])) == "caf\xe9"
