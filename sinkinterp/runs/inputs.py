"""From the input that a user names (text, token ids, random tokens, nothing) to the token set that is measured."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..backends.load import load_tokenizer, located
from ..data.bos import Bos
from ..data.docstrings import embedded_texts
from ..data.domains import domains_of
from ..data.progress import OnProgress, no_progress
from ..data.random_inputs import Drawn
from ..data.texts import is_path, texts_of
from ..data.token_sources import from_rows, from_texts, random_tokens, repeated_token
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
        return self._from_texts(texts_of(self.text, self.column), tokenizer, _source_name(self.text))

    def domain_token_sets(self, model: str, sources: Sequence[str], field: str) -> dict[str, TokenSet]:
        """A token set for each domain: of several files, folders or datasets, or of one file with a column `field`."""
        tokenizer = load_tokenizer(model)
        if tokenizer is None:
            raise InputError(f"{model} has no tokenizer, so text by domain cannot be given to it")
        source = sources[0] if len(sources) == 1 else list(sources)
        domains = domains_of(source, self.column, field, TEXTS_PER_SEQUENCE * self.sequences)
        return {name: self._from_texts(texts, tokenizer, name) for name, texts in domains.items()}

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


def _source_name(text: str) -> str:
    return Path(text).name if is_path(text) else text


def _token_ids(file: Path) -> list[list[int]]:
    try:
        rows = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}; it should hold a JSON list of lists of token ids") from error
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise InputError(f"{file} should hold a JSON list of lists of token ids, such as [[1, 5, 7], [1, 9, 2]]")
    return rows


def _is_row(row: object) -> bool:
    return isinstance(row, list) and all(type(token) is int for token in row)  # True and False are no token ids
