import pytest
import torch

from sinkinterp.data.bos import Bos
from sinkinterp.data.tokens import PAD, TokenSet, from_rows, from_texts, random_tokens, repeated_token
from sinkinterp.errors import InputError

TEXTS = ("the first of the texts", "too short", "another text that is long", "the last text of them all")


class Words:
    """A tokenizer by words: the id of a word is 10 + its length."""

    def __init__(self, bos_token_id: int | None = None, adds_bos: bool = False) -> None:
        self.bos_token_id, self.adds_bos = bos_token_id, adds_bos

    def __call__(self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int) -> dict:
        ids = [10 + len(word) for word in text.split()]
        ids = [self.bos_token_id, *ids] if add_special_tokens and self.adds_bos else ids
        return {"input_ids": ids[:max_length] if truncation else ids}


WITH_BOS, WITHOUT_BOS = Words(bos_token_id=2, adds_bos=True), Words()


def token_set(texts=TEXTS, tokenizer=WITHOUT_BOS, length=5, sequences=2, bos=Bos.TOKENIZER):
    return from_texts(texts, tokenizer, length, sequences, bos, "a source")


def test_sequences_are_the_first_tokens_of_the_first_texts_that_are_long_enough():
    found = token_set(length=4)
    assert found.tokens.tolist() == [[13, 15, 12, 13], [17, 14, 14, 12]]
    assert found.too_short == 1
    assert found.source == "a source"


def test_texts_after_the_last_sequence_are_neither_read_nor_counted():
    def texts():
        yield from TEXTS[:3]
        raise AssertionError("read too far")

    assert len(token_set(texts()).tokens) == 2
    assert token_set((*TEXTS, "short")).too_short == 1


def test_a_text_of_exactly_the_length_is_long_enough():
    assert token_set(["a b c"], length=3, sequences=1).too_short == 0


@pytest.mark.parametrize(
    ("tokenizer", "bos", "first", "rule"),
    [
        (WITH_BOS, Bos.TOKENIZER, 2, "tokenizer (id 2 first)"),
        (WITH_BOS, Bos.ALWAYS, 2, "always (id 2 first)"),
        (WITH_BOS, Bos.NEVER, 13, "never (none)"),
        (Words(bos_token_id=2), Bos.TOKENIZER, 13, "tokenizer (none)"),
        (Words(bos_token_id=2), Bos.ALWAYS, 2, "always (id 2 first)"),
        (Words(bos_token_id=0), Bos.ALWAYS, 0, "always (id 0 first)"),
        (WITHOUT_BOS, Bos.TOKENIZER, 13, "tokenizer (none)"),
        (WITHOUT_BOS, Bos.NEVER, 13, "never (none)"),
    ],
)
def test_the_bos_rule_decides_the_first_token_and_is_written_down(tokenizer, bos, first, rule):
    found = token_set(["the first of the texts"], tokenizer, length=5, sequences=1, bos=bos)
    expected = [13, 15, 12, 13, 15] if first == 13 else [first, 13, 15, 12, 13]
    assert found.tokens.tolist() == [expected]
    assert found.bos == rule


def test_bos_counts_towards_the_length():
    assert token_set(["a b"], WITH_BOS, length=3, sequences=1, bos=Bos.ALWAYS).tokens.tolist() == [[2, 11, 11]]


def test_bos_asked_of_a_tokenizer_without_one_names_the_fix():
    with pytest.raises(InputError, match="--bos never or --bos tokenizer"):
        token_set(bos=Bos.ALWAYS)


def test_the_hash_is_that_of_the_texts_used():
    assert token_set().sha256 == token_set().sha256
    assert token_set().sha256 == token_set(TEXTS[:1] + TEXTS[2:]).sha256 == token_set((*TEXTS, "one more")).sha256
    assert token_set().sha256 == token_set(tokenizer=WITH_BOS, bos=Bos.NEVER).sha256


@pytest.mark.parametrize(
    "texts",
    [
        ("the First of the texts", *TEXTS[1:]),  # one letter, same ids
        ("the first of the texts!", *TEXTS[1:]),  # beyond no cut
        (TEXTS[2], TEXTS[0]),  # another order
        ("the first of the textsa", "nother text that is long"),  # another boundary
    ],
)
def test_another_text_has_another_hash(texts):
    assert token_set(texts).sha256 != token_set().sha256


def test_probes_of_tokens_are_named_by_their_tokens():
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


def test_a_probe_without_padding_is_one_group_of_all_its_rows():
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
def test_sequences_of_one_length_are_a_probe_without_padding(before):
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


def test_rows_are_cut_and_short_ones_counted():
    found = from_rows([[1, 2, 3], [4], [5, 6], [7, 8], [9]], 2, 3, "ids.json")
    assert found.tokens.tolist() == [[1, 2], [5, 6], [7, 8]]
    assert (found.too_short, found.bos, found.source) == (1, "as given", "ids.json")
    assert found.sha256 == TokenSet.of(torch.tensor([[1, 2], [5, 6], [7, 8]])).sha256


@pytest.mark.parametrize(
    ("rows", "length", "sequences", "message"),
    [
        (
            [[1, 2, 3], [1], [4, 5, 6]],
            3,
            5,
            "5 sequences of 3 .* of 3 texts 1 are shorter .* 2 are left; use --sequences 2 or a smaller --length",
        ),
        ([[1, 2], [1], [4, 5, 6]], 5, 1, "of 3 texts 3 are shorter .* use --length 3 or less"),
        ([[1, 2, 3]], 1, 1, "at least 2 tokens"),
        ([[1, 2, 3]], 2, 0, "1 sequence"),
    ],
)
def test_what_cannot_be_made_names_the_fix(rows, length, sequences, message):
    with pytest.raises(InputError, match=message):
        from_rows(rows, length, sequences, "ids.json")


@pytest.mark.parametrize("rows", [[], [[]], [[7]]])
def test_the_fix_is_never_a_length_that_is_refused(rows):
    with pytest.raises(InputError) as refused:
        from_rows(rows, 5, 1, "ids.json")
    assert "--length 0" not in str(refused.value)
    assert "--length 1 " not in str(refused.value)


@pytest.mark.parametrize("make", [random_tokens, repeated_token])
def test_drawn_tokens_span_the_vocabulary_and_follow_the_seed(make):
    found = make(7, 5, 211)
    assert found.tokens.shape == (211, 5)
    assert set(found.tokens.unique().tolist()) == set(range(7))
    assert make(7, 5, 211, seed=0).sha256 == found.sha256 != make(7, 5, 211, seed=1).sha256


def test_a_repeated_token_fills_its_sequence_and_a_random_one_does_not():
    assert all(len(row.unique()) == 1 for row in repeated_token(7, 5, 3).tokens)
    assert all(len(row.unique()) > 1 for row in random_tokens(101, 5, 3).tokens)


@pytest.mark.parametrize(("make", "kind"), [(random_tokens, "random tokens"), (repeated_token, "repeated token")])
def test_drawn_tokens_say_their_seed_and_what_stands_first(make, kind):
    plain, begun = make(7, 5, 211, seed=3), make(7, 5, 211, seed=3, first=6)
    assert plain.source == begun.source == f"{kind}, seed 3"
    assert make(7, 5, 2).source == f"{kind}, seed 0"
    assert (plain.bos, begun.bos) == ("none added", "id 6 first")
    assert begun.tokens[:, 0].eq(6).all()
    assert begun.tokens[:, 1:].equal(plain.tokens[:, 1:])
    assert begun.sha256 == TokenSet.of(begun.tokens).sha256 != plain.sha256


@pytest.mark.parametrize("make", [random_tokens, repeated_token])
@pytest.mark.parametrize("first", [-1, 7])
def test_a_first_token_outside_the_vocabulary_names_the_fix(make, first):
    with pytest.raises(InputError, match="outside the vocabulary of 7; give an id"):
        make(7, 5, 2, first=first)
