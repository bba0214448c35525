"""Token sets, which a model is measured on, and how they are made: of texts, chats, ids and arrays, or at random."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..checks import LARGEST, InputError, check_count, check_memory, instance_of, refusal, unicode_text, whole_number
from .choices import Bos
from .texts import Texts, is_blank, is_chat, source_of
from .tokenizers import appended_tokens, check_has, check_one_bos

Tokens = Int[Tensor, "sequence pos"]
Chat = Sequence[Mapping[str, Any]]  # messages, each with a role and a content
Lengths = Int[Tensor, " sequence"]
PAD = -1  # is not the id of a token, so an embedding that receives it fails


@dataclass(frozen=True, eq=False, repr=False)
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
        return _of_sequences(_without_padding(tokens, _mask_of(attention_mask, token_set).to(tokens.device)), source)

    @staticmethod
    def of_rows(rows: Sequence[Sequence[int]], source: str = "tokens in memory") -> "TokenSet":
        """The token set of lists of token ids. Raises InputError where a list has fewer than two ids."""
        if not instance_of(rows, Sized, f"rows are lists of token ids; {WORKS}"):
            raise _misread(f"an empty {type(rows).__name__} holds no tokens")
        return _of_sequences([torch.tensor(ids_of_row(row), dtype=torch.long) for row in rows], source)

    def of_one_length(self) -> Tokens:
        """The tokens. Raises InputError if sequences differ in length."""
        if self.lengths is not None:
            fix = f"cut the texts: length={self.shortest} in the call, or model.tokens(texts, length={self.shortest})"
            raise InputError(f"this needs sequences of one length; {fix}")
        return self.tokens

    def groups(self) -> Iterator[tuple[Int[Tensor, " group"], Int[Tensor, "group pos"]]]:
        """The sequences of each length, longest first: their rows in `tokens`, and their tokens without padding."""
        if self.lengths is None:
            yield torch.arange(len(self.tokens), device=self.tokens.device), self.tokens
            return
        for length in self.lengths.unique().flip(0).tolist():
            (rows,) = (self.lengths == length).nonzero(as_tuple=True)
            yield rows, self.tokens[rows, :length]

    def checked_for(self, pads: Mapping[int, int]) -> "TokenSet":
        """The same token set. Raises InputError if a sequence begins or ends with padding.

        pads: the ids of padding, and how often each must be repeated to be known as such.
        """
        for _, group in self.groups():
            for row in group.tolist():
                for side in (row, row[::-1]):
                    times = next((i for i, token in enumerate(side) if token != side[0]), 0)  # 0 of one token alone
                    if pads.get(side[0], times + 1) <= times:
                        fix = "give the tokenizer's whole answer, with its attention_mask, or lists without padding"
                        what = f"a sequence begins or ends with {times} of token {side[0]}, the padding"
                        raise InputError(f"{what}, and no mask marks it; {fix}")
        return self


def _without_padding(tokens: Tokens, mask: Shaped[Tensor, "..."]) -> list[Tensor]:
    """The tokens of each sequence that the mask keeps, which stand side by side."""
    kept = mask == 1
    starts = kept.int().diff(prepend=torch.zeros_like(kept[:, :1], dtype=torch.int)) == 1
    is_wrong = (starts.sum(1) > 1) | (kept != (mask != 0)).any(1)
    if is_wrong.any():
        row = int(is_wrong.int().argmax())
        raise InputError(f"attention_mask of sequence {row} is not 1 at tokens and 0 at padding before or after them")
    return [row[keep] for row, keep in zip(tokens.long(), kept, strict=True)]


def _of_sequences(sequences: list[Tensor], source: str) -> TokenSet:
    lengths = torch.tensor([len(ids) for ids in sequences])
    if lengths.min() < 2:
        row, length = int(lengths.argmin()), int(lengths.min())
        raise InputError(f"sequence {row} has {length} tokens, and attention needs 2")
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD)
    if (lengths == tokens.shape[1]).all():
        return TokenSet.of(tokens, source)
    return TokenSet(tokens, source, _sha256(tokens, lengths), lengths=lengths)


def _sha256(*tensors: Int[Tensor, "..."]) -> str:
    return hashlib.sha256(b"".join(part.long().contiguous().cpu().numpy().tobytes() for part in tensors)).hexdigest()


TokensLike = TokenSet | Tensor | np.ndarray | str | Path | Texts | Sequence[Any] | Mapping[str, Any]
Encode = Callable[[Sequence[Any]], TokenSet]  # of texts or chats
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
    mapping is what a tokenizer returned: "input_ids" and, for padded ids, "attention_mask". A `Path` and
    `si.texts(...)` stand for their first texts or chats, in the `column`. Raises InputError for everything else.
    """
    if isinstance(tokens, TokenSet):
        return tokens
    if isinstance(tokens, str):
        return encode([tokens])
    if isinstance(tokens, Path | Texts):
        return _of_first(source_of(tokens, column), encode)
    if isinstance(tokens, Mapping):
        return _of_mapping(tokens)
    if isinstance(tokens, Tensor | np.ndarray | np.generic):
        return TokenSet.of(_of_array(tokens))
    items = items_of(tokens)
    if is_chat(items):
        return encode([items])
    if items and all(isinstance(item, str) or is_chat(item) for item in items):
        return encode(items)
    is_one = not any(isinstance(item, str) or _is_many(item) for item in items)
    return TokenSet.of_rows([items] if items and is_one else [items_of(item) for item in items])


def _of_first(source: Texts, encode: Encode) -> TokenSet:
    """The token set of the first texts of a source. Raises InputError where there are none."""
    first = list(islice(source, FIRST_TEXTS + 1))
    check_count(first, f"texts in {source.name}")
    more = f", its first {FIRST_TEXTS} texts" if len(first) > FIRST_TEXTS else ""
    return replace(encode(first[:FIRST_TEXTS]), source=source.name + more)


def _of_mapping(given: Mapping[str, Any]) -> TokenSet:
    """The token set of a tokenizer's answer."""
    if "input_ids" not in given:
        items = ", ".join(map(repr, islice(given, 3))) or "nothing"
        raise _misread(f"a {type(given).__name__} without input_ids holds no tokens; give an item ({items})")
    token_set = token_set_of(given["input_ids"], _refuse_texts)
    mask = None if given.get("attention_mask") is None else _mask_of(given["attention_mask"], token_set)
    real = (token_set.tokens != PAD if mask is None else mask).long()
    plain = {"position_ids": real.cumsum(1) - 1, "token_type_ids": 0 * real}  # what a model takes without them
    others = {name: given[name] for name in given.keys() - {"input_ids", "attention_mask"} if given[name] is not None}
    for name, value in others.items():
        if name not in plain or ((_mask_of(value, token_set, name) - plain[name]) * real).any():
            fix = "give input_ids and attention_mask alone; edits change positions and embeddings"
            raise InputError(f"{name!r} is not read, and may change what the model computes; {fix}")
    return token_set if mask is None else TokenSet.of(token_set.tokens, attention_mask=mask)


def _mask_of(given: Any, token_set: TokenSet, name: str = "attention_mask") -> Shaped[Tensor, "sequence pos"]:
    """A mask in lists, arrays or tensors as a tensor, 0 after the end of a list that is shorter.

    Raises InputError unless there is a number for every token.
    """
    rows = list(given) if getattr(given, "ndim", 0) > 1 else _items_in(given)
    rows = rows if any(map(_is_many, rows)) else [rows]
    rows = rows * len(token_set.tokens) if len(rows) == 1 and name == "position_ids" else rows
    n, longest = token_set.tokens.shape
    expected = [longest] * n if token_set.lengths is None else token_set.lengths.tolist()
    try:
        numbers = [torch.as_tensor(row if isinstance(row, Tensor | np.ndarray) else list(row)) for row in rows]
    except (TypeError, ValueError, RuntimeError, OverflowError):
        numbers = []
    if [tuple(row.shape) for row in numbers] != [(length,) for length in expected]:
        raise InputError(f"{name!r} has a number for each token, rows of {expected!s:.60}; got {given!r:.60}")
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


def _items_in(given: Any) -> list[Any]:
    """The items of something that holds several; none of anything else, such as what iterates names."""
    if isinstance(given, Tensor | np.ndarray):
        return list(given) if given.ndim == 1 else [given]
    has_names = hasattr(given, "keys") and not hasattr(given, "ndim")  # an ActivationCache, but no column of pandas
    is_many = isinstance(given, Sized) and isinstance(given, Iterable)
    is_many = is_many and not isinstance(given, bytes | bytearray | Set)
    return list(given) if is_many and not has_names and getattr(given, "ndim", 1) == 1 else []


def _is_many(item: Any) -> bool:
    return isinstance(item, Sized) and not (isinstance(item, Tensor | np.ndarray) and item.ndim == 0)


def ids_of_row(items: Any) -> list[int]:
    """The ids of a sequence as Python's whole numbers. Raises InputError for anything else."""
    try:
        return [whole_number(item, "a token id", -LARGEST, LARGEST) for item in items]
    except (TypeError, InputError) as error:
        raise _misread(f"a row of token ids holds whole numbers of 64 bits; got {items!r:.60}") from error


def _refuse_texts(texts: Sequence[str]) -> TokenSet:
    raise _misread("input_ids are texts")


CHARACTERS = 64  # of a text are tokenised for every token that is asked for
UNLIMITED = 2**30  # tokens of a text


class TooFewTexts(InputError):
    """Fewer texts are long enough than were asked for."""


@dataclass(frozen=True)
class TextToTokens:
    """Makes token sets of texts and chats with the tokenizer of one model, by one rule about BOS.

    Raises InputError for a model without a tokenizer, and for `Bos.ALWAYS` if the tokenizer has no BOS.
    """

    tokenizer: Any
    bos: Bos = Bos.TOKENIZER
    model: str = "this model"

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            fix = "give token ids, such as [[5, 7, 9]], or no text: a model of ours then reads its task; any other is"
            fix += " loaded with its tokenizer, si.load(model, tokenizer=...)"
            raise InputError(f"{self.model} has no tokenizer, so it reads no text; {fix}")
        if self.bos is Bos.ALWAYS:
            check_has("BOS", self.tokenizer, "this tokenizer", 'use bos="never" or bos="tokenizer"')

    def of_length(self, texts: Iterable[str], length: int, sequences: int | None, source: str) -> TokenSet:
        """The first `length` tokens of the first `sequences` texts that are long enough, one text per sequence.

        `sequences` is None for all texts that are long enough. The hash is that of the texts that are used. Raises
        TooFewTexts if fewer texts are long enough.
        """
        digest = hashlib.sha256()

        def rows() -> Iterator[list[int]]:
            for text in texts:
                ids = self._first_ids(text, length, CHARACTERS * length)
                if len(ids) == length:
                    digest.update(hashlib.sha256(_content(text).encode()).digest())
                yield ids

        tokens, too_short = _long_enough(rows(), length, sequences)
        return TokenSet(tokens, source, digest.hexdigest(), self._beginning(tokens), too_short)

    def at_most(self, texts: Sequence[str], most: int, source: str) -> TokenSet:
        """The first `most` tokens of every text, or all of them if it is shorter.

        Blank texts and those of fewer than two tokens are left out and counted. Raises InputError if no other is left.
        """
        rows = [self._first_ids(text, most) for text in texts]
        kept = [row for row in rows if len(row) > 1]
        if not kept:
            name = "the text" if len(texts) == 1 else f"every one of {len(texts)} texts"
            raise InputError(f"{name} is blank or short, and attention needs at least 2 tokens")
        token_set = TokenSet.of_rows(kept, source)
        return replace(token_set, bos=self._beginning(token_set.tokens), too_short=len(rows) - len(kept))

    def whole(self, texts: Sequence[str], most: int | None, source: str) -> TokenSet:
        """All tokens of every text, as `at_most` returns them.

        Raises InputError for a text of more than `most` tokens, where there is a limit.
        """
        most = most or UNLIMITED
        token_set = self.at_most(texts, most + 1, source)
        if token_set.tokens.shape[1] > most:
            too_long = next(i for i, text in enumerate(texts) if len(self._first_ids(text, most + 1)) > most)
            fix = f"cut it, subject.tokens(texts, length={most})"
            raise InputError(f"text {too_long} has more than the {most} tokens that the model takes; {fix}")
        return token_set

    def one(self, text: str, most: int | None = None, source: str = "text") -> TokenSet:
        """The tokens of one text, the first `most` of them. Its hash is that of the text."""
        digest = hashlib.sha256(hashlib.sha256(unicode_text(text, source).encode()).digest())
        return replace(self.at_most([text], most or UNLIMITED, source), sha256=digest.hexdigest())

    def first_in(self, source: Texts, most: int | None) -> TokenSet:
        """The first `most` tokens of the first text of a source. Raises InputError where it has none."""
        return self.one(next(iter(source), ""), most, source.name)

    @cached_property
    def _appended(self) -> int:
        return appended_tokens(self.tokenizer) if self.bos is Bos.TOKENIZER else 0

    def _first_ids(self, given: str | Chat, length: int, characters: int | None = None) -> list[int]:
        """The first `length` ids of a text or a chat, BOS included, or fewer if it is shorter.

        The tokens that the tokenizer appends are left out. `characters` of the text are read; all of them for None.
        """
        text = given if isinstance(given, str) else self._text_of(given)
        if is_blank(text):
            return []
        adds = self.bos is Bos.TOKENIZER and text is given
        beginning, appended = unicode_text(text, "the text")[:characters], self._appended if adds else 0
        answer = self.tokenizer(beginning, add_special_tokens=adds, truncation=True, max_length=length + appended)
        ids: list[int] = answer["input_ids"]
        ids = ids[: len(ids) - appended]
        if self.bos is Bos.ALWAYS:
            ids = [self.tokenizer.bos_token_id, *ids][:length]
        if adds or self.bos is Bos.ALWAYS:
            check_one_bos(ids, self.tokenizer, text)
        return ids

    def _text_of(self, chat: Chat) -> str:
        """A chat in the tokenizer's template, less its BOS by `Bos.NEVER`.

        Raises InputError for a tokenizer without one, and for a chat that it refuses.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError("this tokenizer has no chat template; give the text of the chat")
        with refusal("the tokenizer's chat template refuses a chat", "give the text of the chat"):
            text: str = self.tokenizer.apply_chat_template(chat, tokenize=False)
        return text.removeprefix(self.tokenizer.bos_token or "") if self.bos is Bos.NEVER else text

    def _beginning(self, tokens: Tokens) -> str:
        """How sequences begin: the rule, and the BOS that all of them begin with."""
        first = self.tokenizer.bos_token_id
        begins = first is not None and bool((tokens[:, 0] == first).all())
        return f"{self.bos} (id {first} first)" if begins else f"{self.bos} (none)"


def _content(given: str | Chat) -> str:
    """What the hash of a text or a chat is made of."""
    return given if isinstance(given, str) else json.dumps(given)


def from_rows(rows: Sequence[Sequence[int]], length: int, sequences: int, source: str) -> TokenSet:
    """The first `length` ids of the first `sequences` rows that are long enough.

    Raises InputError where fewer rows are.
    """
    tokens, too_short = _long_enough((list(row[:length]) for row in rows), length, sequences)
    return replace(TokenSet.of(tokens, source), bos="as given", too_short=too_short)


def ids_in(text: str, vocab: int, source: str) -> TokenSet:
    """One sequence of token ids from a text such as "3 17 5", for a model without a tokenizer.

    Raises InputError unless there are at least 2 ids of the vocabulary.
    """
    words = text.replace(",", " ").split()
    ids = [int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else vocab for word in words]
    if len(ids) < 2 or max(ids) >= vocab:
        raise InputError(f"this model has no tokenizer; give at least 2 token ids from 0 to {vocab - 1}, as 3 17 5")
    return TokenSet.of(torch.tensor([ids]), source)


def random_tokens(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """Tokens drawn uniformly from the vocabulary (Gu et al. 2025, Table 1, "random").

    `first`, if given, replaces the token at position 0; the others do not depend on it. Raises InputError where it is
    outside the vocabulary.
    """
    return _drawn("random tokens", length, vocab, length, sequences, seed, first)


def repeated_token(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """One token per sequence, drawn uniformly, that fills the sequence (Gu et al. 2025, Table 1, "repeat").

    `first`, if given, replaces the token at position 0. Raises InputError where it is outside the vocabulary.
    """
    return _drawn("repeated token", 1, vocab, length, sequences, seed, first)


def sequences_that_fit(sequences: int, length: int, fix: str) -> int:
    """The number of sequences. Raises InputError unless it is one, and its tokens fit into the machine's memory."""
    sequences = whole_number(sequences, "sequences", 1)
    check_memory(3 * 8 * sequences * length, f"{sequences:,} sequences of {length:,} tokens", fix)
    return sequences


def _drawn(name: str, columns: int, vocab: int, length: int, sequences: int, seed: int, first: int | None) -> TokenSet:
    """Sequences of `columns` random tokens, repeated up to the length. Raises InputError for sizes that do not fit."""
    vocab, length = whole_number(vocab, "vocab", 1, LARGEST), whole_number(length, "length", 2)
    sequences = sequences_that_fit(sequences, length, "use fewer or shorter sequences")
    generator = torch.Generator().manual_seed(whole_number(seed, "seed", -LARGEST, LARGEST))
    tokens = torch.randint(vocab, (sequences, min(columns, length)), generator=generator).expand(-1, length).clone()
    if first is not None:
        tokens[:, 0] = whole_number(first, f"the first token, an id of the vocabulary of {vocab},", 0, vocab - 1)
    bos = "none added" if first is None else f"id {first} first"
    return replace(TokenSet.of(tokens, f"{name}, seed {seed}"), bos=bos)


def _long_enough(rows: Iterable[list[int]], length: int, sequences: int | None) -> tuple[Tokens, int]:
    """The first `sequences` rows of `length` ids (or all), and how many shorter ones came before the last of them."""
    kept, too_short, longest = [], 0, 0
    for row in rows:
        longest = max(longest, len(row))
        if len(row) < length:
            too_short += 1
        else:
            kept.append(row)
        if len(kept) == sequences:
            break
    if kept and sequences in (None, len(kept)):
        return torch.tensor(kept), too_short
    wanted = "sequences" if sequences is None else f"{sequences} sequences"
    what = f"{wanted} of {length} tokens were asked for, and of {too_short + len(kept)} texts {len(kept)} are that long"
    raise TooFewTexts(f"{what}; use fewer or shorter sequences: the longest text has {longest} tokens")
