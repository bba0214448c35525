"""What a cache loses when its keys and values are quantised, and whether the first token must stay as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from ..attention.call import AttentionCall
from ..attention.shapes import ModelShape
from ..backends.huggingface import HuggingFaceSubject
from ..checks import whole_numbers
from ..data.progress import Progress, silent, told
from ..data.tokens import Tokens
from ..interventions.edit import Edit
from ..interventions.selectors import check_chosen
from ..metrics.bootstrap import intervals, mean_cells
from ..report.caches import ADDED, ALL, BITS, BUT_FIRST, BUT_SECOND, CHANGE, ROUNDED, SCALES, quantised_figure
from ..table import Cell, Table
from .inputs import reads_inputs, run_note
from .streaming import loss_of
from .without_outliers import fake_quantised

Axes = tuple[int, ...]
GRAINS: dict[str, tuple[Axes, Axes]] = {  # the axes of keys, and of values, that share a scale
    "head": ((-2, -1), (-2, -1)),
    "token": ((-1,), (-1,)),
    "channel of keys, token of values": ((-2,), (-1,)),  # as KIVI, arXiv:2402.02750
}
KEPT: dict[str, Axes] = {ALL: (), BUT_FIRST: (0,), BUT_SECOND: (1,)}


@dataclass(frozen=True)
class RoundedCache(Edit):
    """Rounds the keys and values of every head, but those of the tokens at `kept`, which share no scale either."""

    bits: int
    keys: Axes
    values: Axes
    kept: Axes = ()

    @override
    def check(self, shape: ModelShape, length: int) -> None:
        check_chosen(self.kept, range(length), "position")

    @override
    def call(self, call: AttentionCall) -> AttentionCall:
        return replace(call, k=self._rounded(call.k, self.keys), v=self._rounded(call.v, self.values))

    def _rounded(self, x: Float[Tensor, "batch kv_head pos d"], over: Axes) -> Float[Tensor, "batch kv_head pos d"]:
        kept = torch.zeros(x.shape[-2], 1, dtype=torch.bool, device=x.device)
        kept[list(self.kept)] = True
        return torch.where(kept, x, fake_quantised(x.masked_fill(kept, 0), self.bits, over))


@reads_inputs
def quantised_table(
    subject: HuggingFaceSubject, tokens: Tokens, bits: Sequence[int] = (8, 4, 3), progress: Progress = silent
) -> Table:
    """The loss that a quantised cache adds: a row for the bits, what shares a scale, and which tokens are rounded.

    Keys are rounded as a cache holds them, after rotation. The control rounds all but the second token. Raises
    InputError for fewer than 2 bits, and more than 32.
    """
    bits = whole_numbers(bits, "bits", 2, 32)
    rows: list[dict[str, Cell]] = []
    full, all_rounded = loss_of(subject, tokens), torch.empty(0)
    for n, scales, name in told([*product(bits, GRAINS, KEPT)], progress("quantising the cache")):
        added = (loss_of(subject, tokens, [RoundedCache(n, *GRAINS[scales], KEPT[name])]) - full).mean(1)
        all_rounded = added if name == ALL else all_rounded
        change = mean_cells(CHANGE, added - all_rounded)
        rows.append({BITS: n, SCALES: scales, ROUNDED: name, **mean_cells(ADDED, added), **change})
    note = (
        f"{run_note(subject, tokens)}; {intervals(len(tokens))}; nats a token; null: 0, the full cache; symmetric "
        f"integers, the scales of each text; control: the second token is not rounded; {CHANGE}: paired, text by text"
    )
    return Table("What does a quantised cache lose?", note, tuple(rows), quantised_figure)
