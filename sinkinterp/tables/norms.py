"""Norms of residuals, keys and values by block and by kind of token (Gu et al. 2025, Figures 2 top and 11 to 14)."""

import torch
from einops import reduce
from jaxtyping import Bool, Float
from torch import Tensor

from ..measurement.report import Report
from ..metrics.bootstrap import cells, estimate
from ..table import Cell, Table
from .note import note
from .positions import SEEN, Word

Tokens = Bool[Tensor, "sequence pos"]
SHARE = 0.1  # of the heads that must look at a later token for it to be called a sink


def kinds(report: Report, word: Word = str, epsilon: float = 0.3) -> dict[str, Tokens]:
    """Every token's one kind, empty kinds left out: the first token, other sinks, delimiters, other tokens.

    Another sink is a later token above `epsilon` in at least a tenth of the heads, where `SEEN` queries can follow it;
    known only where all positions were measured. A delimiter's text, `word` of its id, is punctuation or a line break.
    """
    real = report.tokens >= 0
    first = torch.zeros_like(real)
    first[:, 0] = True
    text = {token: _is_delimiter(word(token)) for token in report.tokens[real].unique().tolist()}
    delimiters = torch.tensor([[text.get(token, False) for token in row] for row in report.tokens.tolist()])
    found: dict[str, Tokens] = {}
    left = real
    for name, mask in (("first token", first), ("other sinks", _sinks(report, epsilon)), ("delimiters", delimiters)):
        found[name], left = left & mask, left & ~mask
    found["other tokens"] = left
    return {name: mask for name, mask in found.items() if mask.any()}


def norms(report: Report, word: Word = str, epsilon: float = 0.3) -> Table:
    """Mean norm of residuals, keys and values, per block and kind of token; keys and values over kv heads."""
    layers = report.attention_layers
    quantities = {
        "residual": (range(report.residual_norms.shape[1]), report.residual_norms),
        "key": (layers, reduce(report.key_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
        "value": (layers, reduce(report.value_norms, "sequence layer kv_head pos -> sequence layer pos", "mean")),
    }
    chosen = kinds(report, word, epsilon)
    rows = tuple(
        {"quantity": name, "block": block, "tokens": kind, **_mean(values[:, i], mask)}
        for name, (blocks, values) in quantities.items()
        for kind, mask in chosen.items()
        for i, block in enumerate(blocks)
    )
    counts = ", ".join(f"{kind} {int(mask.sum())}" for kind, mask in chosen.items())
    text = (
        f"{note(report, epsilon)}; tokens: {counts}; residuals: block 0 is the embedding, block b the output of layer "
        f"b - 1; other sinks: later tokens above epsilon in at least {SHARE:.0%} of the heads; delimiters: "
        "punctuation and line breaks"
    )
    return Table("Norms by block and kind of token", text, rows)


def _mean(values: Float[Tensor, "sequence pos"], mask: Tokens) -> dict[str, Cell]:
    return cells("norm", estimate(values.masked_fill(~mask, torch.nan).nanmean(1)))


def _sinks(report: Report, epsilon: float) -> Tokens:
    length = report.tokens.shape[1]
    if len(report.positions) < length:
        return torch.zeros_like(report.tokens, dtype=torch.bool)
    heads = reduce((report.importance > epsilon).float(), "sequence layer head pos -> sequence pos", "mean")
    followed = torch.arange(length) < length - SEEN + 1
    return (heads >= SHARE) & followed


def _is_delimiter(text: str) -> bool:
    marks = text.strip()
    return not any(c.isalnum() or c == "\ufffd" for c in text) and (bool(marks) or "\n" in text)
