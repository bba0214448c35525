"""Tokenizers that users give, of any library, and the bytes of their tokens."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..checks import InputError

Encode = Callable[[str], Any]
Decode = Callable[[list[int]], str]
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece names the token of a byte
_UNKNOWN = "\ufffd"


def is_tokenizer(found: object) -> bool:
    """Whether an object is a tokenizer."""
    return callable(found) and hasattr(found, "bos_token_id")


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


def labels_of(tokenizer: Any) -> Callable[[int], str]:
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
