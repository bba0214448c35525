"""Probes: the tokens that a model is measured on, and how they came about."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from ..errors import InputError
from .bos import Bos

Tokens = Int[Tensor, "sequence pos"]
T = TypeVar("T")


@dataclass(frozen=True)
class Probe:
    """Equally long sequences with their source, its hash, the BOS rule, and how many short texts were passed over."""

    tokens: Tokens
    source: str
    sha256: str
    bos: str = "none added"
    too_short: int = 0

    @staticmethod
    def of(tokens: Tokens, source: str = "tokens in memory") -> "Probe":
        """A probe of tokens that are at hand already."""
        digest = hashlib.sha256(tokens.long().contiguous().cpu().numpy().tobytes()).hexdigest()
        return Probe(tokens, source, digest)


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a transformers tokenizer that probes use."""

    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int) -> dict: ...


def from_rows(rows: Sequence[Sequence[int]], length: int, sequences: int, source: str) -> Probe:
    """The first `length` ids of the first `sequences` rows. Raises InputError where there are too few such rows."""
    tokens, too_short = _first(rows, lambda row: list(row[:length]), length, sequences)
    probe = Probe.of(tokens, source)
    return Probe(probe.tokens, probe.source, probe.sha256, "as given", too_short)


def from_texts(texts: Iterable[str], tokenizer: Tokenizer, length: int, sequences: int, bos: Bos, source: str) -> Probe:
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
    return Probe(tokens, source, digest.hexdigest(), rule, too_short)


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


def random_tokens(vocab: int, length: int, sequences: int, seed: int = 0) -> Probe:
    """Tokens drawn uniformly from the vocabulary (Gu et al. 2025, Table 1, "random")."""
    rng = torch.Generator().manual_seed(seed)
    return Probe.of(torch.randint(vocab, (sequences, length), generator=rng), "random tokens")


def repeated_token(vocab: int, length: int, sequences: int, seed: int = 0) -> Probe:
    """One token drawn per sequence and repeated all along (Gu et al. 2025, Table 1, "repeat")."""
    rng = torch.Generator().manual_seed(seed)
    return Probe.of(torch.randint(vocab, (sequences, 1), generator=rng).expand(-1, length), "repeated token")
