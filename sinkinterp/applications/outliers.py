"""The tokens and dimensions of activations that are outliers by norm, and what leaving them out changes.

found = si.mask("gpt2", texts)
keep = found.keep(6)  # a function: activations `... d_model` -> bool `...`
found.dims[6], found.to_dict(), found.plot()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float
from plotly.subplots import make_subplots
from torch import Tensor

from ..attention import RESIDUAL, numbers
from ..backends.subject import Subject
from ..checks import InputError, check_count, finite_number, whole_number
from ..data.tokens import Tokens, TokensLike
from ..measurement.measure import ModelLike, answers_of, equal_inputs_of, run_note
from ..metrics.residuals import vector_norms
from ..plots.theme import colour, themed
from ..table import BLOCK, Table

TOKENS_BY_KIND = ("first", "delimiters", "repeats", "other tokens")
FIRST, DELIMITERS, REPEATS, OTHERS = range(len(TOKENS_BY_KIND))
OUTLIER_DIMS, LONGEST = "dimensions", "longest / median"
TIMES = 10.0  # the multiple that dictionary_learning advises for its buffer of activations
Keep = Callable[[Float[Tensor, "*stack d_model"]], Bool[Tensor, "*stack"]]


@dataclass(frozen=True, eq=False, repr=False)
class Mask:
    """The outliers of every block's input; block `n_layers` is the last output.

    limits: the norm above which a token is an outlier, by block. dims: the outlier dimensions, by block. tokens: which
    tokens of the texts are outliers, `sequence block pos`. kinds: first token, delimiter, repeat or other, an index
    of `TOKENS_BY_KIND`. longest: the longest token over the median, by block.
    """

    limits: tuple[float, ...]
    dims: tuple[tuple[int, ...], ...]
    tokens: Bool[Tensor, "sequence block pos"]
    kinds: Tensor
    longest: tuple[float, ...]
    times: float
    note: str
    d_model: int

    def __repr__(self) -> str:
        return f"<Mask of {len(self.limits)} blocks: {int(self.tokens.sum())} outlier tokens of {self.tokens.numel()}>"

    def keep(self, block: int) -> Keep:
        """The function that says which activations of a block to keep, for tensors of any leading shape."""
        limit = self.limits[whole_number(block, "a block", 0, len(self.limits) - 1)]

        def keep(x: Float[Tensor, "*stack d_model"]) -> Bool[Tensor, "*stack"]:
            if numbers(x, "... d_model", "activations").shape[-1] != self.d_model:
                raise InputError(f"activations of this model have {self.d_model} dimensions; got {tuple(x.shape)}")
            return x.float().norm(dim=-1) <= limit

        return keep

    def answer(self) -> str:
        """Returns what to leave out, in two sentences."""
        blocks = [i for i in range(len(self.limits)) if self.tokens[:, i].any()]
        found = self.tokens[:, blocks]
        first = found[:, :, 0].sum().item() / max(1, int(found.sum()))
        tokens = f"tokens of {len(blocks)} of {len(self.limits)} blocks, {first:.1%} of them first tokens"
        all_dims = sorted({dim for dims in self.dims for dim in dims})
        dims = f"dimensions {_some(all_dims)}, each in some blocks"
        return (
            f"Leave out {tokens if blocks else 'no tokens'}. Leave out {dims if all_dims else 'no dimensions'}. "
            f"Outliers are longer than {self.times:g} medians."
        )

    def table(self) -> Table:
        """The share of the tokens of every kind that are outliers, and the outlier dimensions, by block."""
        rows = []
        of_kind = {kind: self.kinds == i for i, kind in enumerate(TOKENS_BY_KIND)}
        for block, dims in enumerate(self.dims):
            found = {kind: self.tokens[:, block][where].float() for kind, where in of_kind.items()}
            shares = {kind: x.mean().item() if len(x) else None for kind, x in found.items()}
            rows.append({BLOCK: block, **shares, LONGEST: self.longest[block], OUTLIER_DIMS: _some(dims)})
        return Table.of("Which tokens and dimensions are outliers?", self.note, tuple(rows), outliers_figure)

    def to_dict(self) -> dict[str, Any]:
        """JSON for quantisers and caches: by block, the limit of norms, the outlier tokens and dimensions."""
        blocks = [
            {"block": i, "largest_norm": limit, "dims": list(dims), "tokens": self.tokens[:, i].nonzero().tolist()}
            for i, (limit, dims) in enumerate(zip(self.limits, self.dims, strict=True))
        ]
        return {"times": self.times, "note": self.note, "blocks": blocks}

    def plot(self) -> go.Figure:
        """The figure of `table`."""
        return self.table().plot()


def _some(dims: Sequence[int], most: int = 8) -> str:
    """The first dimensions, and how many more there are."""
    return " ".join(map(str, dims[:most])) + (f" and {len(dims) - most} more" if len(dims) > most else "")


def norm_limit(norms: Float[Tensor, "..."], times: float = TIMES) -> float:
    """The norm beyond which one is an outlier: `times` the median, the lower of two middle ones.

    The rule of dictionary_learning's ActivationBuffer (max_activation_norm_multiple). Raises InputError for a
    multiple of 1 or less, and without norms.
    """
    finite_number(times, "times, a multiple of the median norm,", above=1)
    given = numbers(norms, "...", "norms").float().flatten()
    check_count(given, "norms of tokens")
    return times * given.median().item()


def mask(model: ModelLike, tokens: TokensLike | Any = None, *, times: float = TIMES) -> Mask:
    """The tokens and dimensions of every block whose norm exceeds `times` the median.

    A token's norm is over dimensions, its median over all tokens of the block (the rule of dictionary_learning); a
    dimension's is over all tokens, its median over dimensions. Raises InputError as `measure` does, for sequences of
    different lengths, and unless `times` exceeds 1.
    """
    subject, given = equal_inputs_of(model, tokens)
    reads = {"norms": RESIDUAL.read(vector_norms), "energy": RESIDUAL.read(lambda x: x.float().square().mean(1))}
    norms, energy = (answer.cpu() for answer in answers_of(subject, given, reads))  # sequence block pos, or d_model
    sizes = energy.mean(0).sqrt()
    limits = tuple(norm_limit(norms[:, i], times) for i in range(norms.shape[1]))
    dims = tuple(tuple((size > norm_limit(size, times)).nonzero()[:, 0].tolist()) for size in sizes)
    delimiters = "not told from others without a tokenizer" if subject.tokenizer is None else "no letter or digit"
    note = (
        f"{run_note(subject, given)}; outlier: norm above {times:g} x the median of the block; "
        f"delimiter: {delimiters}; repeat: the token occurred before; block 0 is the embedding"
    )
    found = norms > torch.tensor(limits)[:, None]
    longest = tuple((norms.amax((0, 2)) * times / torch.tensor(limits)).tolist())
    return Mask(limits, dims, found, _kinds(subject, given.cpu()), longest, times, note, subject.shape.d_model)


def _kinds(subject: Subject, tokens: Tokens) -> Tensor:
    """Returns what kind each token is, `sequence pos`."""
    word = subject.label
    bare = [i for i in tokens.unique().tolist() if not any(map(str.isalnum, word(i)))]
    repeats = torch.stack([(ids[:, None] == ids).tril(-1).any(1) for ids in tokens])
    kinds = torch.where(repeats, REPEATS, OTHERS)
    kinds[torch.isin(tokens, torch.tensor(bare, dtype=tokens.dtype))] = DELIMITERS
    kinds[:, 0] = FIRST
    return kinds


def outliers_figure(table: Table) -> go.Figure:
    """Outlier tokens of every kind, and how long the longest token is, by block."""
    x, kinds = table.frame[BLOCK].tolist(), [kind for kind in TOKENS_BY_KIND if any(table.numbers(kind))]
    longest = f"{LONGEST}: at most {max(table.numbers(LONGEST)):.1f}, so no token is an outlier"
    titles = ("outlier tokens, share of the kind", LONGEST) if kinds else (longest,)
    figure = make_subplots(1, len(titles), subplot_titles=titles)
    for kind in kinds:
        marker = {"color": colour(TOKENS_BY_KIND.index(kind))}
        figure.add_bar(x=x, y=table.numbers(kind), name=kind, marker=marker, row=1, col=1)
    if kinds:
        figure.update_yaxes(tickformat=".0%", range=[0, 1.03], col=1)
    last = len(titles)
    figure.add_scatter(x=x, y=table.numbers(LONGEST), name=LONGEST, line={"color": colour(4)}, row=1, col=last)
    figure.update_xaxes(title="block (0: embedding)", dtick=max(1, len(x) // 10))
    figure.update_yaxes(type="log", exponentformat="power", col=last)
    return themed(figure, table.title, 440, table.note)
