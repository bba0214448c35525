"""The inputs of a measurement: a text, a file, drawn tokens, or the task of a model of ours."""

import json
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ..backends.named_models import located
from ..backends.subject import Subject, pads_of, text_to_tokens
from ..checks import InputError, instance_of, is_whole, refusal, whole_number
from ..data.choices import Bos, Drawn
from ..data.progress import OnProgress, no_progress
from ..data.texts import Texts, source_of
from ..data.tokens import TextToTokens, TokenSet, TooFewTexts, from_rows, ids_of_row, random_tokens, repeated_token
from ..files import cache_folder, path_of
from ..measurement.measure import docstrings_for
from ..train.loop import held_out_tokens, prepared
from ..train.recipe import recipe_in

_DRAW = {Drawn.RANDOM: random_tokens, Drawn.REPEAT: repeated_token}


@dataclass(frozen=True)
class Inputs:
    """What a model is measured on: `tokens` (a JSON file of ids), `drawn` tokens, or `text`, and how much of it.

    `text` is a text (`str`), a file or folder (`Path`), or `si.texts(...)`. If none of the three is given, it is the
    task of a checkpoint of ours, and the embedded docstrings for a model with a tokenizer. `may_be_shorter` and
    `may_be_fewer` say that the user's own texts or ids may be so, because `length` or `sequences` is a default.
    """

    length: int
    sequences: int
    bos: Bos = Bos.TOKENIZER
    text: str | Path | Texts | None = None
    column: str = "text"
    tokens: Path | None = None
    drawn: Drawn | None = None
    seed: int = 0
    may_be_shorter: bool = False
    may_be_fewer: bool = False

    def __post_init__(self) -> None:
        if self.tokens is not None:
            object.__setattr__(self, "tokens", path_of(self.tokens, "tokens"))
        whole_number(self.length, "length", 2)
        whole_number(self.sequences, "sequences", 1)
        if len(self.given) > 1:
            raise InputError(f"{'=... and '.join(self.given)}=... are given together; give one")

    @property
    def given(self) -> tuple[str, ...]:
        """Which of the three the user named."""
        return tuple(name for name in ("text", "tokens", "drawn") if getattr(self, name) is not None)

    def token_set(self, subject: Subject, source: str, on_file: OnProgress = no_progress) -> TokenSet:
        """The token set for a subject, which was loaded from the name or folder `source`.

        `on_file` is told of the files that docstrings are read from. Raises InputError where the input cannot be read
        or is too short.
        """
        tokenizer = subject.tokenizer
        if self.tokens is not None:
            return self._from_ids(token_ids(self.tokens), self.tokens.name).checked_for(pads_of(subject))
        if self.drawn is not None:
            first = tokenizer.bos_token_id if self.bos is Bos.ALWAYS and tokenizer is not None else None
            return _DRAW[self.drawn](subject.shape.vocab, self.length, self.sequences, self.seed, first)
        if tokenizer is None and not isinstance(self.text, str):
            return self._task_tokens(Path(located(source)))
        if self.text is None:
            return docstrings_for(subject, self.length, self.sequences, self.bos, on_file)
        to_tokens = text_to_tokens(subject, self.bos)
        if not isinstance(self.text, str):
            return self._from_source(source_of(self.text, self.column), to_tokens)
        if self.may_be_shorter:
            return to_tokens.one(self.text, self.length)
        return to_tokens.of_length([self.text], self.length, self.sequences, "text")

    def _from_source(self, texts: Texts, to_tokens: TextToTokens) -> TokenSet:
        """The texts of a source; where too few are long enough, those that there are, if that may be."""
        try:
            return to_tokens.of_length(texts, self.length, self.sequences, texts.name)
        except TooFewTexts:
            if self.may_be_shorter:
                first = list(islice(texts, self.sequences))
                token_set = to_tokens.at_most(first, self.length, texts.name)
                if self.may_be_fewer or len(token_set.tokens) == self.sequences:
                    return token_set
            elif self.may_be_fewer:
                return to_tokens.of_length(texts, self.length, None, texts.name)
            raise

    def _from_ids(self, rows: list[list[int]], source: str) -> TokenSet:
        fitting = [row[: self.length] for row in rows if self.may_be_shorter or len(row) >= self.length]
        if not fitting or (len(fitting) < self.sequences and not self.may_be_fewer):
            return from_rows(rows, self.length, self.sequences, source)  # which says what is missing
        too_short = len(rows) - len(fitting) if len(fitting) < self.sequences else 0
        token_set = TokenSet.of_rows(fitting[: self.sequences], source)
        return replace(token_set, bos="as given", too_short=too_short)

    def _task_tokens(self, folder: Path) -> TokenSet:
        """Held-out sequences of the task that a checkpoint of ours was trained on."""
        data = recipe_in(folder).data
        outside = getattr(data, "outside", "")
        if outside and str(getattr(self.text, "source", self.text)) != outside:
            fix = f"which is read if you name it: text=Path({outside!r})"
            raise InputError(f"{folder.name} was trained on {outside}, {fix}")
        task = prepared(data, cache_folder())
        length = min(self.length, task.length) if self.may_be_shorter else self.length
        if (self.text is not None and not outside) or length > task.length:
            what = f"was trained on {task.length} symbols of a task, not on text"
            raise InputError(f"{folder.name} {what}; use length={task.length}")
        token_set = held_out_tokens(task, self.sequences)
        return from_rows(token_set.tokens.tolist(), length, self.sequences, token_set.source)


def token_ids(file: Path) -> list[list[int]]:
    """The rows of token ids in a file. One list is one sequence."""
    fix = "it should hold a JSON list of lists of token ids, such as [[1, 5, 7], [1, 9, 2]]"
    with refusal(f"cannot read {file}", fix, (InputError, OSError, ValueError, RecursionError)):
        rows = instance_of(json.loads(file.read_text()), list, "its token ids are lists")
        rows = list(map(ids_of_row, [rows] if rows and is_whole(rows[0]) else rows))
    if not any(rows):
        raise InputError(f"{file} holds no token id; {fix}")
    return rows
