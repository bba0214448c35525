"""Where token sets come from: texts, rows of token ids, or random numbers."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import torch

from ..checks import LARGEST, check_memory, unicode_text, whole_number
from ..errors import InputError
from .chat_templates import messages_in, rendered
from .choices import Bos
from .plain_tokenizer import PlainTokenizer
from .texts import is_blank
from .tokens import Tokens, TokenSet

CHARACTERS = 64  # of a text are tokenised for every token that is asked for


@runtime_checkable
class Tokenizer(Protocol):
    """The part of a transformers tokenizer that `from_texts` uses. `is_tokenizer` says whether an object has it."""

    if TYPE_CHECKING:  # from Python 3.12 on isinstance does not see dynamic attributes, which transformers has
        bos_token_id: int | None

    def __call__(self, text: str, *, add_special_tokens: bool, truncation: bool, max_length: int) -> dict: ...


def is_tokenizer(found: object) -> TypeGuard[Tokenizer]:
    """Whether an object is a tokenizer."""
    return callable(found) and hasattr(found, "bos_token_id")


def from_rows(rows: Sequence[Sequence[int]], length: int, sequences: int, source: str) -> TokenSet:
    """The first `length` ids of the first `sequences` rows that are long enough.

    Raises InputError where fewer rows are.
    """
    tokens, too_short = _long_enough((list(row[:length]) for row in rows), length, sequences)
    return replace(TokenSet.of(tokens, source), bos="as given", too_short=too_short)


def from_texts(
    texts: Iterable[str], tokenizer: Tokenizer, length: int, sequences: int | None, bos: Bos, source: str
) -> TokenSet:
    """The first `length` tokens of the first `sequences` texts that are long enough, one text per sequence.

    Where `sequences` is None, these are all texts that are long enough. The hash is that of the texts that are used.
    Raises InputError where fewer texts are long enough, and where BOS is always wanted but the tokenizer has none.
    """
    _check_bos(tokenizer, bos)
    digest = hashlib.sha256()
    appended = appended_tokens(tokenizer) if bos is Bos.TOKENIZER else 0

    def rows() -> Iterator[list[int]]:
        for text in texts:
            ids = _first_ids(text, tokenizer, length, bos, appended)
            if len(ids) == length:
                digest.update(hashlib.sha256(text.encode()).digest())
            yield ids

    tokens, too_short = _long_enough(rows(), length, sequences)
    return TokenSet(tokens, source, digest.hexdigest(), _beginning(tokens, tokenizer, bos), too_short)


def from_text(text: str, tokenizer: Tokenizer, bos: Bos, most: int | None = None, source: str = "text") -> TokenSet:
    """The tokens of one text, the first `most` of them. Raises InputError where there are fewer than two."""
    _check_words(text)
    most = most or 2**30
    ids = tokenizer(
        unicode_text(text, source), add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=most
    )["input_ids"]
    appended = appended_tokens(tokenizer) if bos is Bos.TOKENIZER else 0
    length = min(len(ids) - appended + (bos is Bos.ALWAYS), most)
    if length < 2:
        raise InputError(f"the text has {length} tokens; give one of at least 2")
    return from_texts([text], tokenizer, length, 1, bos, source)


def from_whole_texts(
    texts: Sequence[str], tokenizer: Tokenizer, bos: Bos, most: int, source: str, cut: bool = False
) -> TokenSet:
    """All tokens of every text, one text per sequence, each sequence as long as its text, or `cut` to `most` tokens.

    Blank texts and those of fewer than two tokens are left out and counted. Raises InputError where none is left,
    where a text has more than `most` tokens, and where BOS is always wanted but the tokenizer has none.
    """
    if not texts:
        raise InputError(f"{source} holds no text; give one or more")
    _check_bos(tokenizer, bos)
    appended = appended_tokens(tokenizer) if bos is Bos.TOKENIZER else 0
    rows = []
    for i, text in enumerate(texts):
        rows.append(_first_ids(text, tokenizer, most if cut else most + 1, bos, appended, characters=None))
        if len(rows[-1]) > most:
            fix = f"cut it, subject.tokens(texts, length={most})"
            raise InputError(f"text {i} has more than the {most} tokens that the model takes; {fix}")
    long_enough = [row for row in rows if len(row) > 1]
    if not long_enough:
        _check_words(texts[0])
        raise InputError(f"text 0 has {len(rows[0])} tokens, and attention needs 2; give a longer one")
    token_set, too_short = TokenSet.of_rows(long_enough, source), len(rows) - len(long_enough)
    return replace(token_set, bos=_beginning(token_set.tokens, tokenizer, bos), too_short=too_short)


def from_chats(chats: Sequence[Any], tokenizer: Any, source: str, most: int | None = None) -> TokenSet:
    """The tokens of every chat in the tokenizer's chat template, the first `most` of them.

    Raises InputError where there is no template, and for a chat that it refuses.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("this tokenizer has no chat template; give the text of the chat, or another model")
    named = [(f"chat {i}", messages_in(chat)) for i, chat in enumerate(chats)]
    rows = [rendered(chat, tokenizer, name, return_dict=False)[:most] for name, chat in named]
    return replace(TokenSet.of_rows(rows, source), bos="chat template")


def _check_bos(tokenizer: Tokenizer, bos: Bos) -> None:
    if bos is Bos.ALWAYS and tokenizer.bos_token_id is None:
        raise InputError('this tokenizer has no BOS token; use bos="never" or bos="tokenizer"')


def _beginning(tokens: Tokens, tokenizer: Tokenizer, bos: Bos) -> str:
    """How sequences begin: the rule, and the BOS that all of them begin with."""
    begins = tokenizer.bos_token_id is not None and bool((tokens[:, 0] == tokenizer.bos_token_id).all())
    return f"{bos} (id {tokenizer.bos_token_id} first)" if begins else f"{bos} (none)"


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


def appended_tokens(tokenizer: Tokenizer) -> int:
    """How many tokens the tokenizer puts after every text, such as T5's end token."""
    if isinstance(tokenizer, PlainTokenizer):  # which adds none, and may not know an "a"
        return 0
    with_special, alone = (
        tokenizer("a", add_special_tokens=special, truncation=True, max_length=64)["input_ids"]
        for special in (True, False)
    )
    starts = [i for i in range(len(with_special)) if with_special[i : i + len(alone)] == alone]
    begins = with_special[0] == tokenizer.bos_token_id  # which may also stand for an "a" that is unknown
    return len(with_special) - len(alone) - starts[-1 if begins else 0] if starts else 0


def _first_ids(
    text: str, tokenizer: Tokenizer, length: int, bos: Bos, appended: int, characters: int | None = CHARACTERS
) -> list[int]:
    """The first `length` ids of a text, BOS included, or fewer where the text is shorter.

    The last `appended` tokens of what the tokenizer returns do not belong to the text, and are left out. `characters`
    of the text are read for each id, or all of the text if None.
    """
    if is_blank(text):  # it is counted among those that are too short
        return []
    most = length + appended
    beginning = unicode_text(text, "the text")[: characters and characters * length]
    ids: list[int] = tokenizer(beginning, add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=most)[
        "input_ids"
    ]
    ids = ids[: len(ids) - appended]
    ids = [tokenizer.bos_token_id or 0, *ids][:length] if bos is Bos.ALWAYS else ids
    if bos is not Bos.NEVER:
        check_one_bos(ids, tokenizer, text)
    return ids


def check_one_bos(ids: Sequence[int], tokenizer: Any, text: str) -> None:
    """Raises InputError where a text begins with BOS itself, and the tokenizer puts another before it."""
    first, spelt = getattr(tokenizer, "bos_token_id", None), str(getattr(tokenizer, "bos_token", ""))
    is_spelt = text.lstrip().startswith(spelt)  # BOS may also be the token of what is unknown
    if first is not None and is_spelt and list(ids[:2]) == [first, first]:
        fix = 'take it out of the text, or use bos="never" for texts that begin with it'
        raise InputError(f"the text {text[:30]!r} begins with BOS itself, and another is put before it; {fix}")


def _check_words(text: str) -> None:
    if is_blank(text):
        raise InputError("the text is blank; give one with words")


class TooFewTexts(InputError):
    """Fewer texts are long enough than were asked for."""


def _long_enough(rows: Iterable[list[int]], length: int, sequences: int | None) -> tuple[Tokens, int]:
    """The first `sequences` rows of `length` ids (or all), and how many shorter ones came before the last of them."""
    if length < 2 or (sequences is not None and sequences < 1):
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
    if sequences is None and kept:
        return torch.tensor(kept), too_short
    if sequences is None and not longest:
        raise InputError("the texts are blank; give others")
    if sequences is None:
        raise InputError(f"no text has {length} tokens; use a length of at most {longest}, that of the longest")
    fix = f"use sequences={len(kept)} or a smaller length=..." if kept else f"use length={longest} or less"
    fix = fix if longest > 1 else "give other texts: none has two tokens"
    raise TooFewTexts(
        f"{sequences} sequences of {length} tokens were asked for, but of {too_short + len(kept)} texts "
        f"{too_short} are shorter than that and {len(kept)} are left; {fix}"
    )


def _with_first(tokens: Tokens, source: str, vocab: int, first: int | None) -> TokenSet:
    if first is None:
        return TokenSet.of(tokens, source)
    if not 0 <= whole_number(first, "the first token") < vocab:
        raise InputError(f"the first token {first} is outside the vocabulary of {vocab}; give an id below {vocab}")
    tokens = tokens.clone()
    tokens[:, 0] = first
    return replace(TokenSet.of(tokens, source), bos=f"id {first} first")
