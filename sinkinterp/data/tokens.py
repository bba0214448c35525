"""Token sets, which a model is measured on, and how they are read from what people give: texts, ids, arrays."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..checks import LARGEST, check_count, check_memory, instance_of, is_whole, whole_number
from ..data.texts import names_file
from ..errors import InputError, refusing
from .given_tokenizer import messages_in
from .texts import is_path, is_text, text_in, texts_of

Tokens = Int[Tensor, "sequence pos"]
Lengths = Int[Tensor, " sequence"]
PAD = -1  # is not the id of a token, so an embedding that receives it fails


@dataclass(frozen=True, repr=False, eq=False)
class TokenSet:
    """Sequences of tokens, their source and its hash.

    `bos` says how the sequences begin, and `too_short` how many texts were skipped because they were too short.
    Sequences of different lengths all start at position 0 and end in `PAD`; `lengths` are their true lengths, or None
    where no sequence is padded. Models never run on padding, because they run on the `groups()` of equal length.
    """

    tokens: Tokens
    source: str
    sha256: str
    bos: str = "none added"
    too_short: int = 0
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        tokens = self.tokens
        is_whole = isinstance(tokens, Tensor) and tokens.dtype in (torch.int32, torch.int64)
        if not is_whole or tokens.ndim != 2 or not tokens.numel():
            got = f"{tokens.dtype} of {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"a token set holds whole numbers, `sequence pos`, not {got}; use TokenSet.of_rows")

    def __repr__(self) -> str:
        n, longest = self.tokens.shape
        length = longest if self.lengths is None else f"{self.shortest} to {longest}"
        return f"<TokenSet of {self.source}: n={n}, T={length}, BOS {self.bos}>"

    @property
    def shortest(self) -> int:
        """The length of the shortest sequence."""
        return self.tokens.shape[1] if self.lengths is None else int(self.lengths.min())

    @staticmethod
    def of(tokens: Tokens, source: str = "tokens in memory", attention_mask: Any = None) -> "TokenSet":
        """The token set of a tensor of token ids.

        `attention_mask` (`sequence pos`) is 1 at tokens and 0 at the padding before or after a sequence. Raises
        InputError for another mask, and for one that leaves a sequence fewer than two tokens.
        """
        instance_of(tokens, Tensor, "TokenSet.of takes a tensor of token ids, and TokenSet.of_rows takes their lists")
        check_memory(3 * 8 * tokens.numel(), f"{tokens.numel():,} tokens", "use fewer or shorter sequences")
        token_set = TokenSet(tokens, source, _sha256(tokens))
        if attention_mask is None:
            return token_set
        return _of_lengths(*_without_padding(tokens, _mask_of(attention_mask, token_set)), source)

    @staticmethod
    def of_rows(rows: Sequence[Sequence[int]], source: str = "tokens in memory") -> "TokenSet":
        """The token set of lists of token ids. Raises InputError where a list has fewer than two ids."""
        if not instance_of(rows, Sized, f"rows are lists of token ids; {WORKS}"):
            raise _misread(f"an empty {type(rows).__name__} holds no tokens")
        sequences = [torch.tensor(ids_of_row(row), dtype=torch.long) for row in rows]
        lengths = torch.tensor([len(row) for row in sequences])
        return _of_lengths(pad_sequence(sequences, batch_first=True, padding_value=PAD), lengths, source)

    def of_one_length(self) -> Tokens:
        """The tokens. Raises InputError if sequences differ in length."""
        if self.lengths is not None:
            raise InputError("this needs sequences of one length; cut the texts: subject.tokens(texts, length=...)")
        return self.tokens

    def groups(self) -> Iterator[tuple[Int[Tensor, " group"], Int[Tensor, "group pos"]]]:
        """The sequences of each length, longest first: their rows in `tokens`, and their tokens without padding."""
        if self.lengths is None:
            yield torch.arange(len(self.tokens), device=self.tokens.device), self.tokens
            return
        for length in self.lengths.unique().flip(0).tolist():
            (rows,) = (self.lengths == length).nonzero(as_tuple=True)
            yield rows, self.tokens[rows, :length]


def _without_padding(tokens: Tokens, mask: Shaped[Tensor, "..."]) -> tuple[Int[Tensor, "sequence longest"], Lengths]:
    """The tokens that the mask keeps, moved to position 0, and how many each sequence has."""
    mask = mask.to(tokens.device)
    kept = mask == 1
    lengths, pos = kept.sum(1), torch.arange(tokens.shape[1], device=tokens.device)
    moved_from = (kept.int().argmax(1, keepdim=True) + pos).clamp(max=len(pos) - 1)
    inside = pos < lengths[:, None]
    is_wrong = (inside & ~kept.gather(1, moved_from)).any(1) | (~kept & (mask != 0)).any(1)
    if is_wrong.any():
        row = int(is_wrong.int().argmax())
        raise InputError(
            f"attention_mask of sequence {row} is not 1 at all tokens and 0 at padding before or after them"
        )
    return tokens.long().gather(1, moved_from).where(inside, PAD)[:, : lengths.max()], lengths


def _of_lengths(tokens: Tokens, lengths: Lengths, source: str) -> TokenSet:
    if lengths.min() < 2:
        row, length = int(lengths.argmin()), int(lengths.min())
        raise InputError(f"sequence {row} has {length} tokens; leave out those of fewer than 2")
    if (lengths == tokens.shape[1]).all():
        return TokenSet.of(tokens, source)
    return TokenSet(tokens, source, _sha256(tokens, lengths), lengths=lengths)


def _sha256(*tensors: Int[Tensor, "..."]) -> str:
    return hashlib.sha256(b"".join(part.long().contiguous().cpu().numpy().tobytes() for part in tensors)).hexdigest()


TokensLike = TokenSet | Tensor | np.ndarray | str | Path | Sequence[Any] | Mapping[str, Any]
Encode = Callable[[Sequence[str]], TokenSet]
FIRST_TEXTS = 100  # of a file, a folder or a dataset
WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
WORKS = (
    'give a text, a list of texts, or token ids: "some words", ["one", "two"], [[5, 7, 9]] or a tensor of whole numbers'
)


def _misread(what: str) -> InputError:
    """The refusal of something that holds no tokens, which says what does."""
    return InputError(f"{what}; {WORKS}")


def token_set_of(tokens: Any, encode: Encode, column: str = "text") -> TokenSet:
    """The token set of anything in `TokensLike`, or of another column of texts or ids.

    `encode` makes the token set of texts. One list of ids is one sequence. Several lists may differ in length. A
    mapping is what a tokenizer returned: "input_ids" and, for padded ids, "attention_mask". A string or path that names
    a file, a folder or a dataset (see `is_text`), and a Dataset of `datasets`, stand for the first texts in the
    `column`; rows without it may hold "input_ids". Raises InputError for everything else.
    """
    if isinstance(tokens, TokenSet):
        return tokens
    if isinstance(tokens, str | Path):
        return encode([tokens]) if is_text(tokens) else of_source(tokens, encode, column)  # type: ignore[list-item]
    if isinstance(tokens, Mapping):
        return _of_mapping(tokens)
    if hasattr(tokens, "column_names") and isinstance(tokens, Iterable):
        return _of_dataset(tokens, encode, column)
    if isinstance(tokens, np.ndarray) and tokens.dtype.kind in "OUST":
        tokens = tokens.tolist()
    if isinstance(tokens, Tensor | np.ndarray | np.generic):
        return TokenSet.of(_of_array(tokens))
    items = items_of(tokens)
    if items and (all(isinstance(item, str) for item in items) or is_chat(items) or all(map(is_chat, items))):
        return encode(items)
    if items and all(isinstance(item, Tensor | np.ndarray) and item.ndim == 2 for item in items):  # as of a DataLoader
        items = [row for batch in items for row in batch]
    is_one = not any(isinstance(item, str) or _is_many(item) for item in items)
    return TokenSet.of_rows([items] if items and is_one else [items_of(item) for item in items])


def of_source(source: str | Path, encode: Encode, column: str = "text") -> TokenSet:
    """The token set of the first texts of a file, a folder or a dataset."""
    name = Path(source).name if is_path(source) else str(source)
    return _of_first(texts_of(source, column), name, encode)


def _of_dataset(dataset: Iterable[Any], encode: Encode, column: str) -> TokenSet:
    """The token set of the first rows of a Dataset of `datasets`: of their texts, or of their ids."""
    rows = list(islice(dataset, FIRST_TEXTS + 1))
    if not all(isinstance(row, Mapping) for row in rows):
        raise _misread(f"a {type(dataset).__name__} has no rows of texts or ids; give one of its parts")
    if rows and column not in rows[0] and "input_ids" in rows[0]:
        return _of_mapping({name: [row[name] for row in rows[:FIRST_TEXTS]] for name in rows[0]})
    return _of_first((text_in(row, column, "the dataset") for row in rows), "a dataset", encode)


def _of_first(texts: Iterable[str], name: str, encode: Encode) -> TokenSet:
    """The token set of the first texts of a source of this name. Raises InputError where there are none."""
    first = list(islice(texts, FIRST_TEXTS + 1))
    check_count(first, f"texts in {name}")
    name += f", its first {FIRST_TEXTS} texts" if len(first) > FIRST_TEXTS else ""
    return replace(encode(first[:FIRST_TEXTS]), source=name)


def is_chat(given: Any) -> bool:
    """Returns true for a list of messages. Each has a role and a content, or `from` and `value`."""
    given = messages_in(given)
    is_list = isinstance(given, list | tuple) and len(given) > 0
    return is_list and all(isinstance(item, Mapping) and {"role", "content"} <= item.keys() for item in given)


_UNREAD = {
    "position_ids": "edits change positions, such as edits=si.SwapPositions(0, 4)",
    "inputs_embeds": "edits change embeddings, such as edits=ChangeTokenEmbedding(...)",
    "token_type_ids": "leave them out",
}


def _of_mapping(given: Mapping[str, Any]) -> TokenSet:
    """The token set of a tokenizer's answer."""
    if "input_ids" not in given:
        items = ", ".join(map(repr, islice(given, 3))) or "nothing"
        raise _misread(f"a {type(given).__name__} without input_ids holds no tokens; give an item ({items})")
    token_set = token_set_of(given["input_ids"], _refuse_texts)
    for name, fix in _UNREAD.items():
        value = given.get(name)
        if value is not None and not (name == "token_type_ids" and _mask_of(value, token_set, name).eq(0).all()):
            raise InputError(f"{name} are not read; {fix}")
    mask = given.get("attention_mask")
    return token_set if mask is None else TokenSet.of(token_set.tokens, attention_mask=_mask_of(mask, token_set))


def _mask_of(given: Any, token_set: TokenSet, name: str = "attention_mask") -> Shaped[Tensor, "sequence pos"]:
    """A mask in lists, arrays or tensors as a tensor, 0 after the end of a list that is shorter.

    Raises InputError unless it has a number for every token.
    """
    rows = list(given) if getattr(given, "ndim", 0) > 1 else _items_in(given)
    rows = rows if any(map(_is_many, rows)) else [rows]
    n, longest = token_set.tokens.shape
    expected = [longest] * n if token_set.lengths is None else token_set.lengths.tolist()
    try:
        numbers = [torch.as_tensor(row if isinstance(row, Tensor | np.ndarray) else list(row)) for row in rows]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = []
    if [tuple(row.shape) for row in numbers] != [(length,) for length in expected]:
        raise InputError(f"{name} has a number for each token, rows of {expected!s:.60}; got {given!r:.60}")
    return pad_sequence(numbers, batch_first=True)


def _of_array(given: Tensor | np.ndarray | np.generic) -> Tokens:
    """A tensor or an array of whole numbers, one sequence or several, as 64-bit ids."""
    shape, dtype = tuple(given.shape), getattr(given.dtype, "name", str(given.dtype).removeprefix("torch."))
    is_plain = not isinstance(given, np.ma.MaskedArray)
    if isinstance(given, Tensor):
        is_plain = not (given.is_nested or given.is_meta or given.layout != torch.strided)
    if not is_plain or dtype not in WHOLE or len(shape) not in (1, 2) or 0 in shape or shape[-1] < 2:
        kind = type(given).__name__ if is_plain else f"{type(given).__name__} without plain values"
        what = "tokens are whole numbers, `pos` or `sequence pos`, at least 1 x 2"
        raise _misread(f"{what}, not a {kind} of {dtype} of {shape}")
    tensor = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, dtype=np.int64))
    return tensor.reshape(-1, given.shape[-1]).long()


def items_of(given: Any) -> list[Any]:
    """The items of a list, a tuple, or a column of a dataset or a data frame. Raises InputError for anything else."""
    items = _items_in(given)
    if not items and not (isinstance(given, Sized) and len(given) == 0):
        fix = "; give one of its columns" if hasattr(given, "columns") else ""
        raise _misread(f"a {type(given).__name__} is neither a text nor token ids{fix}")
    return items


@refusing
def check_texts(given: Sequence[Any]) -> Iterator[str]:
    """Refuses anything but texts, and the names of files among several texts."""
    if not given or not all(isinstance(text, str) for text in given):
        yield 'texts are strings; give one, or a list of at least one: subject.tokens(["one", "two"])'
    if name := next(filter(names_file, given), ""):
        yield f"{name.strip()} is a file; give the text that it holds, or the file alone to si.measure"


def _items_in(given: Any) -> list[Any]:
    """The items of something that holds several; none of anything else, such as what iterates names."""
    if isinstance(given, Tensor | np.ndarray):
        return list(given) if given.ndim == 1 else [given]
    has_names = hasattr(given, "keys") and not hasattr(given, "ndim")  # an ActivationCache, but no column of pandas
    is_many = (
        isinstance(given, Sized) and isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | Set)
    )
    return list(given) if is_many and not has_names and getattr(given, "ndim", 1) == 1 else []


def _is_many(item: Any) -> bool:
    return isinstance(item, Sized) and not (isinstance(item, Tensor | np.ndarray) and item.ndim == 0)


def ids_of_row(items: Any) -> list[int]:
    """The ids of a sequence as Python's whole numbers. Raises InputError for anything else."""
    if not _is_many(items) or isinstance(items, str) or not all(map(is_whole, items)):
        raise _misread(f"a row of token ids holds whole numbers; got {items!r:.60}")
    return [whole_number(item, "a token id", -LARGEST, LARGEST) for item in items]


def _refuse_texts(texts: Sequence[str]) -> TokenSet:
    raise _misread("input_ids are texts")


def said_of_padding(token_set: TokenSet, pads: Mapping[int, int]) -> TokenSet:
    """The token set. Its source says if sequences begin or end with one id several times.

    pads: the ids of padding, and how often each must be repeated to be known as such. Raises InputError for those.
    """
    runs = _runs(token_set)
    for token, times in runs:
        if times >= pads.get(token, times + 1):
            raise InputError(
                f"a sequence begins or ends with {times} of token {token}, the padding, and no mask marks it; "
                "give the tokenizer's whole answer, with its attention_mask, or lists without padding"
            )
    repeated = [token for token, times in runs if times > 1]
    if not repeated:
        return token_set
    what = f"{len(repeated)} beginnings or ends repeat one id, such as {repeated[0]}; read as tokens, not as padding"
    return replace(token_set, source=f"{token_set.source} ({what})")


def _runs(token_set: TokenSet) -> list[tuple[int, int]]:
    """How often the first token of each sequence is repeated there, and the last; sequences of one token left out."""
    runs: list[tuple[int, int]] = []
    for _, group in token_set.groups():
        group = group[(group != group[:, :1]).any(1)]
        for side in (group, group.flip(1)):
            times = (side == side[:, :1]).long().cumprod(1).sum(1)
            runs += zip(side[:, 0].tolist(), times.tolist(), strict=True)
    return runs
