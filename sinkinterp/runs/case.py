"""The case that an experiment measures: a model, ready to run, and what is known of it."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..backends.encoder.encoder_input import EncoderInput
from ..backends.files.model_files import DeviceMap
from ..backends.files.named_models import located
from ..backends.load import load
from ..backends.subject import Subject
from ..data.choices import Bos
from ..data.progress import OnProgress, Progress, no_progress, silent
from ..data.token_sources import random_tokens, repeated_token
from ..data.tokens import TokenSet
from ..interventions.positions import RemovePosition
from ..lm.variants import VARIANTS
from ..table import MODEL, SEED, Cell
from ..train.recipe import Recipe
from . import trained
from .inputs import Inputs

OUR_SEQUENCES = 512  # for models of ours, as in their cards
READING = "reading docstrings"


@dataclass(frozen=True)
class _Named:
    """A model of others: its name or folder."""

    source: str

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True)
class Encoded(_Named):
    """A model with an encoder, and the input of the encoder."""

    encoder: EncoderInput


@dataclass(frozen=True)
class Fewer(_Named):
    """A large model, how many sequences it is measured on at most, and how its texts begin."""

    sequences: int
    bos: Bos = Bos.NEVER


Model = str | Recipe | Encoded | Fewer  # a name or folder, or how a model of ours is trained


@dataclass(frozen=True)
class Case:
    """A model that an experiment measures: its name or folder, its subject, and its recipe if it is one of ours.

    text: the user's own text, as the option `text` names it; None for the model's natural input by default: English
    docstrings, or the task of a model of ours. most: how many sequences it is measured on at most; None: no limit.
    begins: how the texts of a model of others begin.
    """

    source: str
    subject: Subject
    recipe: Recipe | None
    text: str | None = None
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
        return ({} if natural is None else {"natural": natural}) | {
            "random": random_tokens(vocab, length, sequences, first=first),
            "repeated": repeated_token(vocab, length, sequences, first=first),
        }

    def check_positions(self) -> None:
        """Raises InputError for a model without a table of learned positions."""
        self.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition([0])])


def open_case(
    model: Model,
    progress: Progress = silent,
    cache: Path | None = None,
    device_map: DeviceMap = None,
    text: str | None = None,
) -> Case:
    """A model, loaded, or trained first where it is not in `cache`. Raises InputError where neither can be done."""
    if isinstance(model, Encoded):
        name = f"{model.source}, encoder {model.encoder.description}"
        subject = load(model.source, device_map=device_map, name=name, encoder=model.encoder)
        return Case(model.source, subject, None, text)
    if isinstance(model, Fewer):
        case = open_case(model.source, progress, cache, device_map, text)
        return replace(case, most=model.sequences, begins=model.bos)
    source = model if isinstance(model, str) else _train(model, progress, cache)
    folder = Path(located(source))
    recipe = trained.recipe_of(folder) if (folder / "recipe.json").is_file() else None
    name = source if isinstance(model, str) else _variant_of(model) or model.key()
    return Case(source, load(source, device_map=device_map, name=name), recipe, text)


def _train(recipe: Recipe, progress: Progress, cache: Path | None) -> str:
    on_step = progress(f"training {_variant_of(recipe)}, seed {recipe.seed}")
    return str(trained.trained(recipe, cache, lambda step, latest: on_step(step, recipe.steps)).folder)


def _variant_of(recipe: Recipe) -> str | None:
    return next((name for name, spec in VARIANTS.items() if spec == recipe.model), None)
