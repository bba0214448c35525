"""Tokens as people give them: texts, ids in lists, arrays and tensors, what a tokenizer returned.

This is the one place that reads them. Whatever it cannot read is an InputError that shows calls that work.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checks import is_whole
from ..errors import InputError
from .tokens import Tokens, TokenSet

TokensLike = TokenSet | Tensor | np.ndarray | str | Sequence[Any] | Mapping[str, Any]
Encode = Callable[[Sequence[str]], TokenSet]
WORKS = (
    'give a text, a list of texts, or token ids: "some words", ["one", "two"], [[5, 7, 9]] or a tensor of whole numbers'
)


def token_set_of(tokens: Any, encode: Encode) -> TokenSet:
    """The token set of anything in `TokensLike`, or of another column of texts or ids; `encode` makes that of texts.

    One list of ids is one sequence; lists of ids may differ in length. A mapping is what a tokenizer returned:
    "input_ids" and, for padded ids, "attention_mask". Raises InputError for everything else.
    """
    if isinstance(tokens, TokenSet):
        return tokens
    if isinstance(tokens, str):
        return encode([tokens])
    if isinstance(tokens, Mapping):
        return _of_mapping(tokens)
    if isinstance(tokens, np.ndarray) and tokens.dtype.kind in "OUST":
        tokens = tokens.tolist()
    if isinstance(tokens, Tensor | np.ndarray | np.generic):
        return TokenSet.of(_of_array(tokens))
    return _of_items(items_of(tokens), encode)


def _of_mapping(given: Mapping[str, Any]) -> TokenSet:
    """The token set of a tokenizer's answer."""
    if "input_ids" not in given:
        raise InputError(f"a mapping without input_ids holds no tokens; {WORKS}")
    ids, mask = given["input_ids"], given.get("attention_mask")
    if mask is None or not isinstance(ids, Tensor | np.ndarray):
        return token_set_of(ids, _refuse_texts)
    mask = torch.as_tensor(mask)
    tokens = _of_array(ids)
    return TokenSet.of(tokens, attention_mask=mask[None] if mask.ndim == 1 else mask)


def _of_items(items: Sequence[Any], encode: Encode) -> TokenSet:
    """The token set of a list: of texts, of ids, or of lists of ids."""
    if not items:
        raise InputError(f"there are no tokens in an empty {type(items).__name__}; {WORKS}")
    if all(isinstance(item, str) for item in items):
        return encode(items)
    if not any(isinstance(item, str) or _is_many(item) for item in items):
        return TokenSet.of_rows([_ids(items)])
    return TokenSet.of_rows([_ids(items_of(item)) for item in items])


def _of_array(given: Tensor | np.ndarray | np.generic) -> Tokens:
    """A tensor or an array of whole numbers, one sequence or several, as 64-bit ids."""
    shape, dtype = tuple(given.shape), str(given.dtype).removeprefix("torch.")
    if dtype not in WHOLE or len(shape) not in (1, 2) or 0 in shape or shape[-1] < 2:
        raise InputError(
            f"tokens are whole numbers, `pos` or `sequence pos`, at least 1 x 2; got {dtype} of {shape}; {WORKS}"
        )
    if isinstance(given, Tensor) and (given.is_meta or given.layout != torch.strided):
        raise InputError(f"tokens on {given.device} as {given.layout} hold no plain values; {WORKS}")
    if dtype == "uint64" and int(given.max()) > LARGEST:
        raise InputError(f"token id {int(given.max())} is beyond 64 bits; give ids of the vocabulary")
    tensor = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, dtype=np.int64))
    return tensor.reshape(-1, shape[-1]).long()


WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
LARGEST = torch.iinfo(torch.long).max


def items_of(given: Any) -> list[Any]:
    """The items of a list, a tuple, or a column of a dataset or a data frame."""
    if isinstance(given, Tensor | np.ndarray):
        return list(given) if given.ndim == 1 else [given]
    if not isinstance(given, Sized) or not isinstance(given, Iterable) or isinstance(given, bytes | bytearray | Set):
        raise InputError(f"a {type(given).__name__} is no text and no token ids; {WORKS}")
    return list(given)


def _is_many(item: Any) -> bool:
    return isinstance(item, Sized) and not (isinstance(item, Tensor | np.ndarray) and item.ndim == 0)


def _ids(items: Sequence[Any]) -> list[int]:
    """Token ids as Python's whole numbers."""
    return [_id(item) for item in items]


def _id(item: Any) -> int:
    if not is_whole(item):
        raise InputError(f"token ids are whole numbers; got a {type(item).__name__} among them; {WORKS}")
    number = operator.index(item)
    if not -LARGEST <= number <= LARGEST:
        raise InputError(f"token id {number} is beyond 64 bits; give ids of the vocabulary")
    return number


def _refuse_texts(texts: Sequence[str]) -> TokenSet:
    raise InputError(f"input_ids are texts; {WORKS}")
