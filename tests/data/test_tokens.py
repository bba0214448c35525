import pytest
import torch

from sinkinterp.data.tokens import PAD, TokenSet
from sinkinterp.errors import InputError


def test_token_sets_are_named_by_their_tokens():
    tokens = torch.arange(6).reshape(2, 3)
    assert TokenSet.of(tokens).sha256 == TokenSet.of(tokens.int()).sha256 == TokenSet.of(tokens.T.contiguous().T).sha256
    assert TokenSet.of(tokens).sha256 != TokenSet.of(tokens + 1).sha256
    assert TokenSet.of(tokens).tokens is tokens


RAGGED = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14], [15, 16, 17], [18, 19]]


def padded(before, width=11, pad=3, rows=RAGGED):
    """The rows in a tensor with `before[i]` pads to their left and the rest to their right, and their mask."""
    tokens, mask = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        there = slice(before[i], before[i] + len(row))
        tokens[i, there], mask[i, there] = torch.tensor(row), 1
    return tokens, mask


LEFT, RIGHT, MIDDLE = [11 - len(row) for row in RAGGED], [0] * 5, [1, 5, 9, 0, 4]


@pytest.mark.parametrize("before", [LEFT, RIGHT, MIDDLE])
@pytest.mark.parametrize("kind", [torch.bool, torch.long, torch.float])
def test_padding_to_either_side_is_taken_out(before, kind):
    tokens, mask = padded(before)
    found = TokenSet.of(tokens, "a source", mask.to(kind))
    assert found.lengths.tolist() == [3, 5, 2, 3, 2]
    assert found.tokens.tolist() == [row + [PAD] * (5 - len(row)) for row in RAGGED]
    assert (found.source, found.bos, found.too_short) == ("a source", "none added", 0)


def test_groups_are_the_true_tokens_of_each_length_longest_first_with_their_rows():
    groups = [
        (rows.tolist(), tokens.tolist())
        for rows, tokens in TokenSet.of(*padded(LEFT)[:1], "", padded(LEFT)[1]).groups()
    ]
    assert groups == [
        ([1], [[8, 9, 10, 11, 12]]),
        ([0, 3], [[5, 6, 7], [15, 16, 17]]),
        ([2, 4], [[13, 14], [18, 19]]),
    ]


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
    assert TokenSet.of(tokens, "", mask).sha256 == TokenSet.of_rows(RAGGED).sha256
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


def test_the_same_tokens_cut_into_other_sequences_have_another_hash():
    ids = list(range(10))
    cuts = ([ids[:6], ids[6:]], [ids[:4], ids[4:8], ids[8:]])  # alike in memory: both are ten ids and two of padding
    assert len({TokenSet.of_rows(rows).sha256 for rows in cuts}) == 2


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


@pytest.mark.parametrize(
    ("mask", "fix"),
    [
        ([[1, 1, 1, 1, 1], [1, 1, 0, 1, 1]], "sequence 1 has a hole; pad only before or behind"),
        ([[0, 1, 0, 1, 0], [1, 1, 1, 1, 1]], "sequence 0 has a hole"),
        ([[1, 1, 1, 1, 1], [0, 0, 1, 0, 0]], "sequence 1 has 1 tokens; leave out those of fewer than 2"),
        ([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], "sequence 1 has 0 tokens; leave out"),
        ([[0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], "leaves no token"),
        ([[1, 1, 1, 1, 2], [1, 1, 1, 1, 1]], "other numbers than 0 and 1; give 1 for a token"),
        ([[1, 1, 1, 1], [1, 1, 1, 1]], r"attention_mask is \(2, 4\), the tokens \(2, 5\); give a number per token"),
        ([1, 1, 1, 1, 1], r"attention_mask is \(5,\)"),
    ],
)
def test_a_mask_that_cannot_be_used_names_the_fix(mask, fix):
    with pytest.raises(InputError, match=fix):
        TokenSet.of(torch.arange(10).reshape(2, 5), attention_mask=torch.tensor(mask))


@pytest.mark.parametrize(
    ("rows", "fix"), [([], "at least one"), ([[1, 2], [3]], "sequence 1 has 1 tokens"), ([[]], "0 tok")]
)
def test_rows_that_are_no_sequences_name_the_fix(rows, fix):
    with pytest.raises(InputError, match=fix):
        TokenSet.of_rows(rows)
