"""view_page: from a model and a text to an atlas of its heads."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float

from ... import tables
from ...backends.subject import Subject
from ...data.tokens import Tokens, TokenSet
from ...errors import InputError
from ...interventions.edit import Edit
from ...measurement.measure import measure
from ...measurement.report import Report
from ...table import Table
from ...tables import TokenText
from .cells import Cells, MapKeys, read_cells
from .contents import SLOT, Atlas, State
from .detail import LIMIT, richest
from .page import atlas_page

PLACES = 64  # positions that the overview offers
EPSILON = 0.3
_NOTHING = (None, "", ())  # values of a protocol that say nothing


def view_page(
    subject: Subject,
    tokens: Tokens | TokenSet,
    word: TokenText = str,
    *,
    edits: Sequence[Edit] = (),
    heads: MapKeys | None = None,
    limit: int = LIMIT,
) -> str:
    """A self-contained page with the attention map of every head on one sequence, as HTML text.

    `word` gives token ids their text. With `edits`, the page shows each map before and after them, and the difference.
    With `heads`, it shows the maps of these (layer, head) only, in more detail. `limit` is how many bytes the maps may
    take before compression. Where pairs do not fit into it, cells that cover several pairs hold their largest and
    their mean weight. Raises InputError for more than one sequence, and for heads that the model does not have.
    """
    return atlas_page(atlas(subject, tokens, word, edits=edits, heads=heads, limit=limit))


def atlas(
    subject: Subject,
    tokens: Tokens | TokenSet,
    word: TokenText = str,
    *,
    edits: Sequence[Edit] = (),
    heads: MapKeys | None = None,
    limit: int = LIMIT,
) -> Atlas:
    """What `view_page` shows."""
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    if len(token_set.tokens) != 1:
        raise InputError(f"a map shows one sequence; got {len(token_set.tokens)}, so give one of them")
    maps = _maps(subject, heads)
    runs: dict[str, Sequence[Edit]] = {"before": (), "after": edits} if edits else {"as it is": ()}
    detail = richest(token_set.tokens.shape[1], len(maps) * len(runs), limit)
    reports = {name: measure(subject, token_set, edits=run_edits) for name, run_edits in runs.items()}
    cells = {name: read_cells(subject, token_set, maps, detail, run_edits) for name, run_edits in runs.items()}
    first, *_, last = [*reports.values()] * 2
    places = _places(first)
    return Atlas(
        model=tables.short_name(first.protocol.model),
        tokens=[word(token) for token in token_set.tokens[0].tolist()],
        layers=first.attention_layers,
        maps=maps,
        side=detail.side,
        pairs=next(iter(cells.values())).pairs,
        places=places,
        states=[_state(reports[name], cells[name], places, maps, name) for name in runs],
        bits=detail.bits,
        lead=tables.sink_verdict(first),
        note=tables.protocol_note(last, EPSILON),
        protocol=_protocol(reports.values()),
        tables=_tables(list(reports.values()), word),
    )


def _maps(subject: Subject, heads: MapKeys | None) -> list[tuple[int, int]]:
    """The maps to show, sorted; by default those of all heads. Raises InputError for heads that do not exist."""
    every = [(layer, head) for layer in subject.shape.attention_layers for head in range(subject.shape.n_heads)]
    unknown = sorted(set(heads or ()) - set(every))
    if unknown or (heads is not None and not heads):
        (first, _), (last, most) = every[0], every[-1]
        raise InputError(
            f"{subject.name} has no layer and head {unknown[0] if unknown else 'of none'}; attention layers go from "
            f"{first} to {last}, heads from 0 to {most}"
        )
    return every if heads is None else sorted(set(heads))


def _state(report: Report, cells: Cells, places: Sequence[int], maps: MapKeys, name: str) -> State:
    is_exact = next(iter(cells.channels.values())).shape[1] == 1  # cells are single pairs
    received = None if is_exact else _received(report, maps)
    return State(name, cells.channels, _importance(report, places), cells.slot, received)


def _received(report: Report, maps: MapKeys) -> Float[np.ndarray, " pos"]:
    """Importance of every position, mean over the maps."""
    layers = [report.attention_layers.index(layer) for layer, _ in maps]
    heads = [head for _, head in maps]
    return report.importance[0].nan_to_num()[layers, heads].mean(0).numpy()


def _importance(report: Report, places: Sequence[int]) -> Float[np.ndarray, "layer head place"]:
    columns = [report.slot_importance if place == SLOT else report.alpha(place) for place in places]
    return torch.stack([column[0] for column in columns if column is not None], -1).numpy()


def _places(report: Report) -> list[int]:
    """Position 0 and the positions that receive the most attention in all, in order; then the slot, if there is one."""
    length = len(report.positions)
    received = report.importance[0].nan_to_num().sum((0, 1)) * torch.arange(length, 0, -1)
    strongest = {0, *received.argsort(descending=True)[:PLACES].tolist()}
    return [*sorted(strongest), *([SLOT] if report.slot_importance is not None else [])]


def _tables(reports: Sequence[Report], word: TokenText) -> list[Table]:
    if len(reports) == 2:
        before, after = reports
        return [tables.compare(before, after)]
    return tables.overview_tables(reports[0], token_text=word)[:3]


def _protocol(reports: Iterable[Report]) -> str:
    protocols = (vars(r.protocol) | {"model": tables.public_name(r.protocol.model)} for r in reports)
    lines = (
        "; ".join(f"{name}: {value}" for name, value in protocol.items() if value not in _NOTHING)
        for protocol in protocols
    )
    return " | ".join(lines)
