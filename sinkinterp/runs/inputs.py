"""Inputs: from what a user names (text, tokens, nothing at all) to the token set that a model is measured on."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..backends.load import load_tokenizer, located
from ..data.bos import Bos
from ..data.domains import domains_of
from ..data.drawn import Drawn
from ..data.texts import embedded_texts, is_local, texts_of
from ..data.tokens import TokenSet, from_rows, from_texts, random_tokens, repeated_token
from ..errors import InputError
from ..files import cache_folder
from ..train.recipe import prepared
from .trained import held_out_tokens, recipe_of

OnFile = Callable[[int, int], None]


_DRAW = {Drawn.RANDOM: random_tokens, Drawn.REPEAT: repeated_token}


@dataclass(frozen=True)
class Inputs:
    """What to measure a model on: `tokens` (a JSON file of ids), `drawn` tokens, or `text`, and how much of it.

    Without any of the three: the task that a checkpoint of ours was trained on, else the embedded docstrings.
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

    def token_set(self, model: str, vocab: int, on_file: OnFile = lambda done, of: None) -> TokenSet:
        """The token set for a model of that name and vocabulary. Raises InputError for files that do not give one."""
        if self.tokens is not None:
            return from_rows(_rows_of(self.tokens), self.length, self.sequences, self.tokens.name)
        tokenizer = load_tokenizer(model) if self.drawn is None or self.bos is Bos.ALWAYS else None
        if self.drawn is not None:
            first = tokenizer.bos_token_id if tokenizer is not None else None
            return _DRAW[self.drawn](vocab, self.length, self.sequences, self.seed, first)
        if tokenizer is None:
            return self._task_tokens(Path(located(model)))
        if self.text is None:
            return self._from_texts(embedded_texts(cache_folder(), on_file), tokenizer, "embedded docstrings")
        return self._from_texts(texts_of(self.text, self.column), tokenizer, _name(self.text))

    def domain_token_sets(self, model: str, sources: Sequence[str], field: str) -> dict[str, TokenSet]:
        """A token set per domain of `sources`: files, folders or datasets, or one file whose `field` names it."""
        tokenizer = load_tokenizer(model)
        if tokenizer is None:
            raise InputError(f"{model} has no tokenizer, so text by domain cannot be given to it")
        one = sources[0] if len(sources) == 1 else list(sources)
        texts: Mapping[str, Iterable[str]] = domains_of(one, self.column, field, most=20 * self.sequences)
        return {name: self._from_texts(found, tokenizer, name) for name, found in texts.items()}

    def _from_texts(self, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, source: str) -> TokenSet:
        return from_texts(texts, tokenizer, self.length, self.sequences, self.bos, source)

    def _task_tokens(self, folder: Path) -> TokenSet:
        task = prepared(recipe_of(folder).data, cache_folder())
        if self.text is not None or self.length > task.length:
            raise InputError(
                f"{folder} was trained on {task.length} symbols of a task, not on text; use --length {task.length}"
            )
        token_set = held_out_tokens(task, self.sequences)
        return from_rows(token_set.tokens.tolist(), self.length, self.sequences, token_set.source)


def _name(text: str) -> str:
    return Path(text).name if is_local(text) else text


def _rows_of(file: Path) -> list[list[int]]:
    try:
        rows = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}; it should hold a JSON list of lists of token ids") from error
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(type(token) is int for token in row) for row in rows
    ):
        raise InputError(f"{file} should hold a JSON list of lists of token ids, such as [[1, 5, 7], [1, 9, 2]]")
    return rows
