"""Probes: the tokens that a model is measured on, and how they came about."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..errors import InputError
from .bos import Bos

Tokens = Int[Tensor, "sequence pos"]
T = TypeVar("T")
PAD = -1  # no token: an embedding that is given it fails
Lengths = Int[Tensor, " sequence"]


@dataclass(frozen=True)
class TokenSet:
    """Sequences with their source, its hash, the BOS rule, and how many short texts were passed over.

    Sequences of several lengths stand to the left, with `PAD` behind their ends and their true `lengths`; `lengths` is
    None where all are as long as `tokens` is wide. No model runs on padding: it runs on `groups()` of equal length.
    """

    tokens: Tokens
    source: str
    sha256: str
    bos: str = "none added"
    too_short: int = 0
    lengths: Lengths | None = None

    @staticmethod
    def of(
        tokens: Tokens, source: str = "tokens in memory", attention_mask: Shaped[Tensor, "..."] | None = None
    ) -> "TokenSet":
        """A token set of tokens that are at hand already.

        `attention_mask` (`sequence pos`) is 1 at a token, 0 at padding to either side of a sequence. Raises InputError
        where it has another shape or other numbers, a hole inside a sequence, or a sequence of fewer than two tokens.
        """
        if attention_mask is None:
            return TokenSet(tokens, source, _sha256(tokens))
        return _ragged(*_to_the_left(tokens, attention_mask), source)

    @staticmethod
    def of_rows(rows: Sequence[Sequence[int]], source: str = "tokens in memory") -> "TokenSet":
        """A token set of token ids, each row as long as it is. Raises InputError where a row has fewer than two."""
        if not rows:
            raise InputError("there are no sequences; give at least one")
        sequences = [torch.tensor(row, dtype=torch.long) for row in rows]
        lengths = torch.tensor([len(row) for row in rows])
        return _ragged(pad_sequence(sequences, batch_first=True, padding_value=PAD), lengths, source)

    def groups(self) -> Iterator[tuple[Int[Tensor, " some"], Int[Tensor, "some pos"]]]:
        """The sequences of each length, longest first: their rows in `tokens`, and their tokens without padding."""
        if self.lengths is None:
            yield torch.arange(len(self.tokens), device=self.tokens.device), self.tokens
            return
        for length in self.lengths.unique().flip(0).tolist():
            (rows,) = (self.lengths == length).nonzero(as_tuple=True)
            yield rows, self.tokens[rows, :length]


def _to_the_left(tokens: Tokens, mask: Shaped[Tensor, "..."]) -> tuple[Int[Tensor, "sequence longest"], Lengths]:
    if mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, the tokens {tuple(tokens.shape)}; give a number per token"
        )
    kept = mask.to(tokens.device) == 1
    if not (kept | (mask.to(tokens.device) == 0)).all():
        raise InputError("attention_mask holds other numbers than 0 and 1; give 1 for a token, 0 for padding")
    if not kept.any():
        raise InputError("attention_mask leaves no token; give 1 for a token, 0 for padding")
    lengths, pos = kept.sum(1), torch.arange(tokens.shape[1], device=tokens.device)
    source = (kept.int().argmax(1, keepdim=True) + pos).clamp(max=len(pos) - 1)
    inside = pos < lengths[:, None]
    holes = (inside & ~kept.gather(1, source)).any(1)
    if holes.any():
        raise InputError(
            f"the attention_mask of sequence {int(holes.int().argmax())} has a hole; pad only before or behind tokens"
        )
    return tokens.long().gather(1, source).where(inside, PAD)[:, : lengths.max()], lengths


def _ragged(tokens: Tokens, lengths: Lengths, source: str) -> TokenSet:
    if lengths.min() < 2:
        raise InputError(
            f"sequence {int(lengths.argmin())} has {int(lengths.min())} tokens; leave out those of fewer than 2"
        )
    if (lengths == tokens.shape[1]).all():
        return TokenSet.of(tokens, source)
    return TokenSet(tokens, source, _sha256(tokens, lengths), lengths=lengths)


def _sha256(*parts: Int[Tensor, "..."]) -> str:
    return hashlib.sha256(b"".join(part.long().contiguous().cpu().numpy().tobytes() for part in parts)).hexdigest()


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a transformers tokenizer that token_sets use."""

    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int) -> dict: ...


def from_rows(rows: Sequence[Sequence[int]], length: int, sequences: int, source: str) -> TokenSet:
    """The first `length` ids of the first `sequences` rows. Raises InputError where there are too few such rows."""
    tokens, too_short = _first(rows, lambda row: list(row[:length]), length, sequences)
    return replace(TokenSet.of(tokens, source), bos="as given", too_short=too_short)


def from_texts(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, sequences: int, bos: Bos, source: str
) -> TokenSet:
    """The first `length` tokens of the first `sequences` texts that are long enough, one text per sequence.

    Raises InputError where too few are, and where BOS is asked of a tokenizer without one.
    """
    if bos is Bos.ALWAYS and tokenizer.bos_token_id is None:
        raise InputError("this tokenizer has no BOS token; use --bos never or --bos tokenizer")
    digest = hashlib.sha256()

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(
            text[: 64 * length], add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=length
        )["input_ids"]
        if bos is Bos.ALWAYS:
            found = [tokenizer.bos_token_id or 0, *found][:length]
        if len(found) == length:
            digest.update(hashlib.sha256(text.encode()).digest())
        return found

    tokens, too_short = _first(texts, ids, length, sequences)
    first = tokens[:, 0]
    starts = tokenizer.bos_token_id is not None and bool((first == tokenizer.bos_token_id).all())
    rule = f"{bos} (id {tokenizer.bos_token_id} first)" if starts else f"{bos} (none)"
    return TokenSet(tokens, source, digest.hexdigest(), rule, too_short)


def _first(items: Iterable[T], ids: Callable[[T], list[int]], length: int, sequences: int) -> tuple[Tokens, int]:
    if length < 2 or sequences < 1:
        raise InputError(f"ask for at least 2 tokens and 1 sequence; got {length} and {sequences}")
    rows, too_short, longest = [], 0, 0
    for item in items:
        row = ids(item)
        longest = max(longest, len(row))
        if len(row) < length:
            too_short += 1
        else:
            rows.append(row)
        if len(rows) == sequences:
            return torch.tensor(rows), too_short
    fix = f"use --sequences {len(rows)} or a smaller --length" if rows else f"use --length {longest} or less"
    fix = fix if longest > 1 else "give other texts: none has two tokens"
    raise InputError(
        f"{sequences} sequences of {length} tokens were asked for, but of {too_short + len(rows)} texts "
        f"{too_short} are shorter than that and {len(rows)} are left; {fix}"
    )


def random_tokens(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """Tokens drawn uniformly from the vocabulary (Gu et al. 2025, Table 1, "random"); `first` stands in place of 0's.

    The other tokens are the same with and without `first`. Raises InputError where it is no token.
    """
    drawn = torch.randint(vocab, (sequences, length), generator=torch.Generator().manual_seed(seed))
    return _begun(drawn, f"random tokens, seed {seed}", vocab, first)


def repeated_token(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """One token drawn per sequence and repeated all along (Gu et al. 2025, Table 1, "repeat"), but for `first`, if any.

    Raises InputError where `first` is no token.
    """
    drawn = torch.randint(vocab, (sequences, 1), generator=torch.Generator().manual_seed(seed))
    return _begun(drawn.expand(-1, length), f"repeated token, seed {seed}", vocab, first)


def _begun(tokens: Tokens, source: str, vocab: int, first: int | None) -> TokenSet:
    if first is None:
        return TokenSet.of(tokens, source)
    if not 0 <= first < vocab:
        raise InputError(f"the first token {first} is outside the vocabulary of {vocab}; give an id below {vocab}")
    tokens = tokens.clone()
    tokens[:, 0] = first
    return replace(TokenSet.of(tokens, source), bos=f"id {first} first")
