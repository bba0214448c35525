"""measure: from tokens to a report. The one place where subjects, reads and metrics meet."""

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from importlib.metadata import version

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..backends.subject import CallRead, Subject
from ..data.tokens import TokenSet
from ..errors import InputError
from ..interventions.description import description
from ..interventions.edit import Edit
from ..metrics import nulls, sink
from ..metrics.norms import norms
from .batching import sequences_per_pass
from .instruments import Instrument
from .provenance import Protocol
from .report import Report

Tokens = Int[Tensor, "sequence pos"]
OnBatch = Callable[[int, int], None]
OWN = ("importances", "nulls", *(field.name for field in fields(Report)))  # names that no instrument may take
Answers = dict[str, Tensor]


def measure(
    subject: Subject,
    tokens: Tokens | TokenSet,
    *,
    edits: Sequence[Edit] = (),
    positions: Sequence[int] | None = None,
    instruments: Sequence[Instrument] = (),
    convention: sink.Convention = sink.VISIBLE,
    on_batch: OnBatch = lambda done, of: None,
) -> Report:
    """The report of `subject` on `tokens` (`sequence pos`), with `edits` applied while it runs.

    `positions` (from 0; default all) are those whose importance is wanted: one costs a column per head, all cost a
    second pass over the keys in blocks. No T x T map is kept either way. `instruments` are taken along beside
    importance and norms. `convention` says what importance is divided by. Padded tokens go in as
    `TokenSet.of(tokens, attention_mask=mask)`: they run without their padding. Raises InputError for tokens or
    positions that do not fit, and for activations that are not finite.
    """
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    _check(token_set.tokens, instruments)
    n, length = token_set.tokens.shape
    chosen = torch.arange(length) if positions is None else torch.tensor(_inside(positions, length))
    parts: list[Answers] = []
    order: list[Tensor] = []
    for rows, batch in _batches(subject, token_set):
        reads = _reads(chosen[chosen < batch.shape[1]], convention)
        parts.append(_answers(subject, batch, reads, instruments, [edit.for_rows(rows) for edit in edits]))
        order.append(rows.cpu())
        on_batch(sum(map(len, order)), n)
    back = torch.cat(order).argsort()
    whole = {name: _joined([part[name] for part in parts])[back] for name in parts[0]}
    slot, slot_null = whole.pop("slot_importance"), whole.pop("slot_null")
    has_slot = bool(slot_null.any())
    importance, raw_importance = (alpha.contiguous() for alpha in whole.pop("importances").unbind(2))
    null, bias_null = (alpha.contiguous() for alpha in whole.pop("nulls").unbind(2))
    names = dict.fromkeys(name for instrument in instruments for name in _names(instrument))
    extras = {name: whole.pop(name) for name in names}
    return Report(
        tokens=token_set.tokens.cpu(),
        positions=tuple(chosen.tolist()),
        attention_layers=subject.shape.attention_layers,
        protocol=_protocol(subject, token_set, edits, convention),
        importance=importance,
        raw_importance=raw_importance,
        null=null,
        bias_null=bias_null,
        slot_importance=slot if has_slot else None,
        slot_null=slot_null if has_slot else None,
        extras=extras,
        **whole,
    )


def attention_maps(
    subject: Subject, tokens: Tokens, edits: Sequence[Edit] = ()
) -> Float[Tensor, "layer head query column"]:
    """Mean pattern over sequences, proxy scores where rows do not sum to one; the slot's column first. For small T."""
    trace = subject.run(tokens, calls={"pattern": lambda call: sink.proxy(call).pattern()}, edits=edits)
    return trace.calls["pattern"].mean(0)


def _batches(subject: Subject, token_set: TokenSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Equally long sequences, as many as fit in memory, with their rows in the token_set."""
    for rows, tokens in token_set.groups():
        size = sequences_per_pass(subject, tokens.shape[1])
        yield from zip(rows.split(size), tokens.split(size), strict=True)


def _answers(
    subject: Subject,
    batch: Tokens,
    reads: dict[str, CallRead],
    instruments: Sequence[Instrument],
    edits: Sequence[Edit],
) -> Answers:
    """What one forward pass answered, sequence first."""
    calls, residuals = reads, {"residual_norms": norms}
    for instrument in instruments:
        calls = calls | dict(instrument.calls)
        residuals = residuals | dict(instrument.residuals)
    trace = subject.run(batch, calls=calls, residuals=residuals, edits=edits)
    readers = {name: read for one in instruments for name, read in one.logits.items()}
    logits = {name: read(trace.logits, batch.to(trace.logits.device)) for name, read in readers.items()}
    return {name: value.cpu() for name, value in (trace.calls | trace.residuals | logits).items()}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Answers of all sequences; where lengths differ, so do their last axes, and the shorter end in NaN."""
    longest = max(part.shape[-1] for part in parts)
    if all(part.shape[-1] == longest for part in parts):
        return torch.cat(list(parts))
    pad = torch.nn.functional.pad
    return torch.cat([pad(part, (0, longest - part.shape[-1]), value=torch.nan) for part in parts])


def _names(instrument: Instrument) -> tuple[str, ...]:
    return (*instrument.calls, *instrument.residuals, *instrument.logits)


def _reads(positions: Tensor, convention: sink.Convention) -> dict[str, CallRead]:
    def at_positions(read: Callable[[AttentionCall, Tensor, sink.Convention], Tensor]) -> CallRead:
        return lambda call: read(call, positions.to(call.k.device), convention)  # every layer may be on another device

    return {
        "importances": at_positions(sink.importances),
        "nulls": at_positions(nulls.nulls),
        "slot_importance": sink.slot_importance,
        "slot_null": nulls.uniform_slot_importance,
        "off_sequence": sink.off_sequence,
        "key_norms": lambda call: norms(call.k),
        "value_norms": lambda call: norms(call.v),
    }


def _check(tokens: Tokens, instruments: Sequence[Instrument]) -> None:
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.shape[1] < 2 or not len(tokens):
        raise InputError(f"tokens are whole numbers, `sequence pos`, at least 1 x 2; got {tuple(tokens.shape)}")
    reads: dict[str, Callable[..., Tensor]] = {}
    for instrument in instruments:
        for name, read in (instrument.calls | instrument.residuals | instrument.logits).items():
            if name in OWN or reads.setdefault(name, read) is not read:
                raise InputError(f"two reads are named {name!r}; give the instrument's read another name")


def _inside(positions: Sequence[int], length: int) -> list[int]:
    outside = [p for p in positions if not 0 <= p < length]
    if outside or not positions:
        raise InputError(f"positions count from 0 to {length - 1} in sequences of {length}; got {list(positions)}")
    return sorted(set(positions))


def _protocol(subject: Subject, token_set: TokenSet, edits: Sequence[Edit], convention: sink.Convention) -> Protocol:
    packages = ("sinkinterp", "torch", "transformers", *subject.libraries)
    n, length = token_set.tokens.shape
    return Protocol(
        subject.name, n, length, str(subject.dtype).removeprefix("torch."), token_set.bos, token_set.source,
        token_set.sha256, token_set.too_short, tuple(map(description, edits)), convention.words, subject.revision,
        {"python": platform.python_version()} | {name: version(name) for name in packages},
        None if token_set.lengths is None else int(token_set.lengths.min()),
    )  # fmt: skip
