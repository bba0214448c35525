"""Streaming perplexity: what a rolling cache loses of a long text, and how many sinks it needs (StreamingLLM)."""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.sites import Edit
from ..backends.huggingface import HuggingFaceSubject
from ..checks import different_numbers, whole_number
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.columns import Evict
from ..measurement.inputs import passes, reads_inputs, run_note
from ..metrics.bootstrap import estimate
from ..metrics.metric import next_token_loss, target_loss
from ..table import Cell, Table, high_of, low_of
from .rolling_cache import SinkCache, check_stream, streamed

ADDED, CACHE = "added loss", "cache"
Loss = Float[Tensor, "sequence token"]
OnProgress = Callable[[int, int], None]


def check_window(tokens: Tokens, window: int) -> None:
    """Raises InputError for a window that evicts nothing of these tokens, and for what is not a window."""
    if whole_number(window, "a window", 1) >= tokens.shape[1] - 1:
        raise InputError(
            f"a window of {window} evicts none of {tokens.shape[1]} tokens; narrow it, or give longer texts"
        )


@reads_inputs
def loss_of(subject: HuggingFaceSubject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Loss:
    """Next-token loss of texts, each read at once, in nats."""
    batches = (batch for _, batch in passes(subject, tokens.to(subject.device)))
    return torch.cat([next_token_loss(subject.run(batch, edits=edits).logits, batch).cpu() for batch in batches])


@reads_inputs
def streaming_loss(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    *,
    window: int,
    sinks: int,
    rerotate: bool = False,
) -> Loss:
    """Next-token loss of texts read through a cache of the first `sinks` and last `window - sinks` tokens, in nats.

    The window counts the token that is read, so the first `window` losses are those of full attention. Keys of deeper
    layers stay as they were made, from tokens that may have been evicted since: no token is read twice. Tokens keep
    the positions of the text; with `rerotate` they take those of their places in the cache (arXiv:2309.17453).
    Raises InputError for a model without such a cache, and for more tokens or a wider window than it has positions.
    """
    _check(subject, tokens, window, rerotate)
    cache = SinkCache(subject.model, window, sinks, rerotate=rerotate)
    check_stream(subject, tokens, window, sinks, rerotate=rerotate)
    losses: list[Tensor] = []
    done = 0
    for logits in streamed(subject.model, tokens[:, :-1], cache):
        targets = tokens[:, done + 1 : done + 1 + logits.shape[1]]
        losses.append(target_loss(logits, targets.to(logits.device)).cpu())
        done += logits.shape[1]
    return torch.cat(losses, 1)


@reads_inputs
def streaming_table(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    *,
    window: int,
    sinks: Sequence[int] = (0, 1, 2, 4, 8),
    on_progress: OnProgress = lambda done, of: None,
) -> Table:
    """Perplexity before and after eviction begins, per number of sinks, beside full attention.

    A mask hides from each query what the cache would have evicted before it: a pass a text, several times faster than
    `streaming_loss`, whose numbers it gives. Before the first eviction, all rows are the same computation. `added loss`
    is the loss after it, less that of full attention, token by token. Raises InputError as `streaming_loss` does, and
    where nothing is evicted.
    """
    _check(subject, tokens, window, rerotate=False)
    check_window(tokens, window)
    sinks = different_numbers(sinks, "sinks", 0)
    for count in sinks:
        check_stream(subject, tokens, window, count)  # refusals before long runs
    full = loss_of(subject, tokens)
    rows = [_row("all", None, full, full, window)]
    for i, count in enumerate(sinks):
        on_progress(i, len(sinks))
        loss = torch.cat([loss_of(subject, text, [Evict(window, count)]) for text in tokens.split(1)])
        rows.append(_row(f"{count} + {window - count}", count, loss, full, window))
    on_progress(len(sinks), len(sinks))
    return Table("What does a rolling cache lose?", _note(subject, tokens, window), tuple(rows))


def _row(cache: str, sinks: int | None, loss: Loss, full: Loss, window: int) -> dict[str, Cell]:
    added = _mean_cells(ADDED, (loss - full)[:, window:], window)
    return {
        CACHE: cache,
        "sinks": sinks,
        **_perplexity_cells("perplexity before", loss[:, :window], window),
        **_perplexity_cells("perplexity after", loss[:, window:], window),
        "tokens after": loss[:, window:].numel(),
        **(added if sinks is not None else dict.fromkeys(added)),
    }


def _perplexity_cells(column: str, loss: Loss, window: int) -> dict[str, Cell]:
    cells = _mean_cells(column, loss, window)
    return {name: None if nats is None else math.exp(nats) for name, nats in cells.items()}


def _mean_cells(column: str, loss: Loss, window: int) -> dict[str, float | None]:
    """The mean over tokens and its interval: over sequences, or over blocks of `window` tokens of a single sequence.

    One block alone has no interval. Without tokens there is no mean either.
    """
    if not loss.numel():
        return dict.fromkeys((column, low_of(column), high_of(column)))
    blocks = loss.split(1) if len(loss) > 1 else loss.tensor_split(max(1, loss.shape[1] // window), 1)
    of_blocks = estimate(torch.stack([block.mean() for block in blocks]))
    low, high = (of_blocks.low, of_blocks.high) if len(blocks) > 1 else (None, None)
    return {column: loss.double().mean().item(), low_of(column): low, high_of(column): high}


def _note(subject: HuggingFaceSubject, tokens: Tokens, window: int) -> str:
    unit = "sequences" if len(tokens) > 1 else f"blocks of {window} tokens"
    return (
        f"{run_note(subject, tokens)}, window {window} "
        "(sinks + last tokens, the one that is read included), positions are places in the text; before: tokens "
        f"1 to {window}, alike for all; after: eviction has begun; added loss: after, over all keys; "
        f"95% bootstrap interval over {unit}"
    )


def _check(subject: HuggingFaceSubject, tokens: Tokens, window: int, rerotate: bool) -> None:
    if subject.libraries or subject.has_encoder or not subject.takes_position_ids:
        raise InputError(f"{subject.name} has no rolling cache here; give a causal model, with backend='huggingface'")
    length, limit = tokens.shape[1], subject.shape.n_ctx
    subject.check_ids(tokens)
    if limit is not None and not rerotate and length > limit:
        raise InputError(
            f"{length} tokens exceed {subject.name}'s {limit} positions; give fewer, or rerotate if rotary"
        )
    if limit is not None and rerotate and window > limit:
        raise InputError(
            f"a cache of {window} tokens exceeds {subject.name}'s {limit} positions; use a narrower window"
        )
