"""Measures the worth of a remedy against sinks: a model's outliers, and its costs of quantisation and eviction."""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from sinkinterp.applications.mend import UNIFORM
from sinkinterp.applications.quantising import GRAINS, SIDES, Quantise, nothing, quantised_weights, relative_error
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.tokens import Tokens
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.interventions.changes import ChangeResidual
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.patching import activations
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.measurement.watching import PEAK
from sinkinterp.metrics.estimates import estimate, estimate_cells
from sinkinterp.metrics.residuals import KURTOSIS
from sinkinterp.table import ALPHA_1, Cell, high_of, low_of

from .rules import number

BITS = 8
KURTOSIS_COLUMN, LARGEST, SPEED = "kurtosis", "largest entry", "tokens a second"
EVICTED, EVICTED_CONTROL = "loss without the first token", "loss with it in the window"
ACTIVATIONS = {grain: f"int8 activations per {grain}" for grain in GRAINS}
WEIGHTS = {grain: f"int8 weights per {grain}" for grain in SIDES}
COSTS = tuple(f"{of}, {name}" for name in (*ACTIVATIONS.values(), *WEIGHTS.values()) for of in ("error", "loss"))
OVER_UNIFORM = "alpha_1 over uniform attention"
PASSES = 5  # that the speed is the best of
Row = dict[str, Cell]


def over_uniform(cells: Mapping[str, Cell]) -> Row:
    """`alpha_1` of a row of `mend` less what uniform attention gives, with the interval of `alpha_1`."""
    ends = (str, low_of, high_of)
    return {end(OVER_UNIFORM): number(cells[end(ALPHA_1)]) - number(cells[UNIFORM]) for end in ends}


def outliers_and_costs(subject: HuggingFaceSubject, tokens: Tokens) -> Row:
    """Kurtosis, largest entry, errors and added losses of int8 and of eviction, and the speed of a forward pass."""
    report = measure(subject, tokens, positions=(0,), instruments=[(KURTOSIS, PEAK)])
    full = token_losses(subject, tokens)
    return {
        KURTOSIS_COLUMN: report.extra(KURTOSIS).mean(0).max().item(),
        LARGEST: report.extra(PEAK).max().item(),
        **_of_activations(subject, tokens, full),
        **_of_weights(subject, tokens, full),
        **_of_eviction(subject, tokens, full),
        SPEED: _speed(subject, tokens),
    }


def _of_activations(subject: HuggingFaceSubject, tokens: Tokens, full: Tensor) -> Row:
    """Error and added loss where the input of every block is rounded."""
    x = {block: here.cpu().float() for block, here in activations(ChangeResidual(), subject, tokens).items()}
    row: Row = {}
    for grain, name in ACTIVATIONS.items():
        edit = Quantise(BITS, GRAINS[grain], nothing)
        row[f"error, {name}"] = relative_error(x, edit).mean().item()
        row |= estimate_cells(f"loss, {name}", estimate((token_losses(subject, tokens, [edit]) - full).mean(1)))
    return row


def _of_weights(subject: HuggingFaceSubject, tokens: Tokens, full: Tensor) -> Row:
    """Error and added loss where the linear maps of all blocks are rounded."""
    row: Row = {}
    for grain, name in WEIGHTS.items():
        with quantised_weights(subject, BITS, SIDES[grain], nothing) as error:
            row[f"error, {name}"] = error
            row |= estimate_cells(f"loss, {name}", estimate((token_losses(subject, tokens) - full).mean(1)))
    return row


def _of_eviction(subject: HuggingFaceSubject, tokens: Tokens, full: Tensor) -> Row:
    """Loss that a cache of half the text adds, after it began to evict, without the first token and with it."""
    window = tokens.shape[1] // 2
    row: Row = {}
    for name, kept in ((EVICTED, 0), (EVICTED_CONTROL, 1)):
        added = (token_losses(subject, tokens, [Evict(window, kept)]) - full)[:, window:].mean(1)
        row |= estimate_cells(name, estimate(added))
    return row


@torch.no_grad()
def _speed(subject: HuggingFaceSubject, tokens: Tokens) -> float:
    """Tokens a second of the fastest of some forward passes."""
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        subject.model(tokens.to(subject.device))
        seconds.append(time.perf_counter() - start)
    return tokens.numel() / min(seconds)
