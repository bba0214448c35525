"""Over-mixing: how far the change of one token goes, by block, with edits and without.

Two passes read each text, the second with another token at one position. The change is the distance of the two
residuals over the norm of the first. Source: Barbero et al. 2025, arXiv:2504.02732.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkinterp.attention import RESIDUAL
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import LARGEST, InputError, whole_number
from sinkinterp.data.tokens import Tokens, TokensLike
from sinkinterp.interventions.changes import Edits, edits_of
from sinkinterp.measurement.measure import ModelLike, equal_inputs_of, passes, run_note
from sinkinterp.metrics import estimates
from sinkinterp.metrics.metric import PerSequence, next_token_loss
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.table import BLOCK, EDIT, LOSS as NATS, Cell, Table, no_estimate

NEAR, FAR, ALL, TIMES = "change, near", "change, far", "change", "times the first"
Later = Float[Tensor, "sequence later"]
Changes = tuple[Float[Tensor, "sequence block later"], PerSequence]
NEXT = 8  # positions behind the changed token that count as near
WITH, CONTROL = "none", "control: another key hidden"


def spread(model: ModelLike, tokens: TokensLike | Any, position: int, edits: Mapping[str, Edits]) -> Table:
    """How much the change of the token at `position` changes later residuals, by edit, which has a name, and block.

    Rows have the mean relative change of the positions behind it: of all, of the next 8, and of the last quarter of
    the text. `times the first` is the change over that of the first edit. Block `n_layers` is the last output. The
    other token is drawn from the texts. Takes models and tokens as `measure` does, of one length.
    """
    subject, given = equal_inputs_of(model, tokens)
    changed = with_other_token(given, position)
    runs = {name: changes(subject, given, changed, position, some) for name, some in edits.items()}
    return spread_table(subject, given, position, runs)


def spread_table(subject: Subject, given: Tokens, at: int, runs: Mapping[str, Changes]) -> Table:
    """The table of `spread`, from what `changes` returns for each edit."""
    length, before = given.shape[1], next(iter(runs.values()))[0]
    rows: list[dict[str, Cell]] = []
    for name, (change, loss) in runs.items():
        cells = estimates.mean_cells(NATS, loss, estimates.SIZES)
        for block in range(change.shape[1]):
            of_block = _cells(change[:, block], before[:, block], length)
            rows.append({EDIT: name, BLOCK: block, **of_block, **cells})
    figure = partial(sweep_figure, x=BLOCK, quantities=(ALL, NEAR, FAR), by=EDIT)
    note = (
        f"{run_note(subject, given)}; token {at} (from 0) becomes another one of the texts; change: distance of the "
        f"residuals over the norm of the first, mean over positions behind it; near: the next {NEXT}; far: those of "
        f"the last quarter; {TIMES}: over the first edit (fewer than 30 texts: Fieller); block "
        f"{subject.shape.n_layers} is the last output; loss of the unchanged texts in nats; null: 0, an "
        f"equal token; {estimates.intervals(len(given))}"
    )
    return Table.of("How far does the change of one token spread?", note, tuple(rows), figure)


def _cells(change: Later, before: Later, length: int) -> dict[str, Cell]:
    """The mean changes of a block, and the change over that of the first edit, where it has one."""
    cells: dict[str, Cell] = {}
    for column, some in {ALL: slice(None), NEAR: slice(NEXT), FAR: slice(-max(1, length // 4), None)}.items():
        cells |= estimates.mean_cells(column, change[:, some].mean(1), estimates.SIZES)
    if not before.any():
        return cells | no_estimate(TIMES)
    return cells | estimates.estimate_cells(TIMES, estimates.ratio(change.mean(1), before.mean(1)))


def with_other_token(tokens: Tokens, position: int, seed: int = 0) -> Tokens:
    """The texts with another token at a position, drawn from all that they hold there or later.

    Raises InputError where they hold one token alone.
    """
    generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0, LARGEST))
    pool, changed = tokens[:, position:].flatten(), tokens.clone()
    for row in changed:
        others = pool[pool != row[position]]
        if not len(others):
            raise InputError("the texts hold one token alone, so none can take its place")
        row[position] = others[torch.randint(len(others), (1,), generator=generator)]
    return changed


def changes(subject: ModelLike, tokens: TokensLike | Any, changed: Tokens, position: int, edits: Edits = ()) -> Changes:
    """The relative change of the residuals behind `position`, by block; and the loss of the unchanged texts in nats."""
    subject, tokens = equal_inputs_of(subject, tokens)
    reads = {"x": RESIDUAL.read(lambda x: x[:, position + 1 :])}
    parts, losses = [], []
    for rows, batch in passes(subject, tokens):
        before = subject.run(batch, reads=reads, edits=edits_of(edits))
        after = subject.run(changed[rows], reads=reads, edits=edits_of(edits), logits=False)
        x = before["x"].float()
        parts.append(((after["x"].float() - x).norm(dim=-1) / x.norm(dim=-1)).cpu())
        losses.append(next_token_loss(before.logits, batch).mean(1).cpu())
    return torch.cat(parts), torch.cat(losses)
