"""The text of single tokens: labels that keep the space that begins a word, and show every byte."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from .plain_tokenizer import PlainTokenizer

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece names the token of a byte
_UNKNOWN = "\ufffd"


def labels_of(tokenizer: Any) -> Callable[[int], str]:
    """A function from a token id to its label: the text of `token_bytes`, with bytes that are no letter as \\xe4.

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

    They are what the tokenizer's `decode` adds for the token after itself. Where that is not whole letters, they follow
    from the token's name: <0xE4>, or the letters that stand for bytes in byte-level BPE.
    """
    piece = _piece(tokenizer, token)
    if isinstance(piece, bytes):
        return piece
    alone, twice = _decoded(tokenizer, [token]), _decoded(tokenizer, [token, token])
    ends_word = piece is not None and piece.endswith("</w>")
    text = twice.removesuffix(alone) if ends_word else twice.removeprefix(alone)
    byte = _BYTE.fullmatch(piece or "")
    if byte and alone != piece:
        return bytes([int(byte[1], 16)])
    if _UNKNOWN in text and piece and set(piece) <= _BYTE_LETTERS.keys():
        return bytes(_BYTE_LETTERS[letter] for letter in piece)
    return text.encode("utf-8", "surrogatepass")


def _piece(tokenizer: Any, token: int) -> str | bytes | None:
    """What the vocabulary calls a token; None where the tokenizer does not say."""
    if isinstance(tokenizer, PlainTokenizer):
        return None if tokenizer.piece is None else tokenizer.piece(token)
    name_of = getattr(tokenizer, "convert_ids_to_tokens", None)
    return None if name_of is None else name_of(token)


def _decoded(tokenizer: Any, tokens: list[int]) -> str:
    if isinstance(tokenizer, PlainTokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
        return str(tokenizer.decode(tokens))
    return str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def _byte_letters() -> dict[str, int]:
    """The byte of each letter in the vocabularies of byte-level BPE: letters that print stand for themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_LETTERS = _byte_letters()
