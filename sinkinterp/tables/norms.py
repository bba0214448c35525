"""Norms of residuals, keys and values by block and by kind of token (Gu et al. 2025, Figures 2 top and 11 to 14)."""

import torch
from einops import reduce
from jaxtyping import Bool, Float
from torch import Tensor

from ..measurement.report import Report
from ..metrics.bootstrap import estimate, estimate_cells
from ..plots.columns import BLOCK, QUANTITY
from ..plots.norms import FIRST_TOKEN, KIND, NORM, OTHER_TOKENS, RESIDUAL
from ..table import Cell, Table
from .exhibits import TokenText
from .note import protocol_note
from .positions import FOLLOWERS

Mask = Bool[Tensor, "sequence pos"]
SHARE = 0.1  # of the heads that must look at a later token for it to be called a sink


def token_kinds(report: Report, epsilon: float = 0.3, token_text: TokenText = str) -> dict[str, Mask]:
    """The tokens of each kind: the first token, other sinks, delimiters, other tokens. Every token has one kind.

    Kinds without tokens are left out. Another sink is a later token above `epsilon` in at least a tenth of the heads,
    where `FOLLOWERS` queries can follow it; sinks are known only where all positions were measured. The text of a
    delimiter is punctuation or a line break.
    """
    real = report.tokens >= 0
    first = torch.zeros_like(real)
    first[:, 0] = True
    candidates = {
        FIRST_TOKEN: first,
        "other sinks": _other_sinks(report, epsilon),
        "delimiters": _delimiters(report, token_text),
        OTHER_TOKENS: real,
    }
    kinds: dict[str, Mask] = {}
    without_kind = real
    for name, mask in candidates.items():
        kinds[name], without_kind = without_kind & mask, without_kind & ~mask
    return {name: mask for name, mask in kinds.items() if mask.any()}


def norms_by_kind(report: Report, epsilon: float = 0.3, token_text: TokenText = str) -> Table:
    """Mean norm of residuals, keys and values, per block and kind of token; keys and values over kv heads."""
    layers = report.attention_layers
    quantities = {
        RESIDUAL: (range(report.residual_norms.shape[1]), report.residual_norms),
        "key": (layers, reduce(report.key_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
        "value": (layers, reduce(report.value_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
    }
    kinds = token_kinds(report, epsilon, token_text)
    rows: list[dict[str, Cell]] = []
    for name, (blocks, values) in quantities.items():
        for kind, mask in kinds.items():
            for i, block in enumerate(blocks):
                rows.append({QUANTITY: name, BLOCK: block, KIND: kind, **_mean_norm(values[:, i], mask)})
    counts = ", ".join(f"{kind} {int(mask.sum())}" for kind, mask in kinds.items())
    note = (
        f"{protocol_note(report, epsilon)}; tokens: {counts}; residuals: block 0 is the embedding, block b the output "
        f"of layer b - 1; other sinks: later tokens above epsilon in at least {SHARE:.0%} of the heads; delimiters: "
        "punctuation and line breaks"
    )
    return Table("Norms by block and kind of token", note, tuple(rows))


def _mean_norm(values: Float[Tensor, "sequence pos"], mask: Mask) -> dict[str, Cell]:
    return estimate_cells(NORM, estimate(values.masked_fill(~mask, torch.nan).nanmean(1)))


def _other_sinks(report: Report, epsilon: float) -> Mask:
    length = report.tokens.shape[1]
    if len(report.positions) < length:
        return torch.zeros_like(report.tokens, dtype=torch.bool)
    share = reduce((report.importance > epsilon).float(), "sequence layer head pos -> sequence pos", "mean")
    is_followed = torch.arange(length) < length - FOLLOWERS + 1
    return (share >= SHARE) & is_followed


def _delimiters(report: Report, token_text: TokenText) -> Mask:
    ids = report.tokens[report.tokens >= 0].unique().tolist()
    delimiters = torch.tensor([i for i in ids if _is_delimiter(token_text(i))], dtype=report.tokens.dtype)
    return torch.isin(report.tokens, delimiters)


def _is_delimiter(text: str) -> bool:
    has_letters = any(c.isalnum() or c == "\ufffd" for c in text)
    return not has_letters and (bool(text.strip()) or "\n" in text)
