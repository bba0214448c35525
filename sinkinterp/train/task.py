"""What a model is trained on: sequences that are ready to be drawn."""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..data.progress import OnProgress
from ..data.split import Split
from ..data.tokens import Tokens
from ..spec import Spec


@runtime_checkable
class Task(Protocol):
    """Sequences of `length` tokens out of `vocab` symbols, as many as are asked for. Reports call them `title`."""

    @property
    def vocab(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def title(self) -> str: ...

    def sample(self, n: int, *stream: object) -> Tokens:
        """`n` sequences, the same for the same stream.

        A stream is (seed, step), with steps counted from 1, or ("held out",) for sequences that no training sees.
        """
        ...


@runtime_checkable
class Corpus(Task, Protocol):
    """A task that draws from a text. `recipe` describes it and names the hash of the text; `split` what is held out."""

    @property
    def recipe(self) -> Spec: ...

    @property
    def split(self) -> Split: ...

    def tokenizer(self) -> Any:
        """The transformers tokenizer of the text."""
        ...


def prepared(data: Any, cache: Path, on_progress: OnProgress = lambda done, of: None) -> Task:
    """The task that a spec of data describes. Data that need preparation are prepared once, in `cache`."""
    prepare = getattr(data, "prepare", None)
    return data if prepare is None else prepare(cache, on_progress)
