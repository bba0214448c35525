"""Labels of tokens, joined, are the text that was tokenised, byte for byte, whatever the tokenizer."""

import re

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import sinkinterp as si
from sinkinterp.data.given_tokenizer import labels_of, plain_tokenizer

TEXTS = [
    "The cat's  sat\n\n on the mat, 17 times",
    "caf\xe9 \u4e16\u754c \U0001f642\U0001f469\u200d\U0001f680 na\xefve",
    "\tx = <0xE4>",
    "\ufffd is the letter of what is unknown",
]


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


class Tiktoken:
    """As tiktoken's Encoding: tokens are bytes, and decoding replaces those that are no letter."""

    def encode(self, text):
        data = text.encode()
        return [
            int.from_bytes(data[i : i + 3], "little") + (len(data[i : i + 3]) << 24) for i in range(0, len(data), 3)
        ]

    def decode_single_token_bytes(self, token):
        return (token & 0xFFFFFF).to_bytes(token >> 24, "little")

    def decode(self, tokens):
        return b"".join(map(self.decode_single_token_bytes, tokens)).decode(errors="replace")


BYTES = {
    "byte-level BPE": lambda: PreTrainedTokenizerFast(tokenizer_object=byte_level()),
    "byte-level BPE of tokenizers": lambda: plain_tokenizer(byte_level()),
    "SentencePiece": lambda: PreTrainedTokenizerFast(tokenizer_object=sentencepiece(), bos_token="<s>"),
    "SentencePiece of tokenizers": lambda: plain_tokenizer(sentencepiece()),
    "tiktoken": lambda: plain_tokenizer(Tiktoken()),
}


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("text", TEXTS)
def test_labels_joined_are_the_bytes_of_the_text(name, text):
    tokenizer = BYTES[name]()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    labels = joined(labels_of(tokenizer), ids)
    assert labels.removeprefix(b" ") == text.encode()
    assert labels.decode().removeprefix(" ") == tokenizer.decode(ids).removeprefix(" ")


@pytest.mark.parametrize("name", ["byte-level BPE", "SentencePiece", "tiktoken"])
def test_pieces_of_a_letter_have_labels_of_their_own(name):
    tokenizer = BYTES[name]()
    ids = tokenizer("a\U0001f642\u4e16", add_special_tokens=False)["input_ids"]
    labels = [labels_of(tokenizer)(i) for i in ids]
    assert len(set(labels)) == len(set(ids)) and "\ufffd" not in "".join(labels) and r"\x9f" in "".join(labels)


@pytest.mark.parametrize("name", ["byte-level BPE", "SentencePiece"])
def test_a_label_keeps_the_space_that_begins_a_word(name):
    tokenizer = BYTES[name]()
    ids = tokenizer("a the cat", add_special_tokens=False)["input_ids"]
    assert " the" in [labels_of(tokenizer)(i) for i in ids]


def test_a_special_token_is_called_by_its_name():
    tokenizer = BYTES["SentencePiece"]()
    assert labels_of(tokenizer)(tokenizer.bos_token_id) == "<s>"


@pytest.mark.parametrize("text", ["the cats sat", "on, the mats"])
def test_labels_of_word_pieces_joined_are_what_the_tokenizer_decodes(text):
    vocab = ["[UNK]", "the", "cat", "sat", "on", "mat", "##s", ","]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocab)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    ids = fast(text)["input_ids"]
    label = labels_of(fast)
    decoded = fast.decode(ids, clean_up_tokenization_spaces=False)
    assert "".join(map(label, ids)).removeprefix(" ") == decoded and label(vocab.index("##s")) == "s"


def test_the_words_of_a_model_are_those_labels():
    subject = si.load("sinkinterp/text-softmax")
    ids = subject.tokens("caf\xe9 \u4e16", bos="never").tokens[0].tolist()
    assert joined(subject.label, ids).decode() == "caf\xe9 \u4e16"
