"""measure: from tokens to a report. The one place where subjects, reads and metrics meet."""

import platform
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .adapters.subject import Subject
from .attention.call import AttentionCall
from .data.probes import Probe
from .errors import InputError
from .interventions.edit import Edit
from .metrics import sink
from .metrics.norms import norms
from .report import Protocol, Report

TOKENS_PER_PASS = 2048
Tokens = Int[Tensor, "sequence pos"]
OnBatch = Callable[[int, int], None]


def measure(
    subject: Subject,
    tokens: Tokens | Probe,
    *,
    edits: Sequence[Edit] = (),
    positions: Sequence[int] | None = None,
    on_batch: OnBatch = lambda done, of: None,
) -> Report:
    """The report of `subject` on `tokens` (`sequence pos`), with `edits` applied while it runs.

    `positions` (from 0; default all) are those whose importance is wanted: one costs a column per head, all cost a
    second pass over the keys in blocks. No T x T map is kept either way. Raises InputError for tokens or positions
    that do not fit, and for activations that are not finite.
    """
    probe = tokens if isinstance(tokens, Probe) else Probe.of(_checked(tokens))
    n, length = probe.tokens.shape
    chosen = torch.arange(length) if positions is None else torch.tensor(_inside(positions, length))
    reads = _reads(chosen.to(subject.device))
    parts: list[dict[str, Tensor]] = []
    for batch in probe.tokens.split(max(1, TOKENS_PER_PASS // length)):
        trace = subject.run(batch, calls=reads, residuals={"residual_norms": norms}, edits=edits)
        parts.append({name: value.cpu() for name, value in (trace.calls | trace.residuals).items()})
        on_batch(sum(len(part["residual_norms"]) for part in parts), n)
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    slot, slot_null = whole.pop("slot_importance"), whole.pop("slot_null")
    has_slot = bool(slot_null.any())
    importance, raw_importance = whole.pop("importances").unbind(2)
    return Report(
        positions=tuple(chosen.tolist()),
        attention_layers=subject.shape.attention_layers,
        protocol=_protocol(subject, probe, edits),
        importance=importance,
        raw_importance=raw_importance,
        slot_importance=slot if has_slot else None,
        slot_null=slot_null if has_slot else None,
        **whole,
    )


def attention_maps(
    subject: Subject, tokens: Tokens, edits: Sequence[Edit] = ()
) -> Float[Tensor, "layer head query column"]:
    """Mean pattern over sequences, proxy scores where rows do not sum to one; the slot's column first. For small T."""
    trace = subject.run(tokens, calls={"pattern": lambda call: sink.proxy(call).pattern()}, edits=edits)
    return trace.calls["pattern"].mean(0)


def _reads(positions: Tensor) -> dict[str, Callable[[AttentionCall], Tensor]]:
    return {
        "importances": partial(sink.importances, positions=positions),
        "null": partial(sink.uniform_importance, positions=positions),
        "slot_importance": sink.slot_importance,
        "slot_null": sink.uniform_slot_importance,
        "key_norms": lambda call: norms(call.k),
        "value_norms": lambda call: norms(call.v),
    }


def _checked(tokens: Tokens) -> Tokens:
    if tokens.ndim != 2 or tokens.is_floating_point() or tokens.shape[1] < 2 or not len(tokens):
        raise InputError(f"tokens are whole numbers, `sequence pos`, at least 1 x 2; got {tuple(tokens.shape)}")
    return tokens


def _inside(positions: Sequence[int], length: int) -> list[int]:
    outside = [p for p in positions if not 0 <= p < length]
    if outside or not positions:
        raise InputError(f"positions count from 0 to {length - 1} in sequences of {length}; got {list(positions)}")
    return list(positions)


def _protocol(subject: Subject, probe: Probe, edits: Sequence[Edit]) -> Protocol:
    packages = ("sinkinterp", "torch", "transformers", *subject.libraries)
    n, length = probe.tokens.shape
    return Protocol(
        subject.name, n, length, str(subject.dtype).removeprefix("torch."), probe.bos, probe.source,
        probe.sha256, probe.too_short, tuple(map(repr, edits)), "queries that can see the key",
        {"python": platform.python_version()} | {name: version(name) for name in packages},
    )  # fmt: skip
