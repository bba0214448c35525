"""Tables and figures of a report, and methods of a subject, as functions of a model and a text."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from ..attention import Edit
from ..backends.load import subject_of
from ..backends.patched import patched, with_block_edits
from ..checks import InputError, fix_of, is_whole, keywords, synonym, whole_number, whole_numbers
from ..data.tokens import TokensLike
from ..interventions.edit import Edits, edits_of
from ..metrics.instruments import INSTRUMENTS
from ..metrics.residuals import TOP_ENTRIES
from ..report.compare import compare as compare_reports
from ..report.norms import NORM, PEAK, RESIDUAL, largest_entries
from ..report.report import NAMED, Report, View
from ..table import ALPHA_1, BLOCK, HEAD, LAYER, QUANTITY, Table
from .measure import ModelLike, inputs_of, measure

_SIZES = (ALPHA_1, "alpha", NORM, PEAK, "largest |value|")  # by which rows of a table are ranked, where it has one
_VIEWS = {**NAMED, "entries": View(largest_entries, needs=(TOP_ENTRIES,))}


def _table_of(view: str, quantity: str | None = None) -> Callable[..., Table]:
    """A function that measures what a view of `Report.plot` needs and returns its table, of one quantity or of all."""

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
        subject, shown = subject_of(model), _VIEWS["entries" if view == "massive" and top is not None else view]
        report = measure(subject, tokens, edits=edits, instruments=INSTRUMENTS.get(shown.instrument, ()))
        table = shown.table(report, epsilon, subject.label)
        return chosen_rows(table if quantity is None else table.where(**{QUANTITY: quantity}), layers, heads, top)

    tabulate.__name__ = quantity or view
    return keywords(with_block_edits(tabulate))


def chosen_rows(table: Table, layers: Any = None, heads: Any = None, top: int | None = None) -> Table:
    """The table with the rows of some layers or blocks, and heads; None keeps all. `top` keeps the largest of them.

    Raises InputError where it has no such rows.
    """
    for column, chosen in ((LAYER if LAYER in table.columns else BLOCK, layers), (HEAD, heads)):
        if chosen is not None:
            numbers = whole_numbers(chosen, column)
            table = table.with_rows(row for row in table if row.get(column) in numbers)
    if not len(table):
        absent = "heads=... out" if HEAD not in table.columns and heads is not None else "layers=... and heads=... out"
        raise InputError(f"{table.title!r} has no such layers and heads; leave {absent}")
    if top is None:
        return table
    by = next((column for column in _SIZES if column in table.columns), None)
    largest = sorted(table, key=lambda row: float(row[by] or 0), reverse=True) if by else table
    return table.with_rows([*largest][: whole_number(top, "top", 1)])


def _figure_of(table: Callable[..., Table]) -> Callable[..., Any]:
    """A function that draws what `table` returns."""
    return wraps(table)(lambda *args, **named: table(*args, **named).plot())


def _method(name: str) -> Callable[..., Any]:
    """A method of a subject as a function that takes the model first, and edits."""

    @keywords
    def called(model: ModelLike, *args: Any, edits: Edits = (), **named: Any) -> Any:
        subject = subject_of(model)
        return getattr(patched(subject, edits=edits) if edits_of(edits) else subject, name)(*args, **named)

    return called


massive, entries, norms, angles, heads, positions = map(
    _table_of, ["massive", "entries", "norms", "angles", "sinks", "positions"]
)
keys, values, residuals = (_table_of("norms", quantity) for quantity in ("key", "value", RESIDUAL))
plot_massive, plot_norms, plot_angles, plot_heads = map(_figure_of, (massive, norms, angles, heads))
run_with_cache, generate = map(_method, ("run_with_cache", "generate"))


@keywords
@with_block_edits
def attention(
    model: ModelLike, tokens: TokensLike | Any, layers: Any = None, heads: Any = None, *, edits: Edits = ()
) -> Tensor:
    """The attention weights of `subject.attention`; one layer or head, from 0, leaves its axis out, a list keeps it."""
    subject, token_set = inputs_of(model, tokens)
    weights = subject.attention(token_set, edits)
    for axis, what, chosen in ((2, "heads", heads), (1, "layers", layers)):
        if chosen is not None:
            numbers = torch.tensor(whole_numbers(chosen, what, 0, weights.shape[axis] - 1), device=weights.device)
            kept = weights.index_select(axis, numbers)
            weights = kept.squeeze(axis) if is_whole(chosen) else kept
    return weights


@keywords
def activations(model: ModelLike, tokens: TokensLike | Any, layers: int | Sequence[int] | None = None) -> Any:
    """The ActivationCache of TransformerLens; with `layers`, a dictionary of what these blocks return.

    Texts become the tokens that `measure` reads. Raises InputError for texts of different lengths.
    """
    subject, token_set = inputs_of(model, tokens)
    cache = run_with_cache(subject, token_set.of_one_length())[1]
    last = cache.model.cfg.n_layers - 1
    return cache if layers is None else {i: cache["resid_post", i] for i in whole_numbers(layers, "layers", 0, last)}


@keywords
def compare(before: Any, after: Any = None, tokens: Any = None, epsilon: float = 0.3, **how: Any) -> Table:
    """The table of `report.compare.compare` for two reports, or for two models, measured on tokens with `how`."""
    before = list(before.values()) if isinstance(before, Mapping) else before
    if isinstance(before, list | tuple):
        if len(before) != 2:
            raise InputError(f"two are compared, and {len(before)} are given{fix_of('compare')}")
        (before, after), tokens = before, after if tokens is None else tokens
    old, new = (x if tokens is None and isinstance(x, Report) else measure(x, tokens, **how) for x in (before, after))
    return compare_reports(old, new, epsilon)


@keywords
def intervene(model: ModelLike, *given: Any, edits: Edits = ()) -> Any:
    """The report of an edited model on the tokens before the edits; without tokens, the block of `patched`."""
    n = int((len(given) > 1 or bool(given and edits_of(edits))) and not isinstance(given[0], Edit))
    every = [edit for each in (edits, *given[n:]) for edit in edits_of(each)]
    return measure(model, given[0], edits=every) if n else patched(model, edits=every)


def edited(kind: Callable[..., Edit]) -> Callable[..., Any]:
    """A function that makes an edit, or of a model, of tokens or none, and of an edit, what `intervene` returns."""
    if isinstance(kind, type) and not issubclass(kind, Edit):  # an operation
        return kind

    def named(*args: Any, **fields: Any) -> Any:
        fields = {synonym(word, signature(kind).parameters): value for word, value in fields.items()}
        is_model = bool(args) and callable(getattr(args[0], "generate", None))
        args += tuple(fields.pop(word) for word in ("text", "tokens") if is_model and word in fields)
        refused = []
        for n in range(is_model, min(3, len(args) + 1)):
            try:
                edit = kind(*args[n:], **fields)
            except (InputError, TypeError) as error:
                refused.append(error)
            else:
                return intervene(*args[:n], edits=edit) if n else edit
        raise refused[0 if is_model or is_whole(args[0] if args else 0) else 1]

    return named
