"""Propositions 1 to 4: what attention makes of one token repeated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import plotly.graph_objects as go
import torch
from torch import Tensor

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Scale
from sinkinterp.data.tokens import repeated_token
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.runs.experiment import Experiment, Scope
from sinkinterp.runs.trained import trained
from sinkinterp.runs.workers import in_order
from sinkinterp.table import ALPHA_HEAD, SINK_1, Cell, Table
from sinkinterp.train.recipe import Recipe, with_variant

from .shared.figures import beside_published
from .shared.rules import MARGIN, within
from .shared.study import base_of, history_of

LENGTH, SEQUENCES = 16, 8
STEPS = 300  # of 6,000: the propositions hold for any weights
SIZES: Mapping[str, Mapping[str, Any]] = {
    "1 layer x 1 head": {},
    "4 layers x 3 heads": {"n_layers": 4, "n_heads": 3, "d_model": 48},
}
CASE, DISTANCE, STATES = "proposition, positions, size", "largest distance", "states differ by"
VISIBLE_MEAN = (1 / torch.arange(1, LENGTH + 1)).mean().item()


def _uniform(call: AttentionCall) -> Tensor:
    """Distance of the pattern from uniform attention over the past."""
    uniform = torch.ones(LENGTH, LENGTH).tril()
    return (call.pattern() - uniform / uniform.sum(-1, keepdim=True)).abs().amax((-1, -2))


def _from_bias(call: AttentionCall) -> Tensor:
    """Distance of the pattern from the softmax of the position bias alone."""
    assert call.bias is not None
    future = torch.ones(LENGTH, LENGTH).triu(1).bool()
    return (call.pattern() - call.bias.masked_fill(future, -torch.inf).softmax(-1)).abs().amax((-1, -2))


def _above_bound(call: AttentionCall) -> Tensor:
    """How far the largest weight of a query exceeds the bound of equation 28; 0 where it does not."""
    size = (call.q.norm(dim=-1) * call.k.norm(dim=-1)).amax(-1) * call.scale
    factor = (2 * size).exp()[..., None]
    bound = factor / (factor + torch.arange(LENGTH))
    return (call.pattern().amax(-1) - bound).clamp(min=0).amax(-1)


PROPOSITIONS: dict[str, tuple[str, str, Callable[[AttentionCall], Tensor]]] = {
    "1": ("no_position", "without positions, attention is uniform over the past", _uniform),
    "2": ("t5", "with relative positions, their bias alone makes the pattern", _from_bias),
    "3": ("alibi", "with ALiBi, its bias alone makes the pattern", _from_bias),
    "4": ("llama", "with rotary positions, no weight exceeds a bound by the norms of query and key", _above_bound),
}


def recipes(scope: Scope) -> list[Recipe]:
    """How models of text are trained; at other scales weights are random."""
    variants = [variant for variant, _, _ in PROPOSITIONS.values()] if scope.scale is Scale.TEXT else []
    return [recipe for variant in variants for recipe in _of_text(scope, variant)]


def _of_text(scope: Scope, variant: str) -> list[Recipe]:
    base = with_variant(replace(base_of(scope), steps=STEPS), variant)
    return [replace(base, seed=seed) for seed in range(scope.seeds)]


def _models(scope: Scope, variant: str) -> Iterator[tuple[str, int, Subject]]:
    """Models of a variant, each after its size and seed."""
    if scope.scale is Scale.TEXT:
        for recipe in _of_text(scope, variant):
            yield "trained on text", recipe.seed, trained(recipe, scope.cache).subject()
        return
    for size, fields in SIZES.items():
        spec = replace(VARIANTS[variant], **fields)
        yield from ((size, seed, HuggingFaceSubject(build(spec, seed))) for seed in range(scope.seeds))


def rows(scope: Scope) -> Table:
    """A row per proposition, size and seed: the largest numbers of any layer, head and sequence."""
    in_order(scope.workers, partial(history_of, cache=scope.cache), recipes(scope), scope.progress("training"))
    made: list[dict[str, Cell]] = []
    for number, (variant, _, distance) in PROPOSITIONS.items():
        for size, seed, subject in _models(scope, variant):
            place: dict[str, Cell] = {CASE: f"{number}, {variant}, {size}", "proposition": number, "seed": seed}
            made.append(place | _measured(subject, distance))
    weights = f"{STEPS} steps of training on text" if scope.scale is Scale.TEXT else "random weights"
    note = (
        f"one token repeated, n={SEQUENCES}, T={LENGTH}, fp32, epsilon=0.3, {weights}, {scope.seeds} seeds; null: "
        f"uniform attention has alpha_1 {VISIBLE_MEAN:.3f}; states: hidden states of any two positions, in any block, "
        "as a share of their norm"
    )
    return Table.of("", note, tuple(made))


def _measured(subject: Subject, distance: Callable[[AttentionCall], Tensor]) -> dict[str, Cell]:
    tokens = repeated_token(subject.shape.vocab, LENGTH, SEQUENCES)
    reads = {"distance": distance, "alpha": lambda call: call.pattern()[..., 0].mean(-1)}
    trace = subject.run(tokens.tokens, reads={**reads, "apart": RESIDUAL.read(_states_differ)})
    return {
        DISTANCE: trace["distance"].max().item(),
        STATES: trace["apart"].max().item(),
        ALPHA_HEAD: trace["alpha"].max().item(),
        SINK_1: (trace["alpha"] > 0.3).double().mean().item(),
    }


def _states_differ(x: Tensor) -> Tensor:
    """Equations 10 to 17: the largest distance of a state from that of the first token, over that one's norm."""
    return ((x - x[:, :1]).norm(dim=-1) / x[:, :1].norm(dim=-1)).amax(-1)


def draw(table: Table) -> go.Figure:
    """The distance for every proposition; bars of seeds lie over each other, so that the largest shows."""
    note = f"{table.note}; a bar is as high as its largest seed"
    figure = beside_published(Table("Distance from the proposition", note, table.frame), CASE, DISTANCE, ())
    return figure.update_yaxes(tickformat=".0e").update_layout(barmode="overlay")


EXPERIMENT = Experiment(
    claim="If all tokens are the same, models without learned positions cannot tell the first from the others.",
    rows=rows,
    draw=draw,
    rules=(
        *(
            within(f"proposition {number}: {claim}", DISTANCE, {"proposition": number}, high=1e-5)
            for number, (_, claim, _) in PROPOSITIONS.items()
        ),
        within("equations 10 to 17: in every block all positions have one state", STATES, {}, high=1e-5),
        *(  # with relative positions and ALiBi the bias alone makes the pattern, so no head is above its null
            within(
                f"no head has a sink {how}: alpha_1 is at most {MARGIN:g} above that of uniform attention",
                ALPHA_HEAD,
                {"proposition": number},
                high=VISIBLE_MEAN + MARGIN,
            )
            for number, how in (("1", "without positions"), ("4", "with rotary positions"))
        ),
    ),
    scales=(Scale.SMOKE, Scale.DEMO, Scale.TEXT),
    recipes=recipes,
)
