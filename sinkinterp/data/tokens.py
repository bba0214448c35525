"""Token sets, which a model is measured on, and how they are read from what people give: texts, ids, arrays."""

import hashlib
import operator
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

from ..checks import LARGEST, check_memory, instance_of, is_whole
from ..errors import InputError
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
        if self.lengths is not None and not _are_lengths(self.lengths, tokens):
            raise InputError(f"lengths are a whole number per sequence, 2 to {tokens.shape[1]}; use TokenSet.of_rows")

    def __repr__(self) -> str:
        n, longest = self.tokens.shape
        length = longest if self.lengths is None else f"{self.shortest} to {longest}"
        return f"<TokenSet of {self.source}: n={n}, T={length}, BOS {self.bos}>"

    @property
    def shortest(self) -> int:
        """The length of the shortest sequence."""
        return self.tokens.shape[1] if self.lengths is None else int(self.lengths.min())

    @staticmethod
    def of(
        tokens: Tokens, source: str = "tokens in memory", attention_mask: Shaped[Tensor, "..."] | None = None
    ) -> "TokenSet":
        """The token set of a tensor of token ids.

        `attention_mask` (`sequence pos`) is 1 at tokens and 0 at the padding before or after a sequence. Raises
        InputError where the mask has another shape, holds other numbers, has a hole inside a sequence, or leaves a
        sequence fewer than two tokens.
        """
        check_memory(3 * 8 * tokens.numel(), f"{tokens.numel():,} tokens", "use fewer or shorter sequences")
        if attention_mask is None:
            return TokenSet(tokens, source, _sha256(tokens))
        return _of_lengths(*_without_padding(tokens, attention_mask), source)

    @staticmethod
    def of_rows(rows: Sequence[Sequence[int]], source: str = "tokens in memory") -> "TokenSet":
        """The token set of lists of token ids. Raises InputError where a list has fewer than two ids."""
        instance_of(rows, Sized, f"rows are lists of token ids; {WORKS}")
        if not len(rows):
            raise InputError("the list of sequences is empty; give at least one")
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


def _are_lengths(lengths: Any, tokens: Tokens) -> bool:
    """Whether these can be how many tokens each sequence has before its padding."""
    if not isinstance(lengths, Tensor) or lengths.dtype not in (torch.int32, torch.int64):
        return False
    if lengths.shape != tokens.shape[:1] or lengths.min() < 2 or lengths.max() != tokens.shape[1]:
        return False
    is_padding = torch.arange(tokens.shape[1], device=tokens.device) >= lengths.to(tokens.device)[:, None]
    return is_padding.equal(tokens == PAD)


def _without_padding(tokens: Tokens, mask: Shaped[Tensor, "..."]) -> tuple[Int[Tensor, "sequence longest"], Lengths]:
    """The tokens that the mask keeps, moved to position 0, and how many each sequence has."""
    instance_of(mask, Tensor, "attention_mask is a tensor of 0 and 1 here")
    if mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, the tokens {tuple(tokens.shape)}; give a number per token"
        )
    mask = mask.to(tokens.device)
    kept = mask == 1
    if not (kept | (mask == 0)).all():
        raise InputError("attention_mask holds other numbers than 0 and 1; give 1 for a token, 0 for padding")
    lengths, pos = kept.sum(1), torch.arange(tokens.shape[1], device=tokens.device)
    moved_from = (kept.int().argmax(1, keepdim=True) + pos).clamp(max=len(pos) - 1)
    inside = pos < lengths[:, None]
    has_hole = (inside & ~kept.gather(1, moved_from)).any(1)
    if has_hole.any():
        raise InputError(
            f"the attention_mask of sequence {int(has_hole.int().argmax())} has a hole; pad only before or after tokens"
        )
    return tokens.long().gather(1, moved_from).where(inside, PAD)[:, : lengths.max()], lengths


def _of_lengths(tokens: Tokens, lengths: Lengths, source: str) -> TokenSet:
    if lengths.min() < 2:
        raise InputError(
            f"sequence {int(lengths.argmin())} has {int(lengths.min())} tokens; leave out those of fewer than 2"
        )
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
    return _of_items(items_of(tokens), encode)


def of_source(source: str | Path, encode: Encode, column: str = "text") -> TokenSet:
    """The token set of the first texts of a file, a folder or a dataset."""
    name = Path(source).name if is_path(source) else str(source)
    return _of_first(texts_of(source, column), name, encode)


def _of_dataset(dataset: Iterable[Any], encode: Encode, column: str) -> TokenSet:
    """The token set of the first rows of a Dataset of `datasets`: of their texts, or of their ids."""
    rows = list(islice(dataset, FIRST_TEXTS + 1))
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"a {type(dataset).__name__} has no rows of texts or ids; give one of its parts; {WORKS}")
    if rows and column not in rows[0] and "input_ids" in rows[0]:
        return _of_mapping({name: [row[name] for row in rows[:FIRST_TEXTS]] for name in rows[0]})
    return _of_first((text_in(row, column, "the dataset") for row in rows), "a dataset", encode)


def _of_first(texts: Iterable[str], name: str, encode: Encode) -> TokenSet:
    """The token set of the first texts of a source of this name. Raises InputError where there are none."""
    first = list(islice(texts, FIRST_TEXTS + 1))
    if not first:
        raise InputError(f"{name} holds no text; give a source with texts")
    name += f", its first {FIRST_TEXTS} texts" if len(first) > FIRST_TEXTS else ""
    return replace(encode(first[:FIRST_TEXTS]), source=name)


def is_chat(given: Any) -> bool:
    """Returns true for a list of messages. Each has a role and a content, or `from` and `value`."""
    given = messages_in(given)
    is_list = isinstance(given, list | tuple) and len(given) > 0
    return is_list and all(isinstance(item, Mapping) and {"role", "content"} <= item.keys() for item in given)


_UNREAD = {
    "position_ids": "positions, such as edits=si.SwapPositions(0, 4)",
    "inputs_embeds": "embeddings, such as edits=ChangeTokenEmbedding(...)",
}


def _of_mapping(given: Mapping[str, Any]) -> TokenSet:
    """The token set of a tokenizer's answer."""
    if "input_ids" not in given:
        items = ", ".join(map(repr, islice(given, 3))) or "nothing"
        raise InputError(
            f"a {type(given).__name__} without input_ids holds no tokens; give an item of it ({items}); {WORKS}"
        )
    for name, fix in _UNREAD.items():
        if given.get(name) is not None:
            raise InputError(f"{name} are not read; edits change {fix}")
    token_set = token_set_of(given["input_ids"], _refuse_texts)
    mask, types = given.get("attention_mask"), given.get("token_type_ids")
    if types is not None and _mask_of(types, token_set, "token_type_ids").any():
        raise InputError("token_type_ids other than 0 are not read; leave them out")
    return token_set if mask is None else TokenSet.of(token_set.tokens, attention_mask=_mask_of(mask, token_set))


def _mask_of(given: Any, token_set: TokenSet, name: str = "attention_mask") -> Shaped[Tensor, "sequence pos"]:
    """An attention mask in lists, arrays or tensors as a tensor, 0 after the end of a list that is shorter.

    Raises InputError unless it has a number for every token.
    """
    is_array = isinstance(given, Tensor | np.ndarray) and given.ndim > 1
    rows = list(given) if is_array else items_of(given)
    rows = rows if any(map(_is_many, rows)) else [rows]
    try:
        numbers = [torch.as_tensor(row if isinstance(row, Tensor | np.ndarray) else list(row)) for row in rows]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError(f"{name} holds other things than 0 and 1; got {given!r:.60}") from None
    sizes = [tuple(row.shape) for row in numbers]
    n, longest = token_set.tokens.shape
    expected = [longest] * n if token_set.lengths is None else token_set.lengths.tolist()
    if sizes != [(length,) for length in expected]:
        raise InputError(f"{name} has rows of {sizes!s:.60}, the tokens of {expected!s:.60}; give a number per token")
    return pad_sequence(numbers, batch_first=True)


def _of_items(items: Sequence[Any], encode: Encode) -> TokenSet:
    """The token set of a list: of texts, of ids, or of lists of ids."""
    if not items:
        raise InputError(f"an empty {type(items).__name__} holds no tokens; {WORKS}")
    if all(isinstance(item, str) for item in items) or is_chat(items) or all(map(is_chat, items)):
        return encode(items)
    if all(isinstance(item, Tensor | np.ndarray) and item.ndim == 2 for item in items):  # batches, as of a DataLoader
        items = [row for item in items for row in item]
    if not any(isinstance(item, str) or _is_many(item) for item in items):
        return TokenSet.of_rows([items])
    return TokenSet.of_rows([items_of(item) for item in items])


def _of_array(given: Tensor | np.ndarray | np.generic) -> Tokens:
    """A tensor or an array of whole numbers, one sequence or several, as 64-bit ids."""
    for fault in _faults(given):
        raise InputError(fault)
    tensor = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given, dtype=np.int64))
    return tensor.reshape(-1, given.shape[-1]).long()


def _faults(given: Tensor | np.ndarray | np.generic) -> Iterator[str]:
    """Why a tensor or an array holds no token ids, and what to give."""
    if isinstance(given, Tensor) and given.is_nested:
        yield "a nested tensor is not read; give a list of tensors of token ids"
    if isinstance(given, np.ma.MaskedArray):
        yield "the mask of an array is not read; give input_ids and attention_mask in a dictionary"
    shape, dtype = tuple(given.shape), getattr(given.dtype, "name", str(given.dtype).removeprefix("torch."))
    if dtype not in WHOLE or len(shape) not in (1, 2) or 0 in shape or shape[-1] < 2:
        yield f"tokens are whole numbers, `pos` or `sequence pos`, at least 1 x 2, not {dtype} of {shape}; {WORKS}"
    if isinstance(given, Tensor) and (given.is_meta or given.layout != torch.strided):
        yield f"tokens on {given.device} as {given.layout} hold no plain values; {WORKS}"
    if dtype == "uint64" and int(given.max()) > LARGEST:
        yield f"token id {int(given.max())} is beyond 64 bits; give ids of the vocabulary"


def items_of(given: Any) -> list[Any]:
    """The items of a list, a tuple, or a column of a dataset or a data frame."""
    if isinstance(given, Tensor | np.ndarray):
        return list(given) if given.ndim == 1 else [given]
    has_names = hasattr(given, "keys") and not hasattr(given, "ndim")  # an ActivationCache, but no column of pandas
    if has_names or getattr(given, "ndim", 1) > 1:  # whose items are names
        fix = "give one of its columns; " if hasattr(given, "columns") else ""
        raise InputError(f"a {type(given).__name__} is neither a text nor token ids; {fix}{WORKS}")
    if not isinstance(given, Sized) or not isinstance(given, Iterable) or isinstance(given, bytes | bytearray | Set):
        raise InputError(f"a {type(given).__name__} is neither a text nor token ids; {WORKS}")
    return list(given)


def _is_many(item: Any) -> bool:
    return isinstance(item, Sized) and not (isinstance(item, Tensor | np.ndarray) and item.ndim == 0)


def ids_of_row(items: Any) -> list[int]:
    """The ids of a sequence as Python's whole numbers. Raises InputError for anything else."""
    if not _is_many(items) or isinstance(items, str):
        raise InputError(f"a row is a list of token ids, not {items!r:.60}; {WORKS}")
    if others := [item for item in items if not is_whole(item)]:
        raise InputError(f"token ids are whole numbers, not a {type(others[0]).__name__}; {WORKS}")
    numbers = [operator.index(item) for item in items]
    if beyond := [number for number in numbers if abs(number) > LARGEST]:
        raise InputError(f"token id {beyond[0]} is beyond 64 bits; give ids of the vocabulary")
    return numbers


def _refuse_texts(texts: Sequence[str]) -> TokenSet:
    raise InputError(f"input_ids are texts; {WORKS}")


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
