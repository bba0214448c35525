"""How many first tokens a cache must keep: the loss without them, what each head loses, and heavy hitters instead."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.sites import Edit
from ..backends.huggingface import HuggingFaceSubject
from ..checks import different_numbers, finite_number
from ..data.progress import Progress, silent, told
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.columns import Evict, First, KeepHeaviest
from ..measurement.inputs import passes, reads_inputs, run_note
from ..metrics.bootstrap import intervals, mean_cells
from ..metrics.metric import PerSequence
from ..report.columns import HEAD, LAYER
from ..table import Cell, Table
from .cache_tables import ADDED, CACHE, FEWEST, IN_CACHE, IN_TEXT, NATS, PAIRED, Losses, heads_figure, memory_figure
from .streaming import Loss, check_window, loss_of, streaming_loss

FIRST_TOKENS = (0, 1, 2, 4, 8)
FIRST_AND_LAST = "the first + last"


@reads_inputs
def first_token_losses(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    windows: Sequence[int],
    kept: Sequence[int] = FIRST_TOKENS,
    progress: Progress = silent,
) -> Losses:
    """The loss that a rolling cache adds to the full one, for every window and number of first tokens.

    Positions of the text are a mask in one pass; positions of the cache are StreamingLLM's re-rotation, token by token.
    The control keeps as many random tokens, never the first. Without any first token is always tried. Raises InputError
    where a window evicts nothing.
    """
    kept = sorted({0, *different_numbers(kept, "kept, numbers of first tokens,", 0)})
    windows = different_numbers(windows, "windows", 1)
    for window in windows:
        check_window(tokens, window)
    full, added, control, missing = loss_of(subject, tokens), {}, {}, ""
    places = [(window, n) for window in windows for n in kept if n < window]
    for window, n in told(places, progress("evicting first tokens")):
        above = partial(_above, full, window)
        added[window, IN_TEXT, n] = above(loss_of(subject, tokens, [Evict(window, n)]))
        control[window, n] = above(loss_of(subject, tokens, [KeepHeaviest(window, n, First.EVICTED, seed=0)]))
        try:
            added[window, IN_CACHE, n] = above(streaming_loss(subject, tokens, window=window, sinks=n, rerotate=True))
        except InputError as error:  # learned positions, for one, cannot be re-rotated
            missing = str(error)
    return Losses(added, control, missing, _note(subject, tokens))


@reads_inputs
def heads_table(
    subject: HuggingFaceSubject, tokens: Tokens, window: int, tolerance: float = 0.1, kept: Sequence[int] = FIRST_TOKENS
) -> Table:
    """The fewest first tokens with which each head's output stays within `tolerance` of that from all keys.

    The error is the length of the change over the length of the output, root mean square over the queries from
    `window` on, mean over texts; queries, keys and values are those of the full cache. The control keeps one random
    token instead of the first.
    """
    check_window(tokens, window)
    if finite_number(tolerance, "tolerance") <= 0:
        raise InputError(f"tolerance is a share of an output's length, above 0; got {tolerance}")
    fitting = [n for n in different_numbers(kept, "kept, numbers of first tokens,", 0) if n < window]
    edits = [*(Evict(window, n) for n in fitting), KeepHeaviest(window, 1, First.EVICTED, seed=0)]
    read = partial(_output_errors, edits=edits, window=window)
    runs = [subject.run(batch, reads={"errors": read})["errors"].cpu() for _, batch in passes(subject, tokens)]
    rows: list[dict[str, Cell]] = []
    for layer, heads in zip(subject.shape.attention_layers, torch.cat(runs).nanmean(0).tolist(), strict=True):
        for head, (*errors, control) in enumerate(heads):
            by_kept = dict(zip(fitting, errors, strict=True))
            fewest = next((n for n, error in by_kept.items() if error <= tolerance), None)
            cells = {f"error with {n}": error for n, error in by_kept.items()}
            rows.append({LAYER: layer, HEAD: head, FEWEST: fewest, **cells, "control error with 1": control})
    note = f"{_note(subject, tokens)}; window {window}; tolerance {tolerance:g}; control: 1 random token, not the first"
    return Table("How many first tokens does each head need?", note, tuple(rows), heads_figure)


@reads_inputs
def memory_table(subject: HuggingFaceSubject, tokens: Tokens, window: int, progress: Progress = silent) -> Table:
    """What caches of equal memory lose: last, heavy and random tokens, each with the first token and without."""
    check_window(tokens, window)
    half = window // 2
    rules: dict[str, Edit] = {
        "last tokens only": Evict(window, 0),
        FIRST_AND_LAST: Evict(window, 1),
        "heavy hitters + last": KeepHeaviest(window, half),
        "heavy hitters, the first kept": KeepHeaviest(window, half, First.KEPT),
        "heavy hitters, the first evicted": KeepHeaviest(window, half, First.EVICTED),
        "random tokens, the first kept": KeepHeaviest(window, half, First.KEPT, seed=0),
        "random tokens, the first evicted": KeepHeaviest(window, half, First.EVICTED, seed=0),
    }
    full, added = loss_of(subject, tokens), {}
    for name in told([*rules], progress("heavy hitters")):
        added[name] = _above(full, window, loss_of(subject, tokens, [rules[name]]))
    rows = [
        {CACHE: name, **mean_cells(ADDED, x), **mean_cells(PAIRED, x - added[FIRST_AND_LAST])}
        for name, x in added.items()
    ]
    note = (
        f"{_note(subject, tokens)}; {NATS}; {window} tokens in every cache, half of them heavy or random; positions of "
        f"the text; null: 0, the full cache; {PAIRED}: paired, text by text; weight of a key: softmax attention "
        "received while cached, summed (arXiv:2306.14048)"
    )
    return Table("Heavy hitters with and without the first token", note, tuple(rows), memory_figure)


def _output_errors(call: AttentionCall, edits: Sequence[Edit], window: int) -> Float[Tensor, "batch head edit"]:
    full = call.output()[..., window:, :].float()
    outputs = torch.stack([edit.call(call).output()[..., window:, :].float() for edit in edits], -3)
    return (outputs - full[..., None, :, :]).norm(dim=(-2, -1)) / full.norm(dim=(-2, -1))[..., None]


def _above(full: Loss, window: int, loss: Loss) -> PerSequence:
    return (loss - full)[:, window:].mean(1)


def _note(subject: HuggingFaceSubject, tokens: Tokens) -> str:
    return f"{run_note(subject, tokens)}; {intervals(len(tokens))}"
