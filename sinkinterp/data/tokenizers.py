"""Tokenizers: those of users and of the Hub, those that recipes describe, and the bytes of their tokens."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..checks import InputError, refusal
from ..spec import Limits, Spec
from .hub import asking_hub

Encode = Callable[[str], Any]
Decode = Callable[[list[int]], str]
EOS, BOS = "<|endoftext|>", "<|bos|>"  # ids 0 and 1 of every tokenizer trained here
BYTES = 256
BATCH_CHARACTERS = 1_000_000  # of the texts that are tokenised in one call
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece names the token of a byte
_UNKNOWN = "\ufffd"


def is_tokenizer(given: object) -> bool:
    """Whether an object is a tokenizer."""
    return callable(given) and hasattr(given, "bos_token_id")


def check_has(name: str, tokenizer: Any, what: str, fix: str) -> None:
    """Raises InputError where a tokenizer, which it calls `what`, has no token of this name, "BOS" or "EOS"."""
    if getattr(tokenizer, f"{name.lower()}_token_id") is None:
        raise InputError(f"{what} has no {name} token; {fix}")


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """The two functions of a tokenizer, called as a transformers tokenizer is. It adds no special tokens."""

    encode: Encode
    decode: Decode
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        """{"input_ids": the first `max_length` ids of the text}, all of them without truncation."""
        encoded: Any = self.encode(text)
        ids = [int(i) for i in getattr(encoded, "ids", encoded)]  # tokenizers returns an object
        return {"input_ids": ids[:max_length] if truncation else ids}


def plain_tokenizer(given: Any) -> PlainTokenizer | None:
    """The tokenizer that an object or a pair of functions is; None for anything else."""
    is_pair = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    encode, decode = given if is_pair else (getattr(given, name, None) for name in ("encode", "decode"))
    if not callable(encode) or not callable(decode):
        return None
    bos, eos = (getattr(given, f"{name}_token_id", None) for name in ("bos", "eos"))
    return PlainTokenizer(encode, decode, bos, eos)


def appended_tokens(tokenizer: Any) -> int:
    """How many tokens the tokenizer puts after every text, such as T5's end token."""
    if isinstance(tokenizer, PlainTokenizer):  # which adds none, and may not know an "a"
        return 0
    how = {"truncation": True, "max_length": 64}
    with_special, alone = (tokenizer("a", add_special_tokens=has, **how)["input_ids"] for has in (True, False))
    starts = [i for i in range(len(with_special)) if with_special[i : i + len(alone)] == alone]
    begins = with_special[0] == tokenizer.bos_token_id  # which may also stand for an "a" that is unknown
    return len(with_special) - len(alone) - starts[-1 if begins else 0] if starts else 0


def check_one_bos(ids: Sequence[int], tokenizer: Any, text: str) -> None:
    """Raises InputError where a text begins with BOS itself, and the tokenizer puts another before it."""
    first, spelt = getattr(tokenizer, "bos_token_id", None), str(getattr(tokenizer, "bos_token", ""))
    is_spelt = text.lstrip().startswith(spelt)  # BOS may also be the token of what is unknown
    if first is not None and is_spelt and list(ids[:2]) == [first, first]:
        fix = 'take it out of the text, or use bos="never" for texts that begin with it'
        raise InputError(f"the text {text[:30]!r} begins with BOS itself, and another is put before it; {fix}")


def token_labels(tokenizer: Any) -> Callable[[int], str]:
    """A function from a token id to its label: the text of `token_bytes`, with bytes outside letters as \\xe4.

    The labels of a text's tokens, joined, are the text, but for a space that a tokenizer puts before it.
    """
    added = {i: str(token) for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}

    @cache
    def label(token: int) -> str:
        data = added[token].encode() if token in added else token_bytes(tokenizer, token)
        return data.decode("utf-8", "backslashreplace")

    return label


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes of a token inside a text.

    The tokenizer's `decode` adds them for a second copy of the token. If they are not whole letters,
    they follow from the token's name: <0xE4>, or the letters that name bytes in byte-level BPE.
    """
    is_plain = isinstance(tokenizer, PlainTokenizer)
    piece: str | None = None if is_plain else tokenizer.convert_ids_to_tokens(token)
    how = {} if is_plain else {"clean_up_tokenization_spaces": False}
    alone, twice = (str(tokenizer.decode([token] * n, **how)) for n in (1, 2))
    ends_word = piece is not None and piece.endswith("</w>")
    text = twice.removesuffix(alone) if ends_word else twice.removeprefix(alone)
    byte = _BYTE.fullmatch(piece or "")
    if byte and alone != piece:
        return bytes([int(byte[1], 16)])
    if _UNKNOWN in text and piece and set(piece) <= _byte_letters().keys():
        return bytes(_byte_letters()[letter] for letter in piece)
    return text.encode("utf-8", "surrogatepass")


@cache
def _byte_letters() -> dict[str, int]:
    """The byte of each letter in the vocabularies of byte-level BPE."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


class TokenizerRecipe(Spec):
    """How the tokenizer of a corpus is made. A model of the corpus must have `vocab` symbols."""

    vocab: int

    @property
    def outside(self) -> str:
        """The name or folder of a tokenizer that is read; empty for one that is trained."""
        return ""

    def make(self, texts: Iterable[str]) -> Any:
        """A transformers tokenizer with an EOS token. Raises InputError where it cannot be made."""
        raise NotImplementedError

    def load(self, folder: Path) -> Any:
        """The tokenizer that was made and then saved in `folder`."""
        return pretrained_tokenizer(str(folder))


class ByteBPE(TokenizerRecipe):
    """Byte-level BPE of at most `vocab` symbols, trained on the first `documents` documents of the corpus.

    A corpus with few distinct pairs of symbols gives fewer symbols. The last ids then never occur.
    """

    limits: ClassVar[Limits] = {"vocab": BYTES + 2, "documents": 1}  # EOS and BOS are symbols too

    vocab: int = 1024
    documents: int = 100_000

    def make(self, texts: Iterable[str]) -> Any:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab,
            special_tokens=[EOS, BOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(islice(texts, self.documents), trainer)
        return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, bos_token=BOS)

    def load(self, folder: Path) -> Any:
        from transformers import PreTrainedTokenizerFast  # seconds faster than the auto classes

        return PreTrainedTokenizerFast.from_pretrained(folder)


class Pretrained(TokenizerRecipe):
    """The tokenizer of a Hugging Face name or folder. `vocab` may exceed its symbols, as in padded models."""

    source: str

    @property
    def outside(self) -> str:
        return self.source

    def make(self, texts: Iterable[str]) -> Any:
        tokenizer = pretrained_tokenizer(self.source)
        symbols = max(tokenizer.get_vocab().values()) + 1
        if symbols > self.vocab:
            raise InputError(f"the tokenizer of {self.source} has {symbols} symbols; use vocab={symbols} or more")
        check_has("EOS", tokenizer, f"the tokenizer of {self.source}", "to put between documents; use another one")
        return tokenizer


def pretrained_tokenizer(source: str) -> Any:
    """The transformers tokenizer of a name or folder. Raises InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    fix = "give a name on the Hub, with a network, or a folder made by save_pretrained"
    any_error = refusal(f"cannot load the tokenizer of {source}", fix, (OSError, ValueError, KeyError))
    with any_error, asking_hub(source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def beginning_with_bos(tokenizer: Any) -> Any:
    """The same tokenizer, changed so that the ids of every text begin with BOS."""
    from tokenizers.processors import TemplateProcessing

    bos, adds_bos = tokenizer.bos_token, tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    if tokenizer.is_fast and not adds_bos:
        template = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def encoded(texts: Iterable[str], tokenizer: Any) -> Iterator[np.ndarray]:
    """The ids of each text, EOS last. A text that spells out a special token gets ids of ordinary tokens for it."""
    how = dict.fromkeys(("add_special_tokens", "return_attention_mask", "return_token_type_ids", "verbose"), False)
    for batch in _batches(texts):
        for ids in tokenizer(batch, split_special_tokens=True, **how)["input_ids"]:
            yield np.array([*ids, tokenizer.eos_token_id])


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about `BATCH_CHARACTERS` characters."""
    read = 0

    def number_of_batch(text: str) -> int:
        nonlocal read
        read += len(text)
        return read // BATCH_CHARACTERS

    return (list(batch) for _, batch in groupby(texts, number_of_batch))
