"""Where token sets come from: texts, rows of token ids, or random numbers."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from ..errors import InputError
from .bos import Bos
from .tokens import Tokens, TokenSet

CHARACTERS = 64  # of a text per token that is asked for: more is not tokenised


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a transformers tokenizer that `from_texts` uses."""

    bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int) -> dict: ...


def from_rows(rows: Sequence[Sequence[int]], length: int, sequences: int, source: str) -> TokenSet:
    """The first `length` ids of the first `sequences` rows that are long enough.

    Raises InputError where fewer rows are.
    """
    tokens, too_short = _long_enough((list(row[:length]) for row in rows), length, sequences)
    return replace(TokenSet.of(tokens, source), bos="as given", too_short=too_short)


def from_texts(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, sequences: int, bos: Bos, source: str
) -> TokenSet:
    """The first `length` tokens of the first `sequences` texts that are long enough, one text per sequence.

    The hash is that of the texts that are used. Raises InputError where fewer texts are long enough, and where BOS is
    always wanted but the tokenizer has none.
    """
    if bos is Bos.ALWAYS and tokenizer.bos_token_id is None:
        raise InputError("this tokenizer has no BOS token; use --bos never or --bos tokenizer")
    digest = hashlib.sha256()
    appended = appended_tokens(tokenizer) if bos is Bos.TOKENIZER else 0

    def rows() -> Iterator[list[int]]:
        for text in texts:
            ids = _first_ids(text, tokenizer, length, bos, appended)
            if len(ids) == length:
                digest.update(hashlib.sha256(text.encode()).digest())
            yield ids

    tokens, too_short = _long_enough(rows(), length, sequences)
    begins = tokenizer.bos_token_id is not None and bool((tokens[:, 0] == tokenizer.bos_token_id).all())
    rule = f"{bos} (id {tokenizer.bos_token_id} first)" if begins else f"{bos} (none)"
    return TokenSet(tokens, source, digest.hexdigest(), rule, too_short)


def random_tokens(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """Tokens drawn uniformly from the vocabulary (Gu et al. 2025, Table 1, "random").

    `first`, if given, replaces the token at position 0; the others do not depend on it. Raises InputError where it is
    no token of the vocabulary.
    """
    tokens = torch.randint(vocab, (sequences, length), generator=torch.Generator().manual_seed(seed))
    return _with_first(tokens, f"random tokens, seed {seed}", vocab, first)


def repeated_token(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """One token per sequence, drawn uniformly, that fills the sequence (Gu et al. 2025, Table 1, "repeat").

    `first`, if given, replaces the token at position 0. Raises InputError where it is no token of the vocabulary.
    """
    tokens = torch.randint(vocab, (sequences, 1), generator=torch.Generator().manual_seed(seed))
    return _with_first(tokens.expand(-1, length), f"repeated token, seed {seed}", vocab, first)


def appended_tokens(tokenizer: Tokenizer) -> int:
    """How many tokens the tokenizer puts behind every text, such as T5's end token."""
    with_special, alone = (
        tokenizer("a", add_special_tokens=special, truncation=True, max_length=64)["input_ids"]
        for special in (True, False)
    )
    starts = [i for i in range(len(with_special)) if with_special[i : i + len(alone)] == alone]
    return len(with_special) - len(alone) - starts[0] if starts else 0


def _first_ids(text: str, tokenizer: Tokenizer, length: int, bos: Bos, appended: int) -> list[int]:
    """The first `length` ids of a text, BOS included; fewer where the text is shorter.

    The last `appended` tokens of what the tokenizer returns belong to no text, and are left out.
    """
    most = length + appended
    ids: list[int] = tokenizer(
        text[: CHARACTERS * length], add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=most
    )["input_ids"]
    ids = ids[: len(ids) - appended]
    return [tokenizer.bos_token_id or 0, *ids][:length] if bos is Bos.ALWAYS else ids


def _long_enough(rows: Iterable[list[int]], length: int, sequences: int) -> tuple[Tokens, int]:
    """The first `sequences` rows of `length` ids, and how many shorter ones came before the last of them."""
    if length < 2 or sequences < 1:
        raise InputError(f"ask for at least 2 tokens and 1 sequence; got {length} and {sequences}")
    kept, too_short, longest = [], 0, 0
    for row in rows:
        longest = max(longest, len(row))
        if len(row) < length:
            too_short += 1
        else:
            kept.append(row)
        if len(kept) == sequences:
            return torch.tensor(kept), too_short
    fix = f"use --sequences {len(kept)} or a smaller --length" if kept else f"use --length {longest} or less"
    fix = fix if longest > 1 else "give other texts: none has two tokens"
    raise InputError(
        f"{sequences} sequences of {length} tokens were asked for, but of {too_short + len(kept)} texts "
        f"{too_short} are shorter than that and {len(kept)} are left; {fix}"
    )


def _with_first(tokens: Tokens, source: str, vocab: int, first: int | None) -> TokenSet:
    if first is None:
        return TokenSet.of(tokens, source)
    if not 0 <= first < vocab:
        raise InputError(f"the first token {first} is outside the vocabulary of {vocab}; give an id below {vocab}")
    tokens = tokens.clone()
    tokens[:, 0] = first
    return replace(TokenSet.of(tokens, source), bos=f"id {first} first")
