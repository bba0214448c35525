"""An atlas of a model on a text: the cells of many heads, read in one forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ..attention import QUANTITIES, SCORE, WEIGHT, Edit, Quantity, maps as attention_maps
from ..backends.subject import Subject
from ..checks import InputError
from ..data.tokens import Tokens, TokenSet
from ..measurement.maps import ChosenHeads, heads_of
from ..measurement.measure import measure
from ..metrics.instruments import Instruments
from ..report.maps import Heads
from ..report.readings import TokenText
from ..report.report import Report, overview_tables
from ..report.summary import compare
from ..table import Table

Maps = Float[np.ndarray, "map stat row column"]
LIMIT = 8_000_000  # bytes of codes: a page of 1,200 heads stays below 12 MB
PER_MAP = 1_700_000  # bytes for one map: a page at T = 16,384 stays below 4 MB


@dataclass(frozen=True)
class Detail:
    """How maps are stored: how many tokens a cell covers, the bits of a code, and which numbers of a pair."""

    side: int
    bits: int
    channels: tuple[Quantity, ...]

    @property
    def stats(self) -> int:
        """Numbers of a cell: the largest and the mean value, or one value where a cell is one pair."""
        return 1 if self.side == 1 else 2

    def size(self, length: int) -> int:
        """Bytes of the codes of a causal map of `length` tokens."""
        n = -(-length // self.side)
        return len(self.channels) * self.stats * self.bits // 8 * n * (n + 1) // 2


@dataclass(frozen=True)
class Run:
    """One run of the model: what was measured, and the cells of its maps by channel, NaN where no pair may attend.

    channels: weights are always among them. `stat` is [largest, mean], or one where a cell is one pair. slot: attention
    to the off-sequence column, if there is one. pairs: how many pairs of each cell may attend, by layer.
    """

    report: Report
    channels: Mapping[Quantity, Maps]
    slot: Float[np.ndarray, "map stat row"] | None
    pairs: Mapping[int, Int[np.ndarray, "row column"]]


@dataclass(frozen=True)
class Atlas:
    """The content of the page: the maps of some heads, in one run of the model or in two, before and after edits.

    maps: (layer, head) of each map, sorted. runs: by their names. token_text: of token ids. tables: below the maps.
    """

    maps: Heads
    detail: Detail
    runs: Mapping[str, Run]
    token_text: TokenText
    tables: Sequence[Table]

    @property
    def reports(self) -> list[Report]:
        """What was measured in each run."""
        return [run.report for run in self.runs.values()]

    def by_layer(self) -> dict[int, list[int]]:
        """The indices of each layer's maps."""
        layers = [layer for layer, _ in self.maps]
        return {layer: [i for i, of in enumerate(layers) if of == layer] for layer in dict.fromkeys(layers)}


EVERY_PAIR = (Detail(1, 16, QUANTITIES), Detail(1, 8, QUANTITIES), Detail(1, 8, (WEIGHT, SCORE)))  # richest first


def richest(length: int, maps: int, limit: int = LIMIT) -> Detail:
    """The richest detail in which `maps` maps of `length` tokens take at most `limit` bytes of codes.

    Raises InputError where not even one cell per map fits.
    """
    per_map = min(limit // max(maps, 1), PER_MAP)
    for detail in (*EVERY_PAIR, *(Detail(side, 8, (WEIGHT,)) for side in range(1, length + 1))):
        if detail.size(length) <= per_map:
            return detail
    raise InputError(f"{limit:,} bytes are too few for {maps:,} maps; allow at least {2 * maps:,}")


def atlas(
    subject: Subject,
    tokens: Tokens | TokenSet,
    word: TokenText = str,
    *,
    edits: Sequence[Edit] = (),
    heads: Heads | None = None,
    limit: int = LIMIT,
) -> Atlas:
    """The attention map of every head on one sequence, which `atlas_page` makes a page of.

    `word` gives token ids their text. With `edits`, it holds each map before and after them, and the difference. With
    `heads`, as `attention_map` takes them, it holds the maps of these heads only, in more detail. `limit` is how many
    bytes the maps may take before compression. If pairs do not fit into it, cells that cover several pairs hold
    their largest and their mean weight. Raises InputError for more than one sequence, and for heads that the model
    does not have.
    """
    token_set = tokens if isinstance(tokens, TokenSet) else TokenSet.of(tokens)
    if len(token_set.tokens) != 1:
        raise InputError(f"a map shows one sequence; got {len(token_set.tokens)}, so give one of them")
    reader = reader_of(subject, token_set, heads, runs=2 if edits else 1, limit=limit)
    first = reader.run()
    return reader.atlas({"before": first, "after": reader.run(edits)} if edits else {"as it is": first}, word)


@dataclass(frozen=True)
class Reader:
    """Runs a model on one sequence, with any edits, and shows the runs beside each other."""

    subject: Subject
    token_set: TokenSet
    maps: Heads
    detail: Detail

    def run(self, edits: Sequence[Edit] = (), instruments: Instruments = ()) -> Run:
        """What the model does with these edits."""
        report = measure(self.subject, self.token_set, edits=edits, instruments=instruments, progress=False)
        chosen, detail = ChosenHeads(self.maps), self.detail
        reads = chosen.cells(detail.channels, detail.side, detail.stats, self.token_set.tokens.shape[1])
        reads["pairs"] = lambda call: attention_maps.pairs(call, detail.side)
        layers = self.subject.shape.attention_layers
        calls = self.subject.run(self.token_set.tokens, reads=reads, edits=edits, logits=False)
        slot = chosen.of_maps(calls["slot"][0], layers)
        channels = {channel: chosen.of_maps(calls[channel.name][0], layers) for channel in detail.channels}
        pairs = {layer: calls["pairs"][0, layers.index(layer)].cpu().numpy() for layer in chosen.heads}
        return Run(report, channels, None if np.isnan(slot).all() else slot, pairs)

    def atlas(self, runs: Mapping[str, Run], word: TokenText) -> Atlas:
        """The atlas of one run or, before and after edits, of two, by their names."""
        reports = [run.report for run in runs.values()]
        several = len(reports) > 1
        tables = [compare(reports[0], reports[1])] if several else overview_tables(reports[0], token_text=word)[:3]
        return Atlas(self.maps, self.detail, runs, word, tables)


def reader_of(
    subject: Subject, token_set: TokenSet, heads: Heads | None = None, *, runs: int, limit: int = LIMIT
) -> Reader:
    """The reader of these heads, all by default. Its detail is the richest with which `runs` runs fit into `limit`.

    Raises InputError for unknown heads.
    """
    maps = heads_of(subject, None, heads)
    return Reader(subject, token_set, maps, richest(token_set.tokens.shape[1], runs * len(maps), limit))
