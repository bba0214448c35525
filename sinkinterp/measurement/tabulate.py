"""Tables and figures of a report, and methods of a subject, as functions of a model and a text."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..attention import ALL, CALL, RESIDUAL, AttentionCall, maps
from ..backends.load import subject_of
from ..backends.patched import with_block_edits
from ..checks import InputError, is_whole, whole_number, whole_numbers
from ..data.texts import is_path
from ..data.tokens import TokensLike
from ..interventions.edit import Edits, edits_of
from ..metrics.importance import Metric
from ..metrics.instruments import INSTRUMENTS, LOSS
from ..report.answers import NamedTensor, Number, OfTable
from ..report.compare import compare as compare_reports, sinks_by
from ..report.norms import LARGEST_VALUE, largest_entries
from ..report.readings import TokenText
from ..report.report import NAMED, Report, view_of
from ..table import ALPHA_1, BLOCK, HEAD, KV_HEAD, LAYER, MODEL, POSITION, Table
from .maps import by_name
from .measure import ModelLike, inputs_of, measure


def _measured(model: Any, tokens: Any, edits: Edits, **how: Any) -> tuple[Report, TokenText]:
    """The report of a model, or the one that is given in its place; and the text of its tokens."""
    if isinstance(model, Report):
        if tokens is not None or edits_of(edits):
            raise InputError("a report is measured already; leave its text and edits out, or give the model")
        return model, str
    subject = subject_of(model)
    return measure(subject, tokens, edits=edits, **how), subject.label


def _table_of(view: str) -> Callable[..., Table]:
    """A function that measures what a view of `Report.plot` needs and returns its table."""

    def tabulate(
        model: ModelLike,
        tokens: TokensLike | Any = None,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        *,
        top: int | None = None,
        epsilon: float = 0.3,
        edits: Edits = (),
    ) -> Table:
        """The table of one view of a model on tokens that `measure` takes, of some layers or blocks, and heads.

        `top` keeps the largest rows; of massive activations, it makes those of the largest entries. Raises InputError
        as `measure` does, and where the table has no such rows.
        """
        needed = NAMED["massive" if view == "entries" else view].instrument
        report, label = _measured(model, tokens, edits, instruments=INSTRUMENTS.get(needed, ()))
        return rows_named(view, report, epsilon, label, layers=layers, heads=heads, top=top)

    tabulate.__name__ = view
    return with_block_edits(tabulate)


def rows_named(name: str, report: Report, epsilon: float, word: TokenText, **chosen: Any) -> Table:
    """The rows that `chosen_rows` keeps of a view, or of the largest entries of one layer or of the tallest block."""
    if name != "entries" and (name != "massive" or chosen.get("top") is None):
        return chosen_rows(view_of(report, name).table(report, epsilon, word), **chosen)
    blocks = [] if chosen.get("layers") is None else whole_numbers(chosen["layers"], "layer")
    block = whole_number(blocks[0], "layer", 0, report.residual_norms.shape[1] - 1) if len(blocks) == 1 else None
    chosen |= {"layers": None} if block is not None else {}
    return chosen_rows(largest_entries(report, epsilon, word, block), **chosen, by=LARGEST_VALUE)


def chosen_rows(
    table: Table, layers: Any = None, heads: Any = None, top: int | None = None, positions: Any = None, by: str = ""
) -> Table:
    """The table with the rows of some layers or blocks, heads, and positions; None keeps all. `top`: the largest.

    Raises InputError where it has no such rows.
    """
    layer = LAYER if LAYER in table.frame else BLOCK
    given = {"layers": (layer, layers), "heads": (HEAD, heads), "positions": (POSITION, positions)}
    given = {name: (column, numbers) for name, (column, numbers) in given.items() if numbers is not None}
    rows = [
        row
        for row in table.records()
        if all(row.get(column) in whole_numbers(x, column) for column, x in given.values())
    ]
    if not rows:
        absent = [name for name, (column, _) in given.items() if column not in table.frame] or [*given]
        raise InputError(f"{table.title!r} has no such rows; leave {'=... and '.join(absent)}=... out")
    return table.with_rows(rows) if top is None else table.with_rows(rows).largest(by or ALPHA_1, top)


def _numbers_of(
    quantity: str, axes: Sequence[str], read: Callable[[Any], Tensor], metric: Callable[[int], Metric] | None = None
) -> Callable[..., NamedTensor]:
    """A function that measures a number of each token, or with a metric of each query for the key at a position."""

    def measured(
        model: ModelLike,
        tokens: TokensLike | Any = None,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        position: int | None = None,
        *,
        edits: Edits = (),
    ) -> NamedTensor:
        """The numbers of a model on tokens that `measure` takes, mean over the texts that have the position.

        One layer or head, from 0, leaves its axis out, a list keeps it. Raises InputError as `measure` does.
        """
        added = [] if metric is None else [metric(position or 0)]
        if added and isinstance(model, Report):
            raise InputError(f"a report does not hold each {quantity}; give the model and its text")
        report, _ = _measured(model, tokens, edits, positions=0, instruments=[(each,) for each in added])
        values = read(report.extra(added[0]) if added else report)
        places: Any = dict(zip(axes, values.shape[1:], strict=True))
        places |= {LAYER: report.attention_layers} if LAYER in axes else {}
        if heads is not None and len(axes) < 3:
            raise InputError("residuals have no heads; leave heads=... out")
        chosen = {axes[0]: layers, axes[-1]: None if added else position} | ({axes[1]: heads} if len(axes) > 2 else {})
        return NamedTensor.of(values.nanmean(0), quantity, **places).at(**chosen)

    measured.__name__ = quantity
    return with_block_edits(measured)


def _cosines_to(position: int) -> Metric:
    """cos(q_i, k) of every query that can see the key at a position; NaN for the others."""

    def read(call: AttentionCall) -> Tensor:
        key = call.keys[position : position + 1]
        return maps.COSINE.values_of(call)(key, ALL).masked_fill(~call.allowed(key), torch.nan)[..., 0]

    return Metric(f"cosines_to_{position}", CALL, read)


@dataclass(frozen=True, eq=False)
class Norms(OfTable):
    """Lengths of keys and values, tensors `layer kv_head position`, and of residuals, `block position`."""

    kind = "norms"

    keys: NamedTensor
    values: NamedTensor
    residuals: NamedTensor
    by_token: Table = field(repr=False)

    @property
    def table(self) -> Table:
        return self.by_token

    def to_pandas(self) -> Any:
        """A row for each layer, head of keys and position, with the norms of its key and of its value."""
        return self.keys.table.frame.assign(value_norm=self.values.table.frame["value_norm"])

    to_df = to_frame = to_dataframe = to_pandas
    df = property(to_pandas)

    def plot(self, of: str = "residuals") -> Any:
        """The picture of all blocks by kind of token; of chosen blocks, that of one of the tensors."""
        return (self.by_token if isinstance(self.residuals.axes.get(BLOCK), range) else self[of]).plot()

    def __iter__(self) -> Iterator[NamedTensor]:
        return iter((self.keys, self.values))

    def __getitem__(self, name: Any) -> Any:
        if is_whole(name):
            return (*self, self.residuals)[name]
        return getattr(self, name) if isinstance(name, str) else self.to_pandas()[name]

    def __getattr__(self, name: str) -> Any:
        if f"{name}s" in vars(self):
            return vars(self)[f"{name}s"]
        frame = None if name[0] == "_" or hasattr(Table, name) else self.to_pandas()
        return getattr(frame, name) if hasattr(frame, name) else OfTable.__getattr__(self, name)


massive_activations, entries, heads, positions, _angles = map(
    _table_of, ["massive", "entries", "sinks", "positions", "angles"]
)
key_norms = _numbers_of("key_norm", (LAYER, KV_HEAD, POSITION), lambda report: report.key_norms)
value_norms = _numbers_of("value_norm", (LAYER, KV_HEAD, POSITION), lambda report: report.value_norms)
residual_norms = _numbers_of("residual_norm", (BLOCK, POSITION), lambda report: report.residual_norms)
qk_cosines = _numbers_of("cosine", (LAYER, HEAD, "query"), lambda cosines: cosines, _cosines_to)
qk_angles = _numbers_of("degrees", (LAYER, HEAD, "query"), lambda x: x.clamp(-1, 1).acos().rad2deg(), _cosines_to)


@with_block_edits
def norms(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    position: int | None = None,
    *,
    edits: Edits = (),
) -> Norms:
    """The norms of keys, values and residuals as tensors, of some layers, heads of keys and positions."""
    report, label = _measured(model, tokens, edits, positions=0)
    of_heads: Any = {"layers": layers, "heads": heads, "position": position}
    stream = residual_norms(report, layers=layers, position=position)
    table = NAMED["norms"].table(report, 0.3, label)
    return Norms(key_norms(report, **of_heads), value_norms(report, **of_heads), stream, table)


@wraps(heads, assigned=())
def sink_heads(*args: Any, top: int | None = None, epsilon: float = 0.3, **named: Any) -> Table:
    """The heads that give the first token more than epsilon, mean over the texts, the strongest first, or the `top`."""
    table = heads(*args, **named).largest(ALPHA_1, top)
    return replace(table, frame=table.frame[table.frame[ALPHA_1] > epsilon])


@with_block_edits
def loss(model: ModelLike, tokens: TokensLike | Any = None, *, edits: Edits = ()) -> Number:
    """The loss of the next token in nats, mean over all tokens of the texts."""
    report, _ = _measured(model, tokens, edits, positions=0, instruments=LOSS)
    return Number(report.extra(LOSS[0]).nanmean())


def perplexity(model: ModelLike, tokens: TokensLike | Any = None, *, edits: Edits = ()) -> Number:
    """The exponential of `loss`."""
    return Number(math.exp(loss(model, tokens, edits=edits)))


@with_block_edits
def attention_weights(
    model: ModelLike,
    tokens: TokensLike | Any,
    layers: Any = None,
    heads: Any = None,
    position: Any = None,
    *,
    edits: Edits = (),
) -> NamedTensor:
    """The attention weights, `sequence layer head query key`, of all keys or of the key at a position.

    One text, or one layer, head or position, from 0, leaves its axis out, a list keeps it.
    """
    subject, token_set = inputs_of(model, tokens)
    read = {"pattern": CALL.read(AttentionCall.pattern)}
    weights = subject.run(token_set, reads=read, edits=edits, logits=False)["pattern"]
    sizes: Any = dict(zip(("sequence", LAYER, HEAD, "query", "key"), weights.shape, strict=True))
    named = NamedTensor.of(weights, "attention", **sizes | {LAYER: subject.shape.attention_layers})
    return named.at(sequence=_one_text(tokens), layer=layers, head=heads, key=position)


def _one_text(tokens: Any) -> int | None:
    """The place of the sequence of a text that is given alone, whose axis is left out."""
    return 0 if isinstance(tokens, str) and not is_path(tokens) else None


@with_block_edits
def hidden_states(
    model: ModelLike,
    tokens: TokensLike | Any,
    layers: Any = None,
    position: int | Sequence[int] | None = None,
    *,
    edits: Edits = (),
) -> NamedTensor:
    """The residual stream, `block sequence position d_model`: what each block reads, then the last block's output.

    It is before the final norm. One text, or one block or position, from 0, leaves its axis out, a list keeps it.
    Raises InputError for texts of different lengths.
    """
    subject, given = inputs_of(model, tokens)
    reads = {"x": RESIDUAL.read(lambda x: x)}
    x = subject.run(given.of_one_length(), reads=reads, edits=edits_of(edits), logits=False)["x"].movedim(1, 0)
    sizes = dict(zip((BLOCK, "sequence", POSITION, "channel"), x.shape, strict=True))
    return NamedTensor.of(x, "hidden_state", **sizes).at(sequence=_one_text(tokens), block=layers, position=position)


def compare(
    before: Any,
    after: Any = None,
    tokens: Any = None,
    epsilon: float = 0.3,
    *,
    names: Sequence[str] | None = None,
    **how: Any,
) -> Table:
    """The table of `report.compare.compare` of two reports, two models on tokens, or one model on two texts.

    Models are measured with `how`. Those in a list, which may have `names`, or in a mapping from names are one row
    each. Raises InputError for others.
    """
    if _is_text(after) and _is_text(tokens):
        return compare_reports(measure(before, after, **how), measure(before, tokens, **how), epsilon)
    is_several = isinstance(before, list | tuple | Mapping)
    tokens = after if is_several and tokens is None else tokens
    models = by_name(before if is_several else [before, after], names).items()
    reports = {name: x if tokens is None and isinstance(x, Report) else measure(x, tokens, **how) for name, x in models}
    if is_several or names is not None:
        return sinks_by(MODEL, reports, epsilon)
    old, new = reports.values()
    return compare_reports(old, new, epsilon)


def _is_text(given: Any) -> bool:
    """Tells texts and tokens from models and their names."""
    first = given[0] if isinstance(given, list | tuple) and given else given
    return isinstance(first, Tensor | int) or (isinstance(first, str) and len(first.split()) > 1)
