"""view_page: from a model and a text to an atlas of its heads. Reads while the model runs, then hands over arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ... import tables
from ...attention import tiles
from ...attention.call import AttentionCall
from ...backends.subject import CallRead, Subject
from ...data.bos import Bos
from ...data.tokens import Tokenizer, Tokens, TokenSet, from_texts
from ...errors import InputError
from ...interventions.edit import Edit
from ...measurement.measure import measure
from ...measurement.report import Report
from ...metrics.importance import proxy
from ...table import Table
from ...tables import TokenText
from .schema import SLOT, Atlas, State, atlas_page

Heads = Sequence[tuple[int, int]]
Answers = Mapping[str, Tensor]
PLACES = 64  # positions whose importance the overview offers
LIMIT = 8_000_000  # bytes of codes: a page of 1,200 heads below 12 MB
PER_MAP = 1_700_000  # of them for one map: at T = 16,384 a page below 4 MB
CHANNELS: dict[str, tiles.Tile] = {
    "weight": lambda call, keys, rows: tiles.weights(proxy(call), keys, rows),
    "score": tiles.scores,
    "cosine": tiles.cosines,
    "norm product": tiles.norm_products,
}
_RICHEST_FIRST = ((16, tuple(CHANNELS)), (8, tuple(CHANNELS)), (8, ("weight", "score")), (8, ("weight",)))
LEAD = (
    "Queries look at keys; positions count from 0, * is a column that belongs to no token. Weights are those that "
    "multiply the values, or proxy scores |w| / sum |w| where rows do not sum to one."
)


@dataclass(frozen=True)
class Plan:
    """How maps are stored: tokens that a cell covers, bits of a code, and which numbers of a pair."""

    side: int
    bits: int
    channels: tuple[str, ...]

    @property
    def stats(self) -> int:
        """Numbers of a cell: the largest and the mean, or one where a cell is a pair."""
        return 1 if self.side == 1 else 2

    def size(self, length: int) -> int:
        """Bytes of a causal map's codes."""
        n = -(-length // self.side)
        return len(self.channels) * self.stats * self.bits // 8 * n * (n + 1) // 2


def plan(length: int, maps: int, limit: int = LIMIT) -> Plan:
    """The richest plan of `maps` maps of `length` tokens in `limit` bytes of codes: every pair if they fit, else cells.

    Raises InputError where not even one cell per map fits.
    """
    most = min(limit // max(maps, 1), PER_MAP)
    for bits, channels in _RICHEST_FIRST:
        whole = Plan(1, bits, channels)
        if whole.size(length) <= most:
            return whole
    sides = (Plan(side, 8, ("weight",)) for side in range(2, length + 1))
    for coarse in sides:
        if coarse.size(length) <= most:
            return coarse
    raise InputError(f"{limit:,} bytes are too few for {maps:,} maps; allow at least {2 * maps:,}")


def view_page(
    subject: Subject, tokens: Tokens | TokenSet, word: TokenText = str, *, edits: Sequence[Edit] = (),
    heads: Heads | None = None, limit: int = LIMIT,
) -> str:  # fmt: skip
    """A self-contained page with every head's attention map on one sequence, as HTML text.

    `word` gives token ids their text. With `edits`, each map stands before, after, and as a difference. `heads` keeps
    the maps of some (layer, head) only, in more detail. `limit` is what maps may take in bytes before compression;
    where pairs do not fit, cells that cover several hold their largest and mean weight. Raises InputError for more
    than one sequence, and for heads that the model has not.
    """
    return atlas_page(atlas(subject, tokens, word, edits=edits, heads=heads, limit=limit))


def atlas(
    subject: Subject, tokens: Tokens | TokenSet, word: TokenText = str, *, edits: Sequence[Edit] = (),
    heads: Heads | None = None, limit: int = LIMIT,
) -> Atlas:  # fmt: skip
    """What `view_page` draws."""
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    if len(token_set.tokens) != 1:
        raise InputError(f"a map shows one sequence; got {len(token_set.tokens)}, so give one of them")
    maps = _chosen(subject, heads)
    runs: dict[str, Sequence[Edit]] = {"before": (), "after": edits} if edits else {"as it is": ()}
    how = plan(token_set.tokens.shape[1], len(maps) * len(runs), limit)
    reports = {name: measure(subject, token_set, edits=some) for name, some in runs.items()}
    read = {name: _read(subject, token_set, maps, how, some) for name, some in runs.items()}
    first, *_, last = [*reports.values()] * 2
    places = _places(first)
    return Atlas(
        model=first.protocol.model,
        tokens=[word(token) for token in token_set.tokens[0].tolist()],
        layers=first.attention_layers,
        maps=maps,
        side=how.side,
        pairs=_pairs(next(iter(read.values())), subject, maps),
        places=places,
        states=[_state(name, reports[name], read[name], maps, places) for name in runs],
        bits=how.bits,
        lead=f"{tables.sink_verdict(first)} {LEAD}",
        note=tables.protocol_note(last, 0.3),
        protocol=_protocol(reports),
        tables=_tables(list(reports.values()), word),
    )


def text_tokens(text: str, tokenizer: Tokenizer, bos: Bos, most: int | None = None, source: str = "text") -> TokenSet:
    """The tokens of one text, the first `most` of them. Raises InputError where there are fewer than two."""
    most = most or 2**30
    ids = tokenizer(text, add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=most)["input_ids"]
    length = min(len(ids) + (bos is Bos.ALWAYS), most)
    if length < 2:
        raise InputError(f"the text has {length} tokens; give one of at least 2")
    return from_texts([text], tokenizer, length, 1, bos, source)


def _chosen(subject: Subject, heads: Heads | None) -> list[tuple[int, int]]:
    """The maps to show, sorted; by default all of them."""
    every = [(layer, head) for layer in subject.shape.attention_layers for head in range(subject.shape.n_heads)]
    unknown = sorted(set(heads or ()) - set(every))
    if unknown or (heads is not None and not heads):
        (first, _), (last, most) = every[0], every[-1]
        raise InputError(
            f"{subject.name} has no layer and head {unknown[0] if unknown else 'of none'}; attention layers go from "
            f"{first} to {last}, heads from 0 to {most}"
        )
    return every if heads is None else sorted(set(heads))


def _read(subject: Subject, token_set: TokenSet, maps: Heads, how: Plan, edits: Sequence[Edit]) -> Answers:
    """Cells of the chosen heads in one forward pass, `layer head ...`; NaN in layers of which no head is chosen."""
    by_layer: dict[int, list[int]] = {}
    for layer, head in maps:
        by_layer.setdefault(layer, []).append(head)
    width, n = max(map(len, by_layer.values())), -(-token_set.tokens.shape[1] // how.side)

    def of_chosen(read: CallRead, *shape: int) -> CallRead:
        def answer(call: AttentionCall) -> Tensor:
            found = call.q.new_full((len(call.q), width, how.stats, *shape), torch.nan, dtype=torch.float)
            heads = by_layer.get(call.layer)
            if heads is not None:
                found[:, : len(heads)] = read(tiles.of_heads(call, heads))[:, :, : how.stats]
            return found

        return answer

    reads = {name: of_chosen(_cells_of(CHANNELS[name], how.side), n, n) for name in how.channels}
    reads["slot"] = of_chosen(lambda call: tiles.slot_cells(proxy(call), how.side), n)
    reads["pairs"] = lambda call: tiles.pairs(call, how.side)
    calls = subject.run(token_set.tokens, calls=reads, edits=edits).calls
    return {name: found[0].cpu() for name, found in calls.items()}


def _cells_of(tile: tiles.Tile, side: int) -> CallRead:
    return lambda call: tiles.cells(call, side, tile)


def _state(name: str, report: Report, read: Answers, maps: Heads, places: Sequence[int]) -> State:
    rows = [report.attention_layers.index(layer) for layer, _ in maps]
    seen: dict[int, int] = {}
    columns = []
    for layer, _ in maps:
        columns.append(seen.get(layer, 0))
        seen[layer] = columns[-1] + 1

    def of_maps(found: Tensor) -> np.ndarray:
        return found[rows, columns].numpy()

    channels = {channel: of_maps(read[channel]) for channel in CHANNELS if channel in read}
    slot = of_maps(read["slot"])
    return State(name, channels, _importance(report, places), None if np.isnan(slot).all() else slot)


def _importance(report: Report, places: Sequence[int]) -> Float[np.ndarray, "layer head place"]:
    columns = [report.slot_importance if place == SLOT else report.alpha(place) for place in places]
    return torch.stack([column[0] for column in columns if column is not None], -1).numpy()


def _places(report: Report) -> list[int]:
    """The slot, position 0, and the positions with the most attention in all, in their order."""
    length = len(report.positions)
    mass = report.importance[0].nan_to_num().sum((0, 1)) * torch.arange(length, 0, -1)
    strongest = {0, *mass.argsort(descending=True)[:PLACES].tolist()}
    return [*sorted(strongest), *([SLOT] if report.slot_importance is not None else [])]


def _pairs(read: Answers, subject: Subject, maps: Heads) -> dict[int, np.ndarray]:
    layers = subject.shape.attention_layers
    return {layer: read["pairs"][layers.index(layer)].numpy() for layer in {layer for layer, _ in maps}}


def _tables(reports: Sequence[Report], word: TokenText) -> list[Table]:
    if len(reports) == 2:
        before, after = reports
        return [tables.compare(before, after)]
    return tables.overview_tables(reports[0], token_text=word)[:3]


def _protocol(reports: Mapping[str, Report]) -> str:
    lines = ("; ".join(f"{name}: {value}" for name, value in vars(r.protocol).items()) for r in reports.values())
    return " | ".join(lines)
