import json
from functools import partial

import pytest
import torch
from refusals import refused
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import sinkinterp as si
from sinkinterp.backends.subject import text_to_tokens, token_set_for
from sinkinterp.data.choices import Bos
from sinkinterp.data.tokens import TextToTokens, TokenSet, from_rows, random_tokens, repeated_token
from sinkinterp.pages.live import Session
from sinkinterp.runs.inputs import Inputs

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
    return TextToTokens(tokenizer, bos).of_length(texts, length, sequences, "a source")


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
    assert token_set(["a b c"], length=3, sequences=1).too_short == 0  # exactly the length is long enough


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


def test_bos_asked_of_a_tokenizer_without_one_names_the_fix():
    refused(lambda: token_set(bos=Bos.ALWAYS), "bos")


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


def test_rows_are_cut_and_short_ones_counted():
    found = from_rows([[1, 2, 3], [4], [5, 6], [7, 8], [9]], 2, 3, "ids.json")
    assert found.tokens.tolist() == [[1, 2], [5, 6], [7, 8]]
    assert (found.too_short, found.bos, found.source) == (1, "as given", "ids.json")
    assert found.sha256 == TokenSet.of(torch.tensor([[1, 2], [5, 6], [7, 8]])).sha256


@pytest.mark.parametrize(
    ("rows", "length", "n"), [([[1, 2, 3], [1], [4, 5, 6]], 3, 5), ([[1, 2], [4, 5, 6]], 5, 1), ([], 5, 1)]
)
def test_rows_that_are_too_few_or_too_short_are_refused(rows, length, n):
    longest = max(map(len, rows), default=0)
    refused(
        lambda: from_rows(rows, length, n, "ids.json"), f"{n} sequences of {length}", f"the longest text has {longest} "
    )


@pytest.mark.parametrize(
    ("make", "kind", "fills"), [(random_tokens, "random tokens", False), (repeated_token, "repeated token", True)]
)
def test_drawn_tokens_span_the_vocabulary_follow_the_seed_and_say_it(make, kind, fills):
    plain, begun = make(7, 5, 211, seed=3), make(7, 5, 211, seed=3, first=6)
    assert plain.tokens.shape == (211, 5) and {*plain.tokens.flatten().tolist()} == {*range(7)}
    assert all((len(row.unique()) == 1) == fills for row in plain.tokens)
    assert make(7, 5, 211, seed=3).sha256 == plain.sha256 != make(7, 5, 211, seed=1).sha256
    assert plain.source == begun.source == f"{kind}, seed 3" and make(7, 5, 2).source == f"{kind}, seed 0"
    assert (plain.bos, begun.bos) == ("none added", "id 6 first") and begun.tokens[:, 0].eq(6).all()
    assert begun.tokens[:, 1:].equal(plain.tokens[:, 1:])
    assert begun.sha256 == TokenSet.of(begun.tokens).sha256 != plain.sha256
    for outside in (-1, 7):
        refused(lambda outside=outside: make(7, 5, 2, first=outside), "7")


WORDS = ["<s>", "</s>", "<pad>", "the", "cat", "sat"]


@pytest.fixture(scope="module")
def subject():
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<s>"}
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=7, bos_token_id=0, eos_token_id=1, **sizes)).eval()
    return si.load(model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=made, **marks))


@pytest.mark.parametrize("rows", [[[3, 4, 5], [3, 4, 2]], [[2, 4, 3], [3, 4, 5]], [[0, 3, 2, 2]]])
@pytest.mark.parametrize("kind", [list, torch.tensor, lambda rows: {"input_ids": rows}])
def test_padding_without_a_mask_is_refused(subject, rows, kind):
    for read in (si.measure, si.hidden_states):
        refused(partial(read, subject, kind(rows)))


def test_ids_that_a_mask_marks_are_read_as_they_are(subject):
    rows = [[3, 4, 2], [3, 4, 5]]
    report = si.measure(subject, {"input_ids": rows, "attention_mask": torch.ones(2, 3, dtype=torch.long)})
    assert report.protocol.sequences == 2
    assert si.measure(subject, TokenSet.of_rows(rows)).protocol.source == "tokens in memory"


def test_padding_is_known_by_how_often_it_is_repeated_at_an_end():
    rows = TokenSet.of_rows([[9, 9, 4, 5], [3, 4, 9, 9, 9], [7, 7]])
    assert rows.checked_for({9: 4, 7: 1}) is rows  # of one token alone is a text
    refused(lambda: rows.checked_for({9: 3}), "3 of token 9")
    refused(lambda: rows.checked_for({9: 2}), "of token 9")


def test_a_text_that_spells_out_the_bos_that_is_put_before_it_is_refused(subject):
    for texts in ("<s> the cat", ["the cat", "<s> the cat"]):
        refused(partial(si.measure, subject, texts))
    once = subject.tokens("<s> the cat", bos="never")
    assert once.tokens.equal(subject.tokens("the cat").tokens)


def test_an_unknown_word_with_the_id_of_bos_is_no_second_bos(subject):
    assert subject.tokens("mat sat").tokens.tolist() == [[0, 0, 5]]


def test_a_column_is_named_in_python(subject, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "the cat sat"}\n{"body": "sat"}\n')
    refused(lambda: si.measure(subject, file))
    expected = subject.tokens(["the cat sat", "sat"])
    assert subject.tokens(file, column="body").tokens.equal(expected.tokens)
    assert si.measure(subject, si.texts(file, "body")).tokens.equal(expected.tokens)
    refused(lambda: si.attention_map(subject, file, column="body"), "column")


@pytest.mark.parametrize("bos", Bos)
def test_every_way_from_a_text_to_tokens_gives_the_same_ones(subject, bos, tmp_path):
    text, file = "the cat sat", tmp_path / "a.txt"
    file.write_text(text)
    to_tokens = text_to_tokens(subject, bos)
    ways = {
        "python": subject.tokens(text, bos=bos),
        "python, a file": subject.tokens(file, bos=bos),
        "view, a file": to_tokens.first_in(si.texts(file), None),
        "measure": Inputs(64, 1, bos, text, may_be_shorter=True).token_set(subject, "a model"),
        "the live page": Session(subject, bos)._tokens(text),
    }
    expected = [3, 4, 5] if bos is Bos.NEVER else [0, 3, 4, 5]
    assert {way: found.tokens.tolist() for way, found in ways.items()} == {way: [expected] for way in ways}
    assert len({found.bos for found in ways.values()}) == 1


CHAT = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
TEMPLATE = "{{ bos_token }}{% for message in messages %} {{ message.content }} {{ eos_token }}{% endfor %}"


def test_chats_are_read_in_the_template_of_their_tokenizer_wherever_texts_are(subject, tmp_path):
    subject.tokenizer.chat_template = TEMPLATE
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in (CHAT, CHAT[:1])))
    source = si.texts(file, column="messages")
    whole, short = [0, 3, 4, 1, 5, 1], [0, 3, 4, 1]
    assert subject.tokens(CHAT).tokens.tolist() == [whole]
    for given in (source, [CHAT, CHAT[:1]]):
        token_set = token_set_for(subject, given)
        assert token_set.lengths.tolist() == [6, 4] and token_set.tokens[1, :4].tolist() == short
    never = subject.tokens(source, bos="never", length=3)
    assert never.tokens.tolist() == [whole[1:4], short[1:4]]
    two = Inputs(text=source, length=4, sequences=2).token_set(subject, "")
    assert two.tokens.tolist() == [whole[:4], short]
    refused(lambda: next(iter(source.texts(tmp_path))), "holds chats")
    refused(lambda: list(si.texts(file)), "'messages' (list)")


@pytest.mark.parametrize("template", [None, "{{ 1 / 0 }}", "{% for %}", "{% for i in range(10**9) %}{% endfor %}"])
def test_a_chat_that_has_no_template_or_that_it_refuses_is_refused(subject, template):
    subject.tokenizer.chat_template = template
    refused(lambda: subject.tokens(CHAT), "chat template", "give the text of the chat")
    assert subject.tokens("the cat").tokens.tolist() == [[0, 3, 4]]  # the fix
