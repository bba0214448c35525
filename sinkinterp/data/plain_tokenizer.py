"""Tokenizers that are no library's: an object with `encode` and `decode`, two functions, or a dict of characters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

Encode = Callable[[str], Any]
Decode = Callable[[list[int]], str]
_PIECES = ("decode_single_token_bytes", "id_to_token", "id_to_piece")  # of tiktoken, tokenizers, sentencepiece


@dataclass(frozen=True, eq=False)
class PlainTokenizer:
    """The two functions of a tokenizer, called as a transformers tokenizer is. It adds no special tokens."""

    encode: Encode
    decode: Decode
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    chat_template: None = None
    piece: Callable[[int], str | bytes | None] | None = None  # what the vocabulary calls a token

    def __call__(
        self, text: str, *, add_special_tokens: bool = True, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        """{"input_ids": the first `max_length` ids of the text}, all of them without truncation."""
        encoded: Any = self.encode(text)
        ids = [int(i) for i in getattr(encoded, "ids", encoded)]  # tokenizers returns an object
        return {"input_ids": ids[:max_length] if truncation else ids}


def plain_tokenizer(given: Any) -> PlainTokenizer | None:
    """The tokenizer that an object, a pair of functions or a dictionary of characters is; None for anything else."""
    if isinstance(given, Mapping):
        return _of_characters(given)
    functions = (getattr(given, "encode", None), getattr(given, "decode", None))
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        functions = (given[0], given[1])
    encode, decode = functions
    if not callable(encode) or not callable(decode):
        return None
    bos, eos = (getattr(given, f"{name}_token_id", None) for name in ("bos", "eos"))
    piece = next((getattr(given, name) for name in _PIECES if callable(getattr(given, name, None))), None)
    return PlainTokenizer(encode, decode, bos, eos, piece=piece)


def _of_characters(ids: Mapping[Any, Any]) -> PlainTokenizer:
    """Raises InputError unless the dictionary gives single characters different ids."""
    characters = {i: character for character, i in ids.items()}
    is_right = all(isinstance(c, str) and len(c) == 1 and isinstance(i, int) for i, c in characters.items())
    if not ids or not is_right or len(characters) < len(ids):
        raise InputError("a dictionary that is a tokenizer gives every character an id of its own, such as {'a': 0}")

    def encode(text: str) -> list[int]:
        unknown = sorted({character for character in text if character not in ids})
        if unknown:
            raise InputError(f"the tokenizer has no character {unknown[0]!r}; give a text without it")
        return [ids[character] for character in text]

    return PlainTokenizer(encode, lambda tokens: "".join(characters.get(int(i), "?") for i in tokens))
