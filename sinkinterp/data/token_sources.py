"""Makes token sets: of texts and chats by one class for every model, of rows of token ids, or at random."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..checks import LARGEST, InputError, check_memory, refusing, unicode_text, whole_number
from .choices import Bos
from .given_tokenizer import appended_tokens, check_one_bos, messages_in, rendered
from .texts import is_blank, is_path, text_of_file, texts_of
from .tokens import Tokens, TokenSet

CHARACTERS = 64  # of a text are tokenised for every token that is asked for
UNLIMITED = 2**30  # tokens of a text


class TooFewTexts(InputError):
    """Fewer texts are long enough than were asked for."""


@dataclass(frozen=True)
class TextToTokens:
    """Makes token sets of texts and of chats with the tokenizer of one model, by one rule about BOS.

    Raises InputError for a model without a tokenizer, and for `Bos.ALWAYS` if the tokenizer has no BOS.
    """

    tokenizer: Any
    bos: Bos = Bos.TOKENIZER
    model: str = "this model"

    def __post_init__(self) -> None:
        self._check()

    @refusing
    def _check(self) -> Iterator[str]:
        if self.tokenizer is None:
            fix = "load it with one, si.load(model, tokenizer=...), or give token ids, such as [[5, 7, 9]]"
            yield f"{self.model} has no tokenizer, so it reads no text; {fix}"
        if self.bos is Bos.ALWAYS and self.tokenizer.bos_token_id is None:
            yield 'this tokenizer has no BOS token; use bos="never" or bos="tokenizer"'

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
                    digest.update(hashlib.sha256(text.encode()).digest())
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
            raise InputError(f"{name} is blank or short, and attention needs at least 2 tokens; give a longer one")
        token_set = TokenSet.of_rows(kept, source)
        return replace(token_set, bos=self._beginning(token_set.tokens), too_short=len(rows) - len(kept))

    def whole(self, texts: Sequence[str], most: int, source: str) -> TokenSet:
        """All tokens of every text, as `at_most` returns them.

        Raises InputError for a text of more than `most` tokens.
        """
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

    def one_in(self, source: str, column: str, most: int | None) -> TokenSet:
        """The tokens of a text, of the .txt file that it names, or of the first text of another file or a folder."""
        if not is_path(source):
            return self.one(source, most)
        file = Path(source)
        is_whole = file.suffix == ".txt" and file.is_file()
        text = text_of_file(file) if is_whole else next(texts_of(file, column), "")
        return self.one(text, most, file.name)

    def chats(self, chats: Sequence[Any], source: str, most: int | None = None) -> TokenSet:
        """The first `most` tokens of every chat in the tokenizer's chat template, less its BOS by `Bos.NEVER`.

        Raises InputError if the tokenizer has no template, and for a chat that it refuses.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError("this tokenizer has no chat template; give the text of the chat, or another model")
        named = [(f"chat {i}", messages_in(chat)) for i, chat in enumerate(chats)]
        rows = [rendered(chat, self.tokenizer, name, return_dict=False) for name, chat in named]
        less_bos = self.bos is Bos.NEVER and self.tokenizer.bos_token_id is not None
        rows = [row[int(less_bos and row[:1] == [self.tokenizer.bos_token_id]) :][:most] for row in rows]
        return replace(TokenSet.of_rows(rows, source), bos=f"chat template{', less its BOS' if less_bos else ''}")

    @cached_property
    def _appended(self) -> int:
        return appended_tokens(self.tokenizer) if self.bos is Bos.TOKENIZER else 0

    def _first_ids(self, text: str, length: int, characters: int | None = None) -> list[int]:
        """The first `length` ids of a text, BOS included, or fewer if the text is shorter.

        The tokens that the tokenizer appends are left out. `characters` of the text are read; all of them for None.
        """
        if is_blank(text):
            return []
        beginning, most = unicode_text(text, "the text")[:characters], length + self._appended
        adds = self.bos is Bos.TOKENIZER
        answer = self.tokenizer(beginning, add_special_tokens=adds, truncation=True, max_length=most)
        ids: list[int] = answer["input_ids"]
        ids = ids[: len(ids) - self._appended]
        if self.bos is Bos.ALWAYS:
            ids = [self.tokenizer.bos_token_id, *ids][:length]
        if self.bos is not Bos.NEVER:
            check_one_bos(ids, self.tokenizer, text)
        return ids

    def _beginning(self, tokens: Tokens) -> str:
        """How sequences begin: the rule, and the BOS that all of them begin with."""
        first = self.tokenizer.bos_token_id
        begins = first is not None and bool((tokens[:, 0] == first).all())
        return f"{self.bos} (id {first} first)" if begins else f"{self.bos} (none)"


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
    vocab, generator = _checked(vocab, length, sequences, seed)
    tokens = torch.randint(vocab, (sequences, length), generator=generator)
    return _with_first(tokens, f"random tokens, seed {seed}", vocab, first)


def repeated_token(vocab: int, length: int, sequences: int, seed: int = 0, first: int | None = None) -> TokenSet:
    """One token per sequence, drawn uniformly, that fills the sequence (Gu et al. 2025, Table 1, "repeat").

    `first`, if given, replaces the token at position 0. Raises InputError where it is outside the vocabulary.
    """
    vocab, generator = _checked(vocab, length, sequences, seed)
    tokens = torch.randint(vocab, (sequences, 1), generator=generator)
    return _with_first(tokens.expand(-1, length), f"repeated token, seed {seed}", vocab, first)


def _checked(vocab: int, length: int, sequences: int, seed: int) -> tuple[int, torch.Generator]:
    """The vocabulary and the generator to draw with. Raises InputError for sizes that are invalid or too large."""
    vocab, length = whole_number(vocab, "vocab", 1, LARGEST), whole_number(length, "length", 2)
    sequences = whole_number(sequences, "sequences", 1)
    what = f"{sequences:,} sequences of {length:,} tokens"
    check_memory(3 * 8 * sequences * length, what, "ask for fewer or shorter ones")
    return vocab, torch.Generator().manual_seed(whole_number(seed, "seed", -LARGEST, LARGEST))


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
            return torch.tensor(kept), too_short
    if sequences is None and kept:
        return torch.tensor(kept), too_short
    if sequences is None:
        what = f"use a length of at most {longest}, that of the longest" if longest else "they are blank: give others"
        raise InputError(f"no text has {length} tokens; {what}")
    fix = f"use sequences={len(kept)} or a smaller length=..." if kept else f"use length={longest} or less"
    fix = fix if longest > 1 else "give other texts: none has two tokens"
    raise TooFewTexts(
        f"{sequences} sequences of {length} tokens were asked for, but of {too_short + len(kept)} texts "
        f"{too_short} are shorter than that and {len(kept)} are left; {fix}"
    )


def _with_first(tokens: Tokens, source: str, vocab: int, first: int | None) -> TokenSet:
    if first is None:
        return TokenSet.of(tokens, source)
    tokens = tokens.clone()
    tokens[:, 0] = whole_number(first, f"the first token, an id of the vocabulary of {vocab},", 0, vocab - 1)
    return replace(TokenSet.of(tokens, source), bos=f"id {first} first")
