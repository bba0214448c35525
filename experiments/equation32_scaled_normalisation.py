"""Equations 32 to 42: scaling the attention weights by alpha is scaling the initial W_O and its learning rate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor, nn

from sinkinterp.attention.kernels import Kernel
from sinkinterp.data.choices import Scale
from sinkinterp.files import cache_folder
from sinkinterp.lm.model import LMSpec, SinkForCausalLM, build
from sinkinterp.lm.variants import BASE, attn
from sinkinterp.runs.experiment import Experiment, Rule, Scope
from sinkinterp.table import Cell, Table
from sinkinterp.train.loop import Task, prepared, threads
from sinkinterp.train.recipe import Recipe

from .shared.figures import beside_published
from .shared.rules import within
from .shared.study import BASES, base_of

_TOY = replace(BASES[Scale.DEMO], model=replace(BASE, d_model=16, n_heads=2, n_layers=2))
PAIRS: Mapping[Scale, Recipe] = {Scale.SMOKE: _TOY, Scale.DEMO: _TOY, Scale.TEXT: BASES[Scale.TEXT]}
RATE, DECAY, EPSILON = 1e-2, 0.1, 1e-8
ALPHAS = (0.2, 0.05, 2.0)
CASE, DISTANCE = "optimiser, alpha, change", "largest distance"
EXACT = "by equations 34 to 42"


def _is_output(name: str) -> bool:
    return name.endswith("o_proj.weight")


def _optimizer(model: nn.Module, adam: bool, of_output: dict[str, float]) -> torch.optim.Optimizer:
    """SGD or AdamW with settings of its own for W_O."""
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if _is_output(name)], **of_output},
        {"params": [p for name, p in named if not _is_output(name)]},
    ]
    if adam:
        return torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY, eps=EPSILON)
    return torch.optim.SGD(groups, lr=RATE)


def _distance(spec: LMSpec, batches: list[Tensor], alpha: float, adam: bool, of_output: dict[str, float]) -> float:
    """The largest distance of the two models' logits, over a step on each of the batches, in fp64."""
    scaled = build(attn(spec, kernel=Kernel(alpha=alpha))).double()
    plain = build(spec).double()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if _is_output(name):
                parameter.mul_(alpha)
    models: tuple[SinkForCausalLM, SinkForCausalLM] = (scaled, plain)
    optimizers = (_optimizer(scaled, adam, {}), _optimizer(plain, adam, of_output))
    largest = 0.0
    for tokens in batches:
        outputs = [model(input_ids=tokens, labels=tokens, use_cache=False) for model in models]
        largest = max(largest, (outputs[0].logits - outputs[1].logits).abs().max().item())
        for output, optimizer in zip(outputs, optimizers, strict=True):
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
    return largest


def rows(scope: Scope) -> Table:
    """A row per optimiser, alpha and way to change the plain model's optimiser; without a change is the control."""
    base, steps = base_of(scope, PAIRS), 5 if scope.scale is Scale.SMOKE else 100
    task: Task = prepared(base.data, scope.cache or cache_folder())
    batches = [task.sample(16, "scaled normalisation", step) for step in range(1, steps + 1)]
    on_row = scope.progress("training in pairs")
    made: list[dict[str, Cell]] = []
    for alpha in ALPHAS:
        exact = {"lr": alpha * RATE, "eps": EPSILON / alpha, "weight_decay": DECAY / alpha}
        settings = {"SGD": {"lr": alpha**2 * RATE}, "AdamW": exact}
        for name, of_output in settings.items():
            for change, chosen in ((EXACT, of_output), ("control: initial W_O alone", {})):
                with threads(base.threads):
                    distance = _distance(base.model, batches, alpha, name == "AdamW", chosen)
                place: dict[str, Cell] = {"optimiser": name, "alpha": alpha, "change of W_O's settings": change}
                made.append({CASE: f"{name}, {alpha:g}, {change}", **place, DISTANCE: distance})
                on_row(len(made), 4 * len(ALPHAS))
    note = (
        f"largest |difference of logits| over {steps} steps of 16 sequences, fp64; {base.model.n_layers} layers x "
        f"{base.model.n_heads} heads, d_model {base.model.d_model}; {task.title}; the "
        "equations are exact, but training is chaotic: rounding grows with every step, on toys with AdamW to 1.8e-2 at "
        "400"
    )
    return Table.of("", note, tuple(made))


def draw(table: Table) -> go.Figure:
    """The distance of every pair, on a logarithmic axis."""
    figure = beside_published(Table("Distance of the two models", table.note, table.frame), CASE, DISTANCE, ())
    return figure.update_yaxes(type="log", tickformat=".0e")


def _rule(optimiser: str) -> Rule:
    claim = f"with {optimiser} the two models stay equal to 1e-6"
    return within(claim, DISTANCE, {"optimiser": optimiser, "change of W_O's settings": EXACT}, high=1e-6)


EXPERIMENT = Experiment(
    claim="Attention weights that are scaled by alpha train as unscaled ones do with W_O's initial values, learning "
    "rate, epsilon and weight decay changed.",
    rows=rows,
    draw=draw,
    rules=(_rule("SGD"), _rule("AdamW")),
    scales=tuple(PAIRS),
)
