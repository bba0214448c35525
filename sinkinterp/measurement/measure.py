"""measure: from tokens to a report. The one place where subjects, metrics and edits meet."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..attention import Edit, Unchanged, called, metric as named, per_sequence
from ..backends.patched import with_block_edits
from ..backends.subject import Subject
from ..checks import InputError, choice, different_numbers, instance_of, keywords, nearest
from ..data.choices import Bos, Dtype
from ..data.progress import OnProgress, progress_of
from ..data.tokens import Tokens, TokenSet, TokensLike
from ..interventions.edit import Edits, edits_of
from ..metrics.importance import (
    PAPER,
    RELEASED,
    VISIBLE,
    AnyMetric,
    Convention,
    LogitsMetric,
    Metric,
    check_epsilon,
    queries_from,
)
from ..metrics.instruments import INSTRUMENTS, Instruments, core_fields, core_metrics, hides_first_key
from ..report.readings import EXTRA, Protocol
from ..report.report import Report
from .inputs import ModelLike, check_fits, inputs_of, passes, protocol_of


@dataclass(frozen=True)
class Preset:
    """How to measure: T, n, BOS, epsilon, the type of weights and activations, and how importance is averaged."""

    length: int = 64
    sequences: int = 100
    bos: Bos = Bos.TOKENIZER
    epsilon: float = 0.3
    dtype: str = "float32"
    convention: Convention = VISIBLE

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.dtype not in list(Dtype):
            raise InputError(f"{self.dtype!r} is not a dtype that models run in; use {', '.join(Dtype)}")


PRESETS = {
    # Gu et al. 2025, sections 3.2 and 3.3: the definition, without BOS
    "paper": Preset(bos=Bos.NEVER, convention=PAPER),
    # the release's script for models of the Hub: BOS as the tokenizer adds it, in fp32
    "released-open-models": Preset(convention=Convention("T - k + 1, all queries", queries_from)),
    # the release's script for its own models: no BOS, weights and the comparison with epsilon in bfloat16
    "released-own-models": Preset(bos=Bos.NEVER, epsilon=0.30078125, dtype="bfloat16", convention=RELEASED),
}


def preset_of(name: str | None) -> Preset:
    """The preset of that name; the default where `name` is None. Raises InputError for an unknown name."""
    return Preset() if name is None else choice(name, PRESETS, "preset")


Answers = dict[str, Tensor]  # by the name of the metric


@keywords
@with_block_edits
def measure(  # noqa: PLR0913  everything that a measurement takes
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    column: str = "text",
    edits: Edits = (),
    positions: int | Sequence[int] | None = None,
    instruments: Instruments = (),
    convention: Convention = VISIBLE,
    progress: bool | OnProgress = True,
) -> Report:
    """The report of a model on some tokens, with `edits`, one or several, applied while it runs.

    `model` is a subject, or what `load` makes one of: a name, a path, a model in memory. `tokens` are a text, a list of
    texts (each a sequence of its own length; `subject.tokens` cuts them to one length), a chat, a file or folder of
    texts, ids in lists, arrays or tensors (`sequence pos`, or `pos`), what a tokenizer returned, or a TokenSet; by
    default the first 100 docstrings that `sinkinterp measure` reads. A string is a file if that exists, a dataset of
    the Hub if it looks like OWNER/NAME, else a text. `column` holds the texts of a file. `positions` (from 0; default
    all) are those whose importance is measured: one costs a column per head, all cost a second pass over the keys in
    blocks. Neither keeps a T x T map. `instruments` are measured beside importance and norms. `convention` says what
    importance is divided by. `progress` shows a bar where it takes over two seconds, or is a function that takes how
    many sequences are done, of how many. Padding is left out where an attention mask marks it. Raises InputError for
    whatever does not fit, and for activations that are not finite.
    """
    subject, token_set = inputs_of(model, tokens, column)
    given_edits = edits_of(edits)
    instance_of(convention, Convention, "convention is one of sinkinterp.metrics.importance: PAPER, VISIBLE")
    metrics = _distinct_metrics(instruments)
    length = subject.n_keys or token_set.tokens.shape[1]
    chosen = (
        torch.arange(length)
        if positions is None
        else torch.tensor(sorted(different_numbers(positions, "positions", 0, length - 1)))
    )
    check_fits(subject, token_set.tokens, len(chosen))

    def metrics_at(length: int) -> Sequence[AnyMetric]:
        return (*core_metrics(chosen[chosen < (subject.n_keys or length)], convention), *metrics)

    with progress_of(progress, f"measuring {subject.name}") as on_batch:
        answers = _answers_of_all(subject, token_set, metrics_at, given_edits, on_batch)
    return Report(
        tokens=token_set.tokens.cpu(),
        positions=tuple(chosen.tolist()),
        attention_layers=subject.shape.attention_layers,
        protocol=protocol_of(subject, token_set, given_edits, convention, hides_first_key(answers)),
        extras={metric.name: answers[metric.name] for metric in metrics},
        **core_fields(answers),
    )


def _answers_of_all(
    subject: Subject,
    token_set: TokenSet,
    metrics_at: Callable[[int], Sequence[AnyMetric]],
    edits: Sequence[Edit],
    on_batch: OnProgress,
) -> Answers:
    """The answers of all sequences in their order; `metrics_at` gives the metrics for sequences of a length."""
    parts: list[Answers] = []
    measured: list[Tensor] = []
    for edit in edits:
        edit.check_sequences(len(token_set.tokens))
    for rows, batch in _batches(subject, token_set):
        edits_of_rows = [edit.for_sequences(rows) for edit in edits]
        parts.append(_answers(subject, batch, metrics_at(batch.shape[1]), edits_of_rows))
        measured.append(rows.cpu())
        on_batch(sum(map(len, measured)), len(token_set.tokens))
    in_order = torch.cat(measured).argsort()
    return {name: _joined([part[name] for part in parts])[in_order] for name in parts[0]}


def _batches(subject: Subject, token_set: TokenSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences of one length that fit in memory, with their rows in the token set."""
    for rows, tokens in token_set.groups():
        for part, batch in passes(subject, tokens):
            yield rows[part], batch


def _answers(subject: Subject, batch: Tokens, metrics: Sequence[AnyMetric], edits: Sequence[Edit]) -> Answers:
    """Returns what one forward pass answered, sequence first."""
    reads = {metric.name: metric.site.read(metric.read) for metric in metrics if isinstance(metric, Metric)}
    of_logits = [metric for metric in metrics if isinstance(metric, LogitsMetric)]
    trace = subject.run(batch, reads=reads, edits=edits, logits=bool(of_logits))
    logits = {
        metric.name: _read_logits(metric, trace.logits, batch.to(trace.logits.device, copy=True))
        for metric in of_logits
    }
    return {name: value.cpu() for name, value in (trace.answers | logits).items()}


def _read_logits(metric: LogitsMetric, logits: Tensor, tokens: Tokens) -> Tensor:
    who = named(metric.name)
    answer = Unchanged((logits, tokens)).shown_to(lambda shown: called(metric.read, who, *shown), who)
    return per_sequence(answer, len(tokens), who)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Answers of all sequences. If sequences differ in length, so do axes: those of shorter ones end in NaN."""
    longest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    if all(list(part.shape[1:]) == longest for part in parts):
        return torch.cat(list(parts))
    return torch.cat([_padded(part, longest) for part in parts])


def _padded(part: Tensor, sizes: Sequence[int]) -> Tensor:
    missing = [size - has for size, has in zip(sizes, part.shape[1:], strict=True)]
    return torch.nn.functional.pad(part, [n for size in reversed(missing) for n in (0, size)], value=torch.nan)


def _distinct_metrics(instruments: Any) -> tuple[AnyMetric, ...]:
    """All metrics of the instruments, each once. Raises InputError where two have one name, or a report's own."""
    by_name: dict[str, AnyMetric] = {}
    taken = {metric.name for metric in core_metrics(torch.arange(0), VISIBLE)} | {
        field.name for field in fields(Report)
    }
    for metric in _metrics_in(instruments):
        instance_of(metric.name or None, str, "a metric's name is a text")
        if metric.name in taken or by_name.setdefault(metric.name, metric) != metric:
            raise InputError(f"two metrics are named {metric.name!r}; give the instrument's metric another name")
    return tuple(by_name.values())


def _metrics_in(instruments: Any) -> Iterator[AnyMetric]:
    """The metrics of one instrument or of several. Raises InputError for what is not an instrument."""
    if isinstance(instruments, AnyMetric):
        yield instruments
    elif isinstance(instruments, list | tuple):
        for part in instruments:
            yield from _metrics_in(part)
    else:
        raise InputError(
            f"{instruments!r:.40} is not an instrument{nearest(instruments, INSTRUMENTS)}; "
            f"give si.measurement.instruments.NAME, and for NAME one of ALL, {', '.join(INSTRUMENTS)}"
        )


WIDTH = 0.05  # of the 95% interval of Sink_1: 2.5 points of a hundred to both sides of the middle
STAGES = (32, 64)  # sequences after which the width is looked at; few looks, since each may end by luck


def measure_enough(
    first: Callable[[int], TokenSet], measured: Callable[[TokenSet, str], Report], most: int, epsilon: float = 0.3
) -> Report:
    """The report of 32, of 64 or of `most` sequences: of the fewest whose Sink_1 has an interval of at most `WIDTH`.

    `first(n)` gives the first n sequences, all of one length. `measured` makes the report of a token set; it is also
    told why these are measured. No sequence is measured twice. The protocol says where a measurement ended and by which
    rule. Intervals of a fixed width by sequential looks: Chow and Robbins 1965 (doi:10.1214/aoms/1177700156). Looking
    costs a little: in simulations of sequences whose shares of heads are normal, these intervals cover the truth in 91
    to 94% of 1,500 draws, those of a fixed n=100 in 93 to 95%.
    """
    report: Report | None = None
    for done, n in pairwise((0, *_stages(most))):
        token_set = first(n)
        part = measured(replace(token_set, tokens=token_set.tokens[done:]), _reason(report, epsilon))
        protocol = _protocol_of_all(part.protocol, token_set, report, "")
        report = replace(part, protocol=protocol) if report is None else _reports_joined(report, part, protocol)
        if n < most and _interval_width(report, epsilon) <= WIDTH:
            rule = f"of {most}: Sink_1's interval is at most {WIDTH} wide"
            return replace(report, protocol=replace(protocol, ended=rule))
    assert report is not None
    return report


def _stages(most: int) -> Iterator[int]:
    yield from (n for n in STAGES if n < most)
    yield most


def _interval_width(report: Report, epsilon: float) -> float:
    sink = report.sink(0, epsilon)
    return sink.high - sink.low


def _reason(report: Report | None, epsilon: float) -> str:
    return "" if report is None else f", since Sink_1 is known to {_interval_width(report, epsilon):.2f} only"


def _protocol_of_all(made: Protocol, token_set: TokenSet, before: Report | None, ended: str) -> Protocol:
    """The protocol of all sequences so far, from that of the last part."""
    hides_first_key = made.hides_first_key or (before is not None and before.protocol.hides_first_key)
    return replace(made, sequences=len(token_set.tokens), hides_first_key=hides_first_key, ended=ended)


def _reports_joined(before: Report, part: Report, protocol: Protocol) -> Report:
    """The sequences of two reports, in one."""
    tensors = {name: torch.cat((value, part.tensors()[name])) for name, value in before.tensors().items()}
    own: dict[str, Any] = {name: value for name, value in tensors.items() if not name.startswith(EXTRA)}
    extras = {name: tensors[EXTRA + name] for name in before.extras}
    return replace(before, **own, extras=extras, protocol=protocol)
