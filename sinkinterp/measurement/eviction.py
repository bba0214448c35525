"""How many first tokens a cache must keep: the loss without them, what each head loses, and heavy hitters instead."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..backends.huggingface import HuggingFaceSubject
from ..data.progress import Progress, silent
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.columns import Evict
from ..interventions.edit import Edit
from ..interventions.heavy_hitters import First, KeepHeaviest
from ..metrics.bootstrap import BY_SEQUENCE, Estimate, estimate, estimate_cells
from ..metrics.loss import next_token_loss
from ..report.caches import (
    ADDED,
    CACHE,
    CONTROL,
    FEWEST,
    KEPT,
    PLACES,
    WINDOW,
    heads_figure,
    losses_figure,
    memory_figure,
)
from ..report.columns import HEAD, LAYER
from ..table import Cell, Table
from .inputs import passes
from .streaming import Loss, streaming_loss

FIRST_TOKENS = (0, 1, 2, 4, 8)
NATS = "nats a token after eviction begins"
ENOUGH = 0.01  # nats a token that more first tokens may still gain
IN_TEXT, IN_CACHE = "of the text", "of the cache"
Added = Float[Tensor, " sequence"]  # nats a token above the full cache, after eviction has begun


@dataclass(frozen=True)
class Losses:
    """The loss that every cache adds, by window, positions and first tokens kept; and why others are missing."""

    added: dict[tuple[int, str, int], Added]
    control: dict[tuple[int, int], Added]  # by window and random tokens kept
    missing: str
    note: str


def loss_of(subject: HuggingFaceSubject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Loss:
    """Next-token loss of texts in one pass each, in nats."""
    batches = (batch for _, batch in passes(subject, tokens.to(subject.device)))
    return torch.cat([next_token_loss(subject.run(batch, edits=edits).logits, batch).cpu() for batch in batches])


def first_token_losses(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    windows: Sequence[int],
    kept: Sequence[int] = FIRST_TOKENS,
    progress: Progress = silent,
) -> Losses:
    """The loss that a rolling cache adds to the full one, for every window and number of first tokens.

    Positions of the text are a mask in one pass; positions of the cache are StreamingLLM's re-rotation, token by token.
    The control keeps as many random tokens, never the first. Raises InputError where a window evicts nothing.
    """
    length = tokens.shape[1]
    if max(windows) >= length - 1:
        raise InputError(f"a window of {max(windows)} evicts nothing of {length} tokens; use narrower windows")
    full, show = loss_of(subject, tokens), progress("evicting first tokens")
    added, control, missing = {}, {}, ""
    places = [(window, n) for window in windows for n in kept if n < window]
    for done, (window, n) in enumerate(places):
        show(done, len(places))
        above = partial(_above, full, window)
        added[window, IN_TEXT, n] = above(loss_of(subject, tokens, [Evict(window, n)]))
        if n:
            control[window, n] = above(loss_of(subject, tokens, [KeepHeaviest(window, n, First.EVICTED, seed=0)]))
        try:
            rolled = streaming_loss(subject, tokens, window=window, sinks=n, rerotate=True)
            added[window, IN_CACHE, n] = above(rolled)
        except InputError as error:  # learned positions, for one, cannot be re-rotated
            missing = str(error)
    return Losses(added, control, missing, _note(subject, tokens))


def losses_table(losses: Losses) -> Table:
    """One row per window, positions and number of first tokens."""
    rows: list[dict[str, Cell]] = []
    for (window, places, n), added in losses.added.items():
        random = losses.control.get((window, n))
        cells = estimate_cells(CONTROL, estimate(random)) if random is not None else _empty(CONTROL)
        rows.append({WINDOW: window, PLACES: places, KEPT: n, **estimate_cells(ADDED, estimate(added)), **cells})
    missing = f"; no positions of the cache: {losses.missing}" if losses.missing else ""
    note = (
        f"{losses.note}; {NATS}; null: 0, the full cache; control: as many random tokens kept, not the first{missing}"
    )
    return Table("What does a cache lose without its first tokens?", note, tuple(rows), losses_figure)


def recommendation(losses: Losses) -> str:
    """How many first tokens to keep, in one sentence: the fewest beside which more gain less than `ENOUGH`."""
    window = max(window for window, _, _ in losses.added)
    by_kept = {n: added for (w, places, n), added in losses.added.items() if (w, places) == (window, IN_TEXT)}
    fewest = min(
        n for n, added in by_kept.items() if all(_upper(added - by_kept[m]) < ENOUGH for m in by_kept if m > n)
    )
    none, there = (_signed(estimate(by_kept[n])) for n in (0, fewest))
    tokens = "1 first token" if fewest == 1 else f"{fewest or 'no'} first tokens"
    without = f", and without any by {none}" if fewest else ""
    return (
        f"Keep {tokens}: a window of {window} then raises the loss by {there} nats a token over the full cache"
        f"{without}; more first tokens gain less than {ENOUGH:g}."
    )


def heads_table(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    window: int,
    tolerance: float = 0.1,
    kept: Sequence[int] = FIRST_TOKENS,
) -> Table:
    """The fewest first tokens with which each head's output stays within `tolerance` of that from all keys.

    The error is the length of the change over the length of the output, root mean square over the queries from
    `window` on, mean over texts; queries, keys and values are those of the full cache. The control keeps one random
    token instead of the first.
    """
    fitting = [n for n in kept if n < window]
    edits = [*(Evict(window, n) for n in fitting), KeepHeaviest(window, 1, First.EVICTED, seed=0)]
    read = partial(_output_errors, edits=edits, window=window)
    runs = [subject.run(batch, calls={"errors": read}).calls["errors"].cpu() for _, batch in passes(subject, tokens)]
    errors = torch.cat(runs)  # sequence layer head edit
    rows: list[dict[str, Cell]] = []
    for i, layer in enumerate(subject.shape.attention_layers):
        for head in range(subject.shape.n_heads):
            means = errors[:, i, head].nanmean(0).tolist()
            fewest = next((n for n, error in zip(fitting, means, strict=False) if error <= tolerance), None)
            cells: dict[str, Cell] = {f"error with {n}": error for n, error in zip(fitting, means, strict=False)}
            rows.append({LAYER: layer, HEAD: head, FEWEST: fewest, **cells, "control error with 1": means[-1]})
    note = f"{_note(subject, tokens)}; window {window}; tolerance {tolerance:g}; control: 1 random token, not the first"
    return Table("How many first tokens does each head need?", note, tuple(rows), heads_figure)


def needs_table(heads: Table) -> Table:
    """How many heads need how many first tokens."""
    needed = heads.column(FEWEST)
    counts = [(n, needed.count(n)) for n in sorted({n for n in needed if n is not None}, key=float)]
    rows: list[dict[str, Cell]] = [
        {FEWEST: str(n), "heads": count, "share": count / len(needed)} for n, count in counts
    ]
    rows.append({FEWEST: "more", "heads": needed.count(None), "share": needed.count(None) / len(needed)})
    return Table(heads.title, heads.note, tuple(rows))


def memory_table(subject: HuggingFaceSubject, tokens: Tokens, window: int, progress: Progress = silent) -> Table:
    """What caches of equal memory lose: last, heavy and random tokens, each with the first token and without."""
    half = window // 2
    rules: list[tuple[str, Edit]] = [
        ("last tokens only", Evict(window, 0)),
        ("the first + last", Evict(window, 1)),
        ("heavy hitters + last", KeepHeaviest(window, half)),
        ("heavy hitters, the first kept", KeepHeaviest(window, half, First.KEPT)),
        ("heavy hitters, the first evicted", KeepHeaviest(window, half, First.EVICTED)),
        ("random tokens, the first kept", KeepHeaviest(window, half, First.KEPT, seed=0)),
        ("random tokens, the first evicted", KeepHeaviest(window, half, First.EVICTED, seed=0)),
    ]
    full, show, rows = loss_of(subject, tokens), progress("heavy hitters"), []
    for done, (name, edit) in enumerate(rules):
        show(done, len(rules))
        added = _above(full, window, loss_of(subject, tokens, [edit]))
        rows.append({CACHE: name, **estimate_cells(ADDED, estimate(added))})
    note = (
        f"{_note(subject, tokens)}; {NATS}; {window} tokens in every cache, half of them heavy or random; positions "
        "of the text; null: 0, the full cache; weight of a key: softmax attention received while cached, summed "
        "(arXiv:2306.14048)"
    )
    return Table("Heavy hitters with and without the first token", note, tuple(rows), memory_figure)


def _output_errors(call: AttentionCall, edits: Sequence[Edit], window: int) -> Float[Tensor, "batch head edit"]:
    full = call.output()[..., window:, :].float()
    outputs = torch.stack([edit.call(call).output()[..., window:, :].float() for edit in edits], -3)
    return (outputs - full[..., None, :, :]).norm(dim=(-2, -1)) / full.norm(dim=(-2, -1))[..., None]


def _above(full: Loss, window: int, loss: Loss) -> Added:
    return (loss - full)[:, window:].mean(1)


def _upper(added: Added) -> float:
    """The upper end of the interval of a mean, or the mean where there is none."""
    found = estimate(added)
    return found.mean if len(added) < 2 else found.high


def _signed(value: Estimate) -> str:
    return f"{value.mean:+.3f}" + (f" [{value.low:.3f}, {value.high:.3f}]" if value.low == value.low else "")


def _empty(column: str) -> dict[str, Cell]:
    return dict.fromkeys((column, f"{column} low", f"{column} high"))


def _note(subject: HuggingFaceSubject, tokens: Tokens) -> str:
    n, length = tokens.shape
    firsts = tokens[:, 0].unique().tolist()
    start = f"all begin with token {firsts[0]}" if len(firsts) == 1 else "first tokens differ"
    dtype = str(subject.dtype).removeprefix("torch.")
    return f"{subject.name}: n={n}, T={length}, {start}, {dtype}; {BY_SEQUENCE}"
