"""Quantities of a model on tokens: tensors whose axes the signatures name, rates with intervals, and the loss.

Each takes what `measure` takes, or a report in place of model and tokens where a report holds the numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import ALL, CALL, RESIDUAL, AttentionCall, Edit, maps
from ..checks import InputError, different_numbers, whole_number
from ..data.tokens import TokensLike
from ..interventions.changes import Edits, edits_of
from ..interventions.selectors import check_heads, named_heads
from ..metrics.estimates import Estimate, rate
from ..metrics.importance import sink_rate as rate_by_sequence
from ..metrics.instruments import LOSS, MASSIVE
from ..metrics.metric import Metric, next_token_loss
from ..report.norms import massive_by_block
from ..report.patterns import alphas_of, holds_attention
from ..report.report import Report, chosen_rows
from ..report.summary import compare as compare_reports
from ..table import Table
from .measure import ModelLike, check_unedited, equal_inputs_of, inputs_of, measure, passes

Layers = int | Sequence[int] | None
Heads = Iterable[tuple[int, int]] | None
TokenLosses = Float[Tensor, "sequence token"]


def sink_rate(
    model: Report | ModelLike | Any,
    tokens: TokensLike | Any = None,
    *,
    layers: Layers = None,
    heads: Heads = None,
    position: int = 0,
    epsilon: float = 0.3,
    edits: Edits = (),
) -> Estimate:
    """Sink_k^epsilon, k = position + 1: the share of (sequence, layer, head) whose alpha_k is above epsilon; 0..1.

    Its 95% interval is over sequences. `layers` or `heads`, which are pairs (layer, head), choose what counts. Also
    takes the attention weights that `si.sinks` takes. Raises InputError for layers and heads that are not there, and
    as `measure` does.
    """
    alphas = _alphas(model, tokens, position, edits)
    chosen = chosen_heads({layer: alpha.shape[1] for layer, alpha in alphas.items()}, layers, heads)
    alpha = torch.stack([alphas[layer][:, head] for layer, head in chosen], 1)
    return rate(rate_by_sequence(alpha[:, None], epsilon))


def key_norms(
    model: Report | ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, edits: Edits = ()
) -> Float[Tensor, "layer kv_head position"]:
    """Lengths of the keys after their rotation, mean over the texts that have the position."""
    report = _measured(model, tokens, edits)
    return _of_layers(report.key_norms.nanmean(0), report.attention_layers, layers)


def value_norms(
    model: Report | ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, edits: Edits = ()
) -> Float[Tensor, "layer kv_head position"]:
    """Lengths of the values, mean over the texts that have the position."""
    report = _measured(model, tokens, edits)
    return _of_layers(report.value_norms.nanmean(0), report.attention_layers, layers)


def residual_norms(
    model: Report | ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, edits: Edits = ()
) -> Float[Tensor, "block position"]:
    """Lengths of what each block reads, then of the last block's output, mean over the texts that have the position."""
    report = _measured(model, tokens, edits)
    norms = report.residual_norms.nanmean(0)
    return _of_layers(norms, range(len(norms)), layers)


def qk_cosines(
    model: ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, position: int = 0, edits: Edits = ()
) -> Float[Tensor, "layer head query"]:
    """Cosines of each query with the key at `position`, mean over texts; NaN for queries that cannot see it."""
    report, cosines = _cosines(model, tokens, position, edits)
    return _of_layers(cosines.nanmean(0), report.attention_layers, layers)


def qk_angles(
    model: ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, position: int = 0, edits: Edits = ()
) -> Float[Tensor, "layer head query"]:
    """Angles of each query with the key at `position` in degrees, mean over texts; NaN where `qk_cosines` is."""
    report, cosines = _cosines(model, tokens, position, edits)
    return _of_layers(cosines.clamp(-1, 1).acos().rad2deg().nanmean(0), report.attention_layers, layers)


def attention_weights(
    model: ModelLike, tokens: TokensLike | Any, *, layers: Layers = None, edits: Edits = ()
) -> Float[Tensor, "sequence layer head query key"]:
    """The attention weights between tokens. The rows of a model with a slot sum to less than one."""
    subject, token_set = inputs_of(model, tokens)
    reads = {"weights": CALL.read(AttentionCall.weights_at)}
    weights = subject.run(token_set, reads=reads, edits=edits_of(edits), logits=False)["weights"]
    return _of_layers(weights.movedim(1, 0).detach().cpu(), subject.shape.attention_layers, layers).movedim(0, 1)


def hidden_states(
    model: ModelLike, tokens: TokensLike | Any, *, layers: Layers = None, edits: Edits = ()
) -> Float[Tensor, "sequence block position d_model"]:
    """The residual stream: what each block reads, then the last block's output, before the final norm.

    Raises InputError for texts of different lengths.
    """
    subject, given = inputs_of(model, tokens)
    reads = {"x": RESIDUAL.read(lambda x: x)}
    x = subject.run(given.of_one_length(), reads=reads, edits=edits_of(edits), logits=False)["x"].movedim(1, 0)
    return _of_layers(x.detach().cpu(), range(len(x)), layers).movedim(0, 1)


def massive_activations(
    model: Report | ModelLike, tokens: TokensLike | Any = None, *, layers: Layers = None, edits: Edits = ()
) -> Table:
    """The largest entries of the residual stream, a row for each block, beside its median.

    Raises InputError for a report that was measured without the instrument MASSIVE.
    """
    report = _measured(model, tokens, edits, instruments=MASSIVE)
    return chosen_rows(massive_by_block(report), layers=layers)


def loss(model: Report | ModelLike, tokens: TokensLike | Any = None, *, edits: Edits = ()) -> float:
    """The loss of the next token in nats, mean over all tokens of the texts."""
    report = _measured(model, tokens, edits, instruments=LOSS)
    return report.extra(LOSS[0]).nanmean().item()


def token_losses(model: ModelLike, tokens: TokensLike | Any, edits: Sequence[Edit] = ()) -> TokenLosses:
    """The loss of every next token of texts of one length, each read at once, in nats."""
    subject, given = equal_inputs_of(model, tokens)
    batches = (batch for _, batch in passes(subject, given.to(subject.device)))
    return torch.cat([next_token_loss(subject.run(batch, edits=edits).logits, batch).cpu() for batch in batches])


def compare(
    before: Report | ModelLike,
    after: Report | ModelLike,
    tokens: TokensLike | Any = None,
    *,
    epsilon: float = 0.3,
    **measuring: Any,
) -> Table:
    """What changed between two reports, or two models that read the same tokens; see `report.summary.compare`.

    `measuring` are further arguments of `measure`, with which both are measured. Raises InputError for tokens beside
    two reports, and for one model twice.
    """
    if isinstance(before, Report) and isinstance(after, Report) and tokens is not None:
        raise InputError("two reports are measured already; leave the tokens out, or give the models")
    is_name = isinstance(before, str | Path)
    if not isinstance(before, Report) and (before is after or (is_name and str(before) == str(after))):
        fix = "give two reports, such as si.measure(model, text) and si.measure(model, text, edits=...)"
        raise InputError(f"before and after are the same model, measured alike; {fix}")
    old, new = (x if isinstance(x, Report) else measure(x, tokens, **measuring) for x in (before, after))
    return compare_reports(old, new, epsilon)


def _measured(model: Any, tokens: Any, edits: Edits, **how: Any) -> Report:
    """The report of a model, or the one that is given in its place."""
    if isinstance(model, Report):
        if tokens is not None or edits_of(edits):
            raise InputError("a report is measured already; leave its text and edits out, or give the model")
        return model
    if tokens is None and not how:
        how = {"positions": 0}
    return measure(model, tokens, edits=edits, **how)


def _alphas(model: Any, tokens: Any, position: int, edits: Edits) -> dict[int, Float[Tensor, "sequence head"]]:
    """Importance of a position in the heads of each layer."""
    whole_number(position, "position", 0)
    if tokens is None and not isinstance(model, Report) and holds_attention(model):
        check_unedited(edits)
        return alphas_of(model, position)[0]
    report = _measured(model, tokens, edits, positions=(position,))
    return dict(zip(report.attention_layers, report.alpha(position).unbind(1), strict=True))


def _cosines(
    model: Any, tokens: Any, position: int, edits: Edits
) -> tuple[Report, Float[Tensor, "sequence layer head query"]]:
    """The report of a model, and the cosines of its queries with the key at a position."""
    if isinstance(model, Report):
        raise InputError("a report does not hold the cosine of each query; give the model and its text")
    subject, given = inputs_of(model, tokens)
    at = whole_number(position, "position", 0, given.tokens.shape[1] - 1)

    def read(call: AttentionCall) -> Tensor:
        key = call.keys[at : at + 1]
        return maps.COSINE.values_of(call)(key, ALL).masked_fill(~call.allowed(key), torch.nan)[..., 0]

    metric = Metric(f"cosines_to_{at}", CALL, read)
    report = measure(subject, given, edits=edits, positions=0, instruments=[(metric,)])
    return report, report.extra(metric)


def _of_layers(values: Tensor, there: Sequence[int], layers: Layers) -> Tensor:
    """The values of the chosen layers, along the first axis. Raises InputError for a layer that is not there."""
    return values if layers is None else values[[there.index(layer) for layer in _chosen_layers(there, layers)]]


def _chosen_layers(there: Iterable[int], layers: Layers) -> list[int]:
    known = [*there]
    chosen = known if layers is None else different_numbers(layers, "layers")
    if absent := [layer for layer in chosen if layer not in known]:
        raise InputError(f"there is no layer {absent[0]} here; choose from {', '.join(map(str, known))}")
    return chosen


def chosen_heads(sizes: Mapping[int, int], layers: Layers, heads: Heads) -> list[tuple[int, int]]:
    """The heads of some layers, or those that pairs name, in order as (layer, head); all by default.

    sizes: how many heads each attending layer has. Raises InputError for heads and layers that are not there.
    """
    if heads is None:
        return [(layer, head) for layer in sorted(_chosen_layers(sizes, layers)) for head in range(sizes[layer])]
    if layers is not None:
        raise InputError("heads are pairs (layer, head), which name their layers; leave layers= out")
    chosen = named_heads(heads, "heads", [*sizes], max(sizes.values()))
    for layer, head in chosen:
        check_heads([(layer, head)], [layer], sizes[layer], "head")  # weights may have other heads in each layer
    return chosen
