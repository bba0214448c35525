"""The case that an experiment measures: a model, ready to run, what is known of it, and the tokens that it reads."""

import json
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ..backends.encoder import EncoderInput
from ..backends.files.model_files import DeviceMap
from ..backends.files.named_models import located
from ..backends.load import load
from ..backends.subject import Subject, pads_of, text_to_tokens
from ..checks import InputError, instance_of, is_whole, refusal, whole_number
from ..data.choices import Bos, Drawn
from ..data.progress import OnProgress, Progress, no_progress, silent
from ..data.texts import TextStream, source_of
from ..data.tokens import TextToTokens, TokenSet, TooFewTexts, from_rows, ids_of_row, random_tokens, repeated_token
from ..files import cache_folder, path_of
from ..lm.variants import variants
from ..measurement.measure import docstrings_for
from ..table import MODEL, SEED, Cell
from ..train.loop import held_out_tokens, prepared
from ..train.recipe import RECIPES, Recipe
from . import trained
from .trained import recipe_of

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
    text: str | Path | TextStream | None = None
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
            return self._from_ids(token_ids(self.tokens), self.tokens.name).with_padding_noted(pads_of(subject))
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

    def _from_source(self, texts: TextStream, to_tokens: TextToTokens) -> TokenSet:
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
        data = recipe_of(folder).data
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


OUR_SEQUENCES = 512  # for models of ours, as in their cards
READING = "reading docstrings"


@dataclass(frozen=True)
class Named:
    """A model of others: its name or folder, the input of its encoder, and how it is measured.

    most: how many sequences it is measured on at most; None: no limit. begins: how its texts begin.
    """

    source: str
    encoder: EncoderInput | None = None
    most: int | None = None
    begins: Bos = Bos.NEVER

    def __str__(self) -> str:
        return self.source


Model = str | Recipe | Named  # a name or folder, or how a model of ours is trained


@dataclass(frozen=True)
class Case:
    """A model that an experiment measures: its name or folder, its subject, and its recipe if it is one of ours.

    text: the user's own texts, a file, a folder or `si.texts(...)`; None for the model's natural input: English
    docstrings, or the task of a model of ours. most: how many sequences it is measured on at most; None: no limit.
    begins: how the texts of a model of others begin.
    """

    source: str
    subject: Subject
    recipe: Recipe | None
    text: Path | TextStream | None = None
    most: int | None = None
    begins: Bos = Bos.NEVER

    @property
    def variant(self) -> str | None:
        """The name of the architecture, if the model is one of ours and its architecture has a name."""
        return None if self.recipe is None else _variant_of(self.recipe)

    @property
    def seed(self) -> int | None:
        """The seed of the training, if it is known."""
        return None if self.recipe is None else self.recipe.seed

    @property
    def names(self) -> dict[str, Cell]:
        """The first cells of each of the model's rows: its name, and the seed of its training."""
        return {MODEL: self.subject.name, SEED: self.seed}

    @property
    def bos(self) -> Bos:
        """Always BOS for models whose tokenizer has one."""
        return Bos.NEVER if self.bos_token is None else Bos.ALWAYS

    @property
    def start(self) -> Bos:
        """Never BOS, as in Gu et al. (2025), but for models that are said to need it, and for models of ours.

        Those are trained with it if they have one.
        """
        return self.begins if self.recipe is None else self.bos

    @property
    def bos_token(self) -> int | None:
        """The id of BOS, if the model has a tokenizer with one."""
        tokenizer = self.subject.tokenizer
        return None if tokenizer is None else tokenizer.bos_token_id

    def size(self, sequences: int = 100, length: int = 64) -> tuple[int, int]:
        """How many sequences to measure, and their length; the defaults are those of Gu et al. (2025).

        Models of ours take 512 sequences. The length is at most the model's context.
        """
        most = OUR_SEQUENCES if self.recipe else min(sequences, self.most or sequences)
        return most, min(length, self.subject.shape.n_ctx or length)

    def natural_tokens(self, size: tuple[int, int], bos: Bos, on_file: OnProgress = no_progress) -> TokenSet | None:
        """The input that the model was made for: text, or the task of a model of ours. None where it is not known."""
        if self.recipe is None and self.subject.tokenizer is None:
            return None
        sequences, length = size
        return Inputs(length, sequences, bos, self.text).token_set(self.subject, self.source, on_file)

    def tokens(self, size: tuple[int, int], progress: Progress = silent, bos: Bos | None = None) -> TokenSet:
        """The natural input, by default with BOS if the tokenizer has one; random tokens where it is not known."""
        sequences, length = size
        natural = self.natural_tokens(size, self.bos if bos is None else bos, progress(READING))
        return natural or random_tokens(self.subject.shape.vocab, length, sequences)

    def token_sets(self, size: tuple[int, int], bos: Bos, progress: Progress = silent) -> dict[str, TokenSet]:
        """The inputs of Gu et al. (2025), Table 1, by name: natural (where it is known), random and repeated tokens."""
        (sequences, length), vocab = size, self.subject.shape.vocab
        first = self.bos_token if bos is Bos.ALWAYS else None
        natural = self.natural_tokens(size, bos, progress(READING))
        drawn = (("random", random_tokens), ("repeated", repeated_token))
        sets = {name: draw(vocab, length, sequences, first=first) for name, draw in drawn}
        return sets if natural is None else {"natural": natural} | sets


def open_case(
    model: Model,
    progress: Progress = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
    text: Path | TextStream | None = None,
) -> Case:
    """A model, loaded, or trained first where it is not in `cache`. Raises InputError where neither can be done."""
    source = _train(model, progress, cache) if isinstance(model, Recipe) else model
    given = source if isinstance(source, Named) else Named(source)
    folder = Path(located(given.source))
    recipe = trained.recipe_of(folder) if (folder / "recipe.json").is_file() else None
    name = given.source if given.encoder is None else f"{given.source}, encoder {given.encoder.description}"
    if isinstance(model, Recipe):
        name = _variant_of(model) or model.key()
    subject = load(given.source, device_map=device_map, name=name, encoder=given.encoder)
    return Case(given.source, subject, recipe, text, given.most, given.begins)


def _train(recipe: Recipe, progress: Progress, cache: Path | None) -> str:
    on_step = progress(f"training {_variant_of(recipe)}, seed {recipe.seed}")
    return str(trained.trained(recipe, cache, lambda step, latest: on_step(step, recipe.steps)).folder)


def _variant_of(recipe: Recipe) -> str | None:
    """The name of the architecture among the variants of the named recipes; each one's own is "softmax"."""
    named = ({"softmax": base.model, **variants(base.model)} for base in RECIPES.values())
    return next((name for specs in named for name, spec in specs.items() if spec == recipe.model), None)
