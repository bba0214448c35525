"""What a model would read as something else is refused or said: padding without a mask, a second BOS."""

import json
from functools import partial

import pytest
import torch
from refusals import refused
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import sinkinterp as si
from sinkinterp.backends.subject import text_to_tokens
from sinkinterp.data.choices import Bos
from sinkinterp.data.tokens import TokenSet, said_of_padding
from sinkinterp.pages.live.page import Session
from sinkinterp.runs.case import Inputs

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
def test_padding_without_a_mask_is_refused_and_with_one_left_out(subject, rows, kind):
    for read in (subject.first_token, lambda ids: si.measure(subject, ids)):
        refused(partial(read, kind(rows)))
    mask = [[int(token != 2) for token in row] for row in rows]
    report = si.measure(subject, {"input_ids": rows, "attention_mask": mask})
    alone = si.measure(subject, [[token for token in row if token != 2] for row in rows])
    torch.testing.assert_close(report.alpha(), alone.alpha())


def test_ids_that_a_mask_marks_are_read_as_they_are(subject):
    rows = [[3, 4, 2], [3, 4, 5]]
    assert len(si.measure(subject, {"input_ids": rows, "attention_mask": torch.ones(2, 3, dtype=torch.long)})) == 2
    assert si.measure(subject, TokenSet.of_rows(rows)).protocol.source == "tokens in memory"


def test_without_known_padding_the_source_names_repeated_ids():
    rows = TokenSet.of_rows([[9, 9, 4, 5], [3, 4, 9, 9, 9], [7, 7]])
    assert (
        "3 " not in said_of_padding(rows, {}).source
        and "2 beginnings or ends repeat" in said_of_padding(rows, {}).source
    )
    assert said_of_padding(TokenSet.of_rows([[1, 2, 3], [4, 4]]), {}).source == "tokens in memory"
    refused(lambda: said_of_padding(rows, {9: 3}), "3")


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
    assert si.measure(subject, str(file), column="body").tokens.equal(expected.tokens)
    refused(lambda: si.attention_map(subject, file, column="body"), "column")


def test_conversations_are_chats(subject):
    subject.tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    named = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    shared = [{"from": "human", "value": "the cat"}, {"from": "gpt", "value": "sat"}]
    assert subject.tokens(shared).tokens.equal(subject.tokens(named).tokens)
    assert subject.tokens([shared, shared]).tokens.equal(subject.tokens([named, named]).tokens)


@pytest.mark.parametrize("bos", Bos)
def test_every_way_from_a_text_to_tokens_gives_the_same_ones(subject, bos, tmp_path):
    text, file, rows = "the cat sat", tmp_path / "a.txt", tmp_path / "a.jsonl"
    file.write_text(text)
    rows.write_text(json.dumps({"text": text, "domain": "books"}))
    to_tokens, length = text_to_tokens(subject, bos), 3 + (bos is not Bos.NEVER)
    ways = {
        "python": subject.tokens(text, bos=bos),
        "python, a file": subject.tokens(file, bos=bos),
        "view": to_tokens.one_in(text, "text", None),
        "view, a file": to_tokens.one_in(str(file), "text", None),
        "measure": Inputs(64, 1, bos, text, may_be_shorter=True).token_set(subject, "a model"),
        "domains": Inputs(length, 1, bos).domain_token_sets(subject, [str(rows)], "domain")[0]["books"],
        "the live page": Session(subject, bos)._tokens(text),
    }
    expected = [3, 4, 5] if bos is Bos.NEVER else [0, 3, 4, 5]
    assert {way: found.tokens.tolist() for way, found in ways.items()} == {way: [expected] for way in ways}
    assert len({found.bos for found in ways.values()}) == 1


@torch.no_grad()
def eager_alpha(subject, ids):
    """`layer head`, by transformers alone: mean attention of all queries to the first of these ids."""
    eager = LlamaForCausalLM._from_config(subject.model.config, attn_implementation="eager").eval()
    eager.load_state_dict(subject.model.state_dict())
    return torch.stack(eager(torch.tensor([ids]), output_attentions=True).attentions)[:, 0, :, :, 0].mean(-1)


@pytest.mark.parametrize(
    ("wrong", "mask"),
    [
        pytest.param([0, 0, 3, 4, 5], None, id="two BOS"),
        pytest.param([2, 2, 0, 3, 4, 5], [0, 0, 1, 1, 1, 1], id="padding before"),
        pytest.param([0, 3, 4, 5, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0], id="padding behind"),
    ],
)
def test_what_is_read_as_something_else_has_other_numbers_and_ours_are_those_of_transformers(subject, wrong, mask):
    expected = eager_alpha(subject, [0, 3, 4, 5])
    assert (eager_alpha(subject, wrong) - expected).abs().max() > 0.02
    if mask is None:
        ours = si.measure(subject, subject.tokens("<s> the cat sat", bos="never"))
    else:
        ours = si.measure(subject, {"input_ids": [wrong], "attention_mask": [mask]})
        refused(lambda: si.measure(subject, [wrong]))
    torch.testing.assert_close(ours.alpha()[0], expected)


@pytest.mark.parametrize("n", [2, 5, 9, 10, 17])
def test_on_short_texts_uniform_attention_alone_makes_every_head_a_sink(subject, n):
    uniform = sum(1 / i for i in range(1, n + 1)) / n
    report = si.measure(subject, [[0, *[3, 4, 5] * 6][:n]])
    assert report.null_alpha().mean().item() == pytest.approx(uniform)
    assert report.null_sink_rate() == float(uniform > 0.3) == float(n < 10)
    assert repr(report).endswith(f"{report.null_sink_rate():.3f} under uniform attention>")


def test_however_many_blank_lines_part_the_texts_of_a_file_they_have_the_numbers_of_the_texts(tmp_path):
    subject, texts = si.load("sinkinterp/text-softmax"), ["The harbour is old.", "It had a wall and towers."]
    expected = [si.measure(subject, text, progress=False).alpha() for text in texts]
    wrong = si.measure(subject, f"\n{texts[1]}", progress=False).alpha()
    assert (wrong - expected[1]).abs().max() > 0.02
    for n_ends in (2, 3, 5):
        (tmp_path / "a.txt").write_text(("\n" * n_ends).join(texts))
        ours = si.measure(subject, tmp_path / "a.txt", progress=False).alpha()
        torch.testing.assert_close(ours, torch.cat(expected))
