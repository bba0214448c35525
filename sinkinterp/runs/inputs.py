"""From the input that a user names (text, token ids, random tokens, nothing) to the token set that is measured."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..backends.model_files import load_tokenizer
from ..backends.places import located
from ..checks import LARGEST
from ..data.bos import Bos
from ..data.docstrings import embedded_texts
from ..data.domains import domains_of
from ..data.progress import OnProgress, no_progress
from ..data.random_inputs import Drawn
from ..data.texts import is_path, is_text, texts_of
from ..data.token_sources import from_rows, from_text, from_texts, random_tokens, repeated_token
from ..data.tokens import TokenSet
from ..errors import InputError
from ..files import cache_folder
from ..train.task import prepared
from .trained import held_out_tokens, recipe_of

TEXTS_PER_SEQUENCE = 20  # texts of a domain that are read, at most, for each sequence: many are too short

_DRAW = {Drawn.RANDOM: random_tokens, Drawn.REPEAT: repeated_token}


@dataclass(frozen=True)
class Inputs:
    """What a model is measured on: `tokens` (a JSON file of ids), `drawn` tokens or `text`, and how much of it.

    If none of the three is given, it is the task of a checkpoint of ours, and the embedded docstrings for a model with
    a tokenizer.
    """

    length: int
    sequences: int
    bos: Bos = Bos.TOKENIZER
    text: str | None = None
    column: str = "text"
    tokens: Path | None = None
    drawn: Drawn | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("text", "tokens", "drawn") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"--{' and --'.join(given)} are given together; give one")

    def token_set(self, model: str, vocab: int, on_file: OnProgress = no_progress) -> TokenSet:
        """The token set for the model of that name or folder, with `vocab` symbols.

        `on_file` is told of the files that docstrings are read from. Raises InputError where the input cannot be read
        or is too short.
        """
        if self.tokens is not None:
            return from_rows(_token_ids(self.tokens), self.length, self.sequences, self.tokens.name)
        if self.drawn is not None:
            return _DRAW[self.drawn](vocab, self.length, self.sequences, self.seed, self._first_token(model))
        tokenizer = load_tokenizer(model)
        if tokenizer is None:
            return self._task_tokens(Path(located(model)))
        if self.text is None:
            return self._from_texts(embedded_texts(cache_folder(), on_file), tokenizer, "embedded docstrings")
        return self._from_texts(texts_of(self.text, self.column), tokenizer, source_name(self.text))

    def domain_token_sets(
        self, model: str, sources: Sequence[str], field: str
    ) -> tuple[dict[str, TokenSet], dict[str, InputError]]:
        """A token set for each domain that can be read, and the error of each that cannot.

        Domains are several files, folders or datasets, or the values of `field` in one file.
        """
        tokenizer = load_tokenizer(model)
        if tokenizer is None:
            raise InputError(f"{model} has no tokenizer, so text by domain cannot be given to it")
        source = sources[0] if len(sources) == 1 else list(sources)
        domains = domains_of(source, self.column, field, TEXTS_PER_SEQUENCE * self.sequences)
        token_sets: dict[str, TokenSet] = {}
        errors: dict[str, InputError] = {}
        for name, texts in domains.items():
            try:
                token_sets[name] = self._from_texts(texts, tokenizer, name)
            except InputError as error:
                errors[name] = error
        return token_sets, errors

    def _first_token(self, model: str) -> int | None:
        """BOS, where random tokens begin with it and the model has one."""
        tokenizer = load_tokenizer(model) if self.bos is Bos.ALWAYS else None
        return None if tokenizer is None else tokenizer.bos_token_id

    def _from_texts(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, source: str) -> TokenSet:
        return from_texts(texts, tokenizer, self.length, self.sequences, self.bos, source)

    def _task_tokens(self, folder: Path) -> TokenSet:
        """Held-out sequences of the task that a checkpoint of ours was trained on."""
        task = prepared(recipe_of(folder).data, cache_folder())
        if self.text is not None or self.length > task.length:
            raise InputError(
                f"{folder} was trained on {task.length} symbols of a task, not on text; use --length {task.length}"
            )
        token_set = held_out_tokens(task, self.sequences)
        return from_rows(token_set.tokens.tolist(), self.length, self.sequences, token_set.source)


def one_text(text: str, model: str, bos: Bos, most: int | None = None, source: str = "text") -> TokenSet:
    """The tokens of one text, the first `most` of them, for the model of that name or folder.

    Raises InputError for a model without a tokenizer and for a text of fewer than two tokens.
    """
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer, so it reads no text; leave --text out")
    return from_text(text, tokenizer, bos, most, source)


def source_name(text: str) -> str:
    """What reports call the texts that --text names."""
    if is_text(text):
        return "text"
    return Path(text).name if is_path(text) else text


def _token_ids(file: Path) -> list[list[int]]:
    try:
        rows = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {file}: {error}; it should hold a JSON list of lists of token ids") from error
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise InputError(f"{file} should hold a JSON list of lists of token ids, such as [[1, 5, 7], [1, 9, 2]]")
    too_large = next((token for row in rows for token in row if not 0 <= token <= LARGEST), None)
    if too_large is not None:
        raise InputError(f"{file} holds {too_large}, which is no token id; ids count from 0 and take at most 64 bits")
    return rows


def _is_row(row: object) -> bool:
    return isinstance(row, list) and all(type(token) is int for token in row)  # True and False are no token ids
