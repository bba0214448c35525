"""Streaming perplexity: what a rolling cache loses of a long text, and how many sinks it needs (StreamingLLM)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import Edit
from ..backends.huggingface import HuggingFaceSubject
from ..checks import different_numbers, whole_number
from ..data.progress import OnProgress, counting, no_progress
from ..data.tokens import Tokens
from ..interventions.attention_layers import Evict
from ..measurement.measure import passes, reads_inputs, run_note
from ..metrics.estimates import estimate, intervals
from ..metrics.metric import next_token_loss
from ..table import Cell, Table, high_of, low_of, no_estimate

ADDED, CACHE = "added loss", "cache"
Loss = Float[Tensor, "sequence token"]


def check_window(tokens: Tokens, window: int) -> None:
    """Raises InputError for a window that evicts nothing of these tokens, and for what is not a window."""
    whole_number(window, f"a window that evicts some of {tokens.shape[1]} tokens", 1, tokens.shape[1] - 2)


@reads_inputs
def loss_of(subject: HuggingFaceSubject, tokens: Tokens, edits: Sequence[Edit] = ()) -> Loss:
    """Next-token loss of texts, each read at once, in nats."""
    batches = (batch for _, batch in passes(subject, tokens.to(subject.device)))
    return torch.cat([next_token_loss(subject.run(batch, edits=edits).logits, batch).cpu() for batch in batches])


@reads_inputs
def streaming_table(
    subject: HuggingFaceSubject,
    tokens: Tokens,
    *,
    window: int,
    sinks: Sequence[int] = (0, 1, 2, 4, 8),
    on_progress: OnProgress = no_progress,
) -> Table:
    """Perplexity before and after eviction begins, per number of sinks, beside full attention.

    A mask hides from each query what the cache would have evicted before it, in one pass a text. Before the first
    eviction, all rows are the same computation. `added loss` is the loss after it, less that of full attention, token
    by token. The window counts the token that is read. Tokens keep the positions of the text, and keys of deeper layers
    stay as they were made, from tokens that may have been evicted since. Raises InputError where nothing is evicted,
    and for more tokens than the model has positions.
    """
    check_window(tokens, window)
    sinks = different_numbers(sinks, "sinks", 0, window - 1)
    full = loss_of(subject, tokens)
    rows = [_row("all", None, full, full, window)]
    for count in counting(sinks, on_progress):
        loss = torch.cat([loss_of(subject, text, [Evict(window, count)]) for text in tokens.split(1)])
        rows.append(_row(f"{count} + {window - count}", count, loss, full, window))
    return Table.of("What does a rolling cache lose?", _note(subject, tokens, window), tuple(rows))


def _row(cache: str, sinks: int | None, loss: Loss, full: Loss, window: int) -> dict[str, Cell]:
    return {
        CACHE: cache,
        "sinks": sinks,
        **_perplexity_cells("perplexity before", loss[:, :window], window),
        **_perplexity_cells("perplexity after", loss[:, window:], window),
        "tokens after": loss[:, window:].numel(),
        **(no_estimate(ADDED) if sinks is None else _mean_cells(ADDED, (loss - full)[:, window:], window)),
    }


def _perplexity_cells(column: str, loss: Loss, window: int) -> dict[str, Cell]:
    cells = _mean_cells(column, loss, window)
    return {name: None if nats is None else _exp(float(nats)) for name, nats in cells.items()}


def _exp(nats: float) -> float:
    """e^nats, infinite above 709 nats, where `math.exp` raises an error."""
    return torch.tensor(nats, dtype=torch.float64).exp().item()


def _mean_cells(column: str, loss: Loss, window: int) -> dict[str, Cell]:
    """The mean over tokens and its interval: over sequences, or over blocks of `window` tokens of a single sequence.

    One block alone has no interval. Without tokens there is no mean either.
    """
    if not loss.numel():
        return no_estimate(column)
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
        f"{intervals(max(len(tokens), tokens.shape[1] // window), unit)}"
    )
