"""measure: from tokens to a report. The one place where subjects, metrics and edits meet."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

import torch
from jaxtyping import Float
from torch import Tensor

from ..backends.subject import Subject
from ..data.tokens import Tokens, TokenSet
from ..errors import InputError
from ..interventions.edit import Edit
from ..metrics.importance import VISIBLE, Convention, proxy
from ..metrics.metric import CallMetric, LogitsMetric, Metric, ResidualMetric
from .batching import passes
from .core_metrics import Core, core_metrics, hides_first_key
from .instruments import Instrument
from .provenance import protocol_of
from .report import Report

OnBatch = Callable[[int, int], None]
Answers = dict[str, Tensor]  # by the name of the metric


def measure(
    subject: Subject,
    tokens: Tokens | TokenSet,
    *,
    edits: Sequence[Edit] = (),
    positions: Sequence[int] | None = None,
    instruments: Sequence[Instrument] = (),
    convention: Convention = VISIBLE,
    on_batch: OnBatch = lambda done, of: None,
) -> Report:
    """The report of `subject` on `tokens` (`sequence pos`), with `edits` applied while it runs.

    `positions` (from 0; default all) are those whose importance is measured: one costs a column per head, all cost a
    second pass over the keys in blocks. Neither keeps a T x T map. `instruments` are measured beside importance and
    norms. `convention` says what importance is divided by. Give padded tokens as
    `TokenSet.of(tokens, attention_mask=mask)`: they run without their padding. Raises InputError for tokens or
    positions that do not fit, and for activations that are not finite.
    """
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    metrics = _distinct_metrics(instruments)
    _check_tokens(token_set.tokens)
    length = subject.n_keys or token_set.tokens.shape[1]
    chosen = torch.arange(length) if positions is None else torch.tensor(_inside(positions, length))

    def metrics_at(length: int) -> Sequence[Metric]:
        return (*core_metrics(chosen[chosen < (subject.n_keys or length)], convention), *metrics)

    answers = _answers_of_all(subject, token_set, metrics_at, edits, on_batch)
    return Report(
        tokens=token_set.tokens.cpu(),
        positions=tuple(chosen.tolist()),
        attention_layers=subject.shape.attention_layers,
        protocol=protocol_of(subject, token_set, edits, convention, hides_first_key(answers)),
        extras={metric.name: answers[metric.name] for metric in metrics},
        **vars(Core.of(answers)),
    )


def attention_maps(
    subject: Subject, tokens: Tokens, edits: Sequence[Edit] = ()
) -> Float[Tensor, "layer head query column"]:
    """Mean pattern over sequences, proxy scores where rows do not sum to one; the slot's column first. For small T."""
    trace = subject.run(tokens, calls={"pattern": lambda call: proxy(call).pattern()}, edits=edits)
    return trace.calls["pattern"].mean(0)


def _answers_of_all(
    subject: Subject,
    token_set: TokenSet,
    metrics_at: Callable[[int], Sequence[Metric]],
    edits: Sequence[Edit],
    on_batch: OnBatch,
) -> Answers:
    """The answers of all sequences in their order; `metrics_at` gives the metrics for sequences of a length."""
    parts: list[Answers] = []
    measured: list[Tensor] = []
    for rows, batch in _batches(subject, token_set):
        edits_of_rows = [edit.for_rows(rows) for edit in edits]
        parts.append(_answers(subject, batch, metrics_at(batch.shape[1]), edits_of_rows))
        measured.append(rows.cpu())
        on_batch(sum(map(len, measured)), len(token_set.tokens))
    in_order = torch.cat(measured).argsort()
    return {name: _joined([part[name] for part in parts])[in_order] for name in parts[0]}


def _batches(subject: Subject, token_set: TokenSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences of one length, as many as fit in memory, with their rows in the token set."""
    for rows, tokens in token_set.groups():
        for part, batch in passes(subject, tokens):
            yield rows[part], batch


def _answers(subject: Subject, batch: Tokens, metrics: Sequence[Metric], edits: Sequence[Edit]) -> Answers:
    """What one forward pass answered, sequence first."""
    calls = {metric.name: metric.read for metric in metrics if isinstance(metric, CallMetric)}
    residuals = {metric.name: metric.read for metric in metrics if isinstance(metric, ResidualMetric)}
    trace = subject.run(batch, calls=calls, residuals=residuals, edits=edits)
    logits = {
        metric.name: metric.read(trace.logits, batch.to(trace.logits.device))
        for metric in metrics
        if isinstance(metric, LogitsMetric)
    }
    return {name: value.cpu() for name, value in (trace.calls | trace.residuals | logits).items()}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Answers of all sequences. Where sequences differ in length, so do last axes: the shorter ones end in NaN."""
    longest = max(part.shape[-1] for part in parts)
    if all(part.shape[-1] == longest for part in parts):
        return torch.cat(list(parts))
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, longest - part.shape[-1]), value=torch.nan) for part in parts])


def _distinct_metrics(instruments: Sequence[Instrument]) -> tuple[Metric, ...]:
    """All metrics of the instruments, each once. Raises InputError where two have one name, or a report's own."""
    by_name: dict[str, Metric] = {}
    taken = {metric.name for metric in core_metrics(torch.arange(0), VISIBLE)} | {
        field.name for field in fields(Report)
    }
    for metric in (metric for instrument in instruments for metric in instrument):
        if metric.name in taken or by_name.setdefault(metric.name, metric) != metric:
            raise InputError(f"two metrics are named {metric.name!r}; give the instrument's metric another name")
    return tuple(by_name.values())


def _check_tokens(tokens: Tokens) -> None:
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.shape[1] < 2 or not len(tokens):
        raise InputError(f"tokens are whole numbers, `sequence pos`, at least 1 x 2; got {tuple(tokens.shape)}")


def _inside(positions: Sequence[int], length: int) -> list[int]:
    outside = [p for p in positions if not 0 <= p < length]
    if outside or not positions:
        raise InputError(f"positions count from 0 to {length - 1} in sequences of {length}; got {list(positions)}")
    return sorted(set(positions))
