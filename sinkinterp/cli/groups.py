"""Options that several commands share, in groups: a command takes each group as one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from ..checks import InputError
from ..data.choices import Dtype
from ..data.progress import OnProgress, no_progress
from . import options
from .options import LARGEST, PAGES, check_outputs, check_used, file, n, option, suffix_of, texts_named
from .terminal import Wanted

if TYPE_CHECKING:
    from ..backends.subject import Subject
    from ..data.tokens import TokenSet
    from ..measurement.measure import Preset
    from ..report.report import Report
    from ..runs.inputs import Inputs
    from ..table import Table


def in_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: in place of a parameter that is a dataclass stand its fields, as options."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, own in signature(command).parameters.items():
        if kind := groups.get(name):
            parameters += [_option(each.name, each.type, getattr(kind(), each.name)) for each in fields(kind)]
        else:
            parameters += [_option(name, hints[name], own.default)]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    vars(run)["__signature__"] = Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _option(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@dataclass(frozen=True)
class OneText:
    """What a command reads that reads one text."""

    text: options.Text = None
    column: options.Column = None
    tokens: options.Tokens = None
    length: Annotated[int | None, n("Tokens of a sequence.", min=2)] = None
    bos: options.Bos = None

    @property
    def files(self) -> Sequence[str | None]:
        """What an output may not replace."""
        return self.text, self.tokens

    def check(self) -> None:
        """Raises InputError for two inputs, an option without effect on this one, and a file that cannot be read."""
        from ..runs.inputs import token_ids

        inputs = ("text", "prompt", "tokens", "drawn")  # of which some commands have some
        given = [f"--{name}" for name in inputs if getattr(self, name, None) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} are given together; give one")
        if self.tokens is not None:
            token_ids(Path(self.tokens))
        texts_named(self.text, self.column)
        check_used("--bos", self.bos, "a text or drawn tokens", True if self.tokens is None else None)


@dataclass(frozen=True)
class Texts(OneText):
    """What a model reads, and how much of it; None where the user did not say it."""

    drawn: options.Drawn = None
    seed: Annotated[int | None, n("Seed of --drawn; default: 0.", min=0, max=LARGEST)] = None
    sequences: Annotated[int | None, n("How many sequences are read.", min=1)] = None

    @property
    def prompt(self) -> str | None:
        """A text of the command line."""
        return None

    def check(self) -> None:
        super().check()
        check_used("--seed", self.seed, "--drawn", self.drawn)

    def over(self, settings: "Preset", **others: Any) -> "Preset":
        """The settings, with those that the user gave in their place; `others` are of other options."""
        sequences = 1 if self.prompt is not None else self.sequences
        given = {"length": self.length, "sequences": sequences, "bos": self.bos, **others}
        return replace(settings, **{name: value for name, value in given.items() if value is not None})

    def inputs(self, settings: "Preset", is_default: bool) -> "Inputs":
        """The inputs. Fewer and shorter ones will do where `is_default` and the user gives no size, or one text."""
        from ..data.texts import named_texts
        from ..runs.inputs import Inputs

        is_prompt = self.prompt is not None
        texts = None if self.text is None else named_texts(self.text, self.column or "text")
        given: dict[str, Any] = {"text": self.prompt if is_prompt else texts, "drawn": self.drawn, "seed": self.seed}
        given |= {} if self.tokens is None else {"tokens": Path(self.tokens)}
        return Inputs(
            settings.length,
            settings.sequences,
            settings.bos,
            **{name: value for name, value in given.items() if value is not None},
            may_be_shorter=self.length is None and (is_default or is_prompt),
            may_be_fewer=self.sequences is None and is_default and not is_prompt,
        )

    def token_set(
        self, subject: "Subject", model: str, length: int, sequences: int, on_file: OnProgress = no_progress
    ) -> "TokenSet":
        """The tokens of a command with these defaults: sequences of one length that fits the context, or fewer."""
        from ..measurement.measure import Preset

        check_used("--bos", self.bos, "a model with a tokenizer", subject.tokenizer)
        size = self.over(Preset(length=length, sequences=sequences))
        fitting = replace(size, length=min(size.length, subject.shape.n_ctx or size.length))
        inputs = replace(self.inputs(fitting, True), may_be_shorter=self.prompt is not None and self.length is None)
        return inputs.token_set(subject, model, on_file)


@dataclass(frozen=True)
class Given(Texts):
    """What a model reads, which may be a text of the command line."""

    prompt: options.Prompt = None

    def check(self) -> None:
        super().check()
        if self.prompt is not None and self.sequences not in (None, 1):
            raise InputError(f"one text is one sequence, not {self.sequences}; give a file of texts, --text FILE")


@dataclass(frozen=True)
class Loading:
    """How a command loads its model."""

    encoder: options.Encoder = None
    dtype: options.Dtype = None
    device_map: options.DeviceMap = None

    def subject(self, model: str, dtype: str = Dtype.FLOAT32) -> "Subject":
        """The model of that name or folder, which computes in `dtype` unless --dtype says otherwise."""
        from ..backends.encoder import encoder_input
        from ..backends.load import load

        given = {each.name: getattr(self, each.name) for each in fields(self)}
        encoder = None if self.encoder is None else encoder_input(self.encoder)
        return load(model, **given | {"dtype": self.dtype or dtype, "encoder": encoder})


@dataclass(frozen=True)
class LoadingIn(Loading):
    """How a command loads its model, in a backend that the user chooses."""

    backend: Annotated[
        Literal["huggingface", "nnsight", "transformer_lens"],
        option("huggingface, nnsight or transformer_lens.", metavar="NAME", show_default=False),
    ] = "huggingface"
    beyond_context: options.BeyondContext = False


@dataclass(frozen=True)
class Written:
    """In which form a command answers: what it prints, and the files that it writes."""

    format: options.Format = None
    save: Annotated[Path | None, file("Write the answer and its tables: .json.", "--save", ".json")] = None
    out: Annotated[Path | None, file("Write a page: .html.", "--out", *PAGES)] = None
    force: options.Force = False

    def check(self, *reads: Path | str | None) -> None:
        """Raises InputError unless each file can be written, and is none that the command reads."""
        check_outputs(self.force, self.save, self.out, reads=reads)

    def answer_files(
        self, answer: str, tables: "Sequence[Table]", page: Callable[[], str], more: Mapping[str, Any] = {}
    ) -> tuple[Wanted, Wanted]:
        """An answer with its tables and what else it holds, as JSON; and its page."""
        plain = {"answer": answer, "tables": [table.to_dict() for table in tables], **more}
        return (self.save, lambda: plain), (self.out, page)


@dataclass(frozen=True)
class WrittenTable(Written):
    """In which form a command writes one table, and its figure."""

    save: options.SavedTable = None
    out: options.Drawing = None

    def table_files(self, what: "Table | Report", page: Callable[[], str]) -> tuple[Wanted, Wanted]:
        """A table, or a report; and its page, or its figure, as the ending of the file says."""
        from ..pages.report import PAGES, content

        drawn = page if suffix_of(self.out) in PAGES else partial(content, what, suffix_of(self.out))
        return (self.save, partial(content, what, suffix_of(self.save))), (self.out, drawn)
