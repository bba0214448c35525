"""Studies: experiments that train models of ours. An arm is a change of a base recipe; a row is an arm and a seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from sinkinterp import table as col
from sinkinterp.backends.subject import Subject
from sinkinterp.data.backcopy import BosFirst
from sinkinterp.data.choices import Scale
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import cache_folder
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.estimates import SHARES, estimate_cells, mean_cells
from sinkinterp.plots.theme import GREY, SHARE, cells_of, colour, error_bars, escaped, themed, unique_values
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import TRAINED, Experiment, Rule, Scope
from sinkinterp.runs.trained import SINK_LENGTH, Run, trained, valid_loss
from sinkinterp.runs.workers import in_order
from sinkinterp.spec import changed
from sinkinterp.table import NULL, Cell, Table, at_this_loss, high_of, low_of, published, with_all_columns
from sinkinterp.train import checkpoint
from sinkinterp.train.loop import Diverged, held_out_tokens, prepared
from sinkinterp.train.recipe import RECIPES, Recipe, demo_recipe, on_text, with_variant

RAW_ALPHA = "raw alpha_1"  # of the weights that multiply the values
SINK_1_ALONE, ALPHA_1_ALONE, NULL_ALONE = (f"{name} without BOS" for name in (col.SINK_1, col.ALPHA_1, NULL))
ALONE = (SINK_1_ALONE, ALPHA_1_ALONE, NULL_ALONE)
NUMBERS = (  # of a run, in the order of the columns
    col.LOSS,
    *(end(name) for name in (col.SINK_1, col.ALPHA_1) for end in (str, low_of, high_of)),
    NULL,
    col.EXCESS,
    RAW_ALPHA,
    col.SLOT_RATE,
    *(end(col.ALPHA_SLOT) for end in (str, low_of, high_of)),
    col.NULL_SLOT,
    col.STRONGEST,
    col.ALPHA_THERE,
    col.NULL_THERE,
    *(end(col.ALPHA_HEAD) for end in (str, low_of, high_of)),
    col.NULL_HEAD,
    col.VALUE_RATIO,
    col.KEY_RATIO,
    col.RESIDUAL_RATIO,
    col.ONSET,
    *ALONE,
)
EPSILON = 0.3
FOLLOWERS = 4  # a quarter of the queries sees a position that is judged; the last ones have near queries only
ONSET_MARGIN = 0.05  # by which alpha_1 exceeds uniform attention's once the sink is there


@dataclass(frozen=True)
class Arm:
    """A row of a study: its name, how it changes the base recipe, and what the paper reports of it, by column."""

    name: str
    change: Callable[[Recipe], Recipe]
    reported: Mapping[str, float] = field(default_factory=dict)

    def recipe(self, base: Recipe, seed: int) -> Recipe:
        """How this arm is trained with a seed."""
        return replace(self.change(base), seed=seed)


def architecture(name: str, called: str | None = None, **reported: float) -> Arm:
    """The arm with the variant of that name in place of the base's architecture."""
    return Arm(called or name, partial(with_variant, name=name), _columns(reported))


def setting(called: str, change: Callable[[Recipe], Recipe], **reported: float) -> Arm:
    """The arm with any other change of the recipe."""
    return Arm(called, change, _columns(reported))


def _columns(reported: Mapping[str, float]) -> dict[str, float]:
    """The paper's numbers by our columns: sink in percent, slot in percent, loss in nats."""
    names = {"sink": (col.SINK_1, 100), "slot": (col.SLOT_RATE, 100), "loss": (col.LOSS, 1)}
    return {names[name][0]: value / names[name][1] for name, value in reported.items()}


@dataclass(frozen=True)
class Edition:
    """The arms of a study at another scale, where those of the toys do not fit, with their rules and their note."""

    arms: Sequence[Arm]
    rules: Sequence[Rule]
    note: str = ""


def _part(whole: Edition, names: Sequence[str]) -> Edition:
    """The arms with these names, and the rules that need no other arm."""
    arms = [arm for arm in whole.arms if arm.name in names]
    assert len(arms) == len(names), f"{set(names) - {arm.name for arm in arms}} are no arms"
    rules = [rule for rule in whole.rules if set(rule.models) <= set(names)]
    counts = f"{len(arms)} of the {len(whole.arms)} models that other scales train"
    return Edition(arms, rules, f"{whole.note}; {counts}" if whole.note else counts)


Read = Callable[[Run, TokenSet], Mapping[str, Cell]]
Curve = Sequence[tuple[float, float]]  # loss and alpha_1 of every evaluation during training


def measured(
    recipe: Recipe, sequences: int, cache: Path | None = None, more: Read | None = None
) -> tuple[dict[str, Cell], Curve]:
    """The state and the numbers of a recipe's run, which is trained where it is not in the cache, and its curve.

    `more` reads what a study does not, from the same held-out sequences.

    If training diverges, the state says so, and all numbers are None. Raises InputError for everything else that
    prevents a run: a full disk, a model that cannot be measured.
    """
    held_out = held_out_tokens(prepared(recipe.data, cache or cache_folder()), sequences)  # may be too few: say it now
    try:
        run = trained(recipe, cache, device=device_of(recipe))
    except Diverged as error:
        return _nothing() | {col.STATE: str(error).partition(";")[0]}, ()
    curve = [(row["valid_loss"], row["alpha_1"]) for row in checkpoint.history_of(run.folder)]
    return {**numbers_of(run, held_out), **(more(run, held_out) if more else {})}, curve


def history_of(recipe: Recipe, cache: Path | None = None) -> list[dict[str, Any]]:
    """Losses and sinks during a recipe's run, which is made where it is not in the cache."""
    return checkpoint.history_of(trained(recipe, cache, device=device_of(recipe)).folder)


def device_of(recipe: Recipe) -> str:
    """The device of a training: a GPU, if there is one, where it computes in bfloat16; toys stay on the CPU."""
    return "cuda" if recipe.bf16 and torch.cuda.is_available() else "cpu"


def _nothing() -> dict[str, Cell]:
    return dict.fromkeys((col.STATE, *NUMBERS))


def numbers_of(run: Run, held_out: TokenSet) -> dict[str, Cell]:
    """The state and the numbers of a finished run on held-out sequences; sinks in their first 64 positions."""
    subject = run.subject(device=device_of(run.recipe))
    report = measure(subject, replace(held_out, tokens=held_out.tokens[:, :SINK_LENGTH]))
    null = report.bias_alpha().mean().item()
    return _nothing() | {
        col.STATE: TRAINED,
        col.LOSS: valid_loss(subject, held_out, run.recipe.objective).mean,
        **estimate_cells(col.SINK_1, report.sink_rate(0, EPSILON)),
        **mean_cells(col.ALPHA_1, report.alpha().mean((1, 2)), SHARES),
        NULL: null,
        col.EXCESS: report.alpha().mean().item() - null,
        RAW_ALPHA: report.raw_alpha().mean().item(),
        **_slot_numbers(report),
        **_strongest(report),
        **_strongest_head(report),
        col.VALUE_RATIO: report.value_ratio().mean().item(),
        col.KEY_RATIO: report.key_ratio().mean().item(),
        col.RESIDUAL_RATIO: report.residual_ratio().mean(0).max().item(),
        col.ONSET: onset(checkpoint.history_of(run.folder), null),
        **without_bos(subject, run.recipe, held_out),
    }


def without_bos(subject: Subject, recipe: Recipe, held_out: TokenSet) -> dict[str, Cell]:
    """The sink of the same sequences without their BOS, as Gu et al. (2025) read models; empty if they have none."""
    if not _has_bos(recipe):
        return {}
    report = measure(subject, replace(held_out, tokens=held_out.tokens[:, 1:SINK_LENGTH]), positions=(0,))
    return {
        SINK_1_ALONE: report.sink_rate(0, EPSILON).mean,
        ALPHA_1_ALONE: report.alpha().mean().item(),
        NULL_ALONE: report.bias_alpha().mean().item(),
    }


def at_equal_loss(curve: Curve, default: Curve) -> float | None:
    """alpha_1 of the default model where its loss first was as low as the last one of `curve`.

    Its last alpha_1 if it never was; None where one of the two has no curve.
    """
    if not curve or not default:
        return None
    return next((alpha for loss, alpha in default if loss <= curve[-1][0]), default[-1][1])


def onset(history: list[dict[str, Any]], null: float) -> int | None:
    """The first evaluated step from which alpha_1 stays above its null by 0.05 until the end; None if it never does."""
    first = None
    for row in reversed(history):
        if row["alpha_1"] <= null + ONSET_MARGIN:
            break
        first = row["step"]
    return first


def _slot_numbers(report: Report) -> dict[str, Cell]:
    slot = report.slot_rate(EPSILON)
    if slot is None or report.slot_importance is None or report.slot_null is None:
        return {}
    alpha = mean_cells(col.ALPHA_SLOT, report.slot_importance.mean((1, 2)), SHARES)
    return {col.SLOT_RATE: slot.mean, **alpha, col.NULL_SLOT: report.slot_null.mean().item()}


def _strongest(report: Report) -> dict[str, Cell]:
    """The position, from 1, that receives most, of those that a quarter of the queries sees."""
    alphas, nulls = (values.mean((0, 1, 2)) for values in (report.importance, report.bias_null))
    place = int(alphas[: len(alphas) - len(alphas) // FOLLOWERS + 1].argmax())
    return {col.STRONGEST: place + 1, col.ALPHA_THERE: alphas[place].item(), col.NULL_THERE: nulls[place].item()}


def _strongest_head(report: Report) -> dict[str, Cell]:
    """The head that looks at the first position most, on average over sequences, and its null."""
    alphas, nulls = (values.flatten(1) for values in (report.alpha(), report.bias_alpha()))
    head = int(alphas.mean(0).argmax())
    return {**mean_cells(col.ALPHA_HEAD, alphas[:, head], SHARES), col.NULL_HEAD: nulls[:, head].mean().item()}


SHOWN = (col.LOSS, col.SINK_1, col.ALPHA_1, NULL, col.SLOT_RATE, col.ALPHA_SLOT, col.ONSET, *ALONE)
RANGE = "its range"
PUBLISHED = (col.SINK_1, col.SLOT_RATE, col.LOSS)  # the quantities of the paper's tables

_TOY = replace(  # a sink of middle strength, so that it can become stronger and weaker: experiments/LOG.md
    demo_recipe("softmax", steps=800), batch=64, watch_every=50, save_every=400
)
BASES: Mapping[Scale, Recipe] = {
    Scale.SMOKE: replace(with_variant(_TOY, "heads_2"), steps=2, batch=8, watch_every=2),
    Scale.DEMO: with_variant(_TOY, "heads_2"),
    Scale.TEXT: RECIPES["text-repeats"],
    Scale.GPU: RECIPES["text-without-bos"],
    Scale.PAPER: RECIPES["paper-60m"],
}
HELD_OUT_SEQUENCES = {Scale.SMOKE: 16, Scale.TEXT: 256, Scale.GPU: 256, Scale.PAPER: 100}  # text has 300


def base_of(scope: Scope, bases: Mapping[Scale, Recipe] = BASES) -> Recipe:
    """The recipe of the scale, on the user's own text where there is one, with the settings of the scope."""
    base = bases[scope.scale]
    return changed(base if scope.text is None else on_text(base, scope.text), scope.settings)


def lengths_of(recipe: Recipe) -> str:
    """How many tokens of a sequence are measured, and whether BOS is the first, for a protocol."""
    return f"T={min(recipe.data.length, SINK_LENGTH)}, {'BOS first' if _has_bos(recipe) else 'no BOS'}"


def _has_bos(recipe: Recipe) -> bool:
    return getattr(recipe.data, "bos", False) or isinstance(getattr(recipe.data, "first", None), BosFirst)


@dataclass(frozen=True)
class Trainings:
    """Makes the rows of a study: trains every arm with every seed and measures it.

    bases: the recipe of each scale, which the arms change. editions: other arms and another note, by scale. more: what
    a study does not read of a run.
    """

    edition: Edition
    bases: Mapping[Scale, Recipe]
    editions: Mapping[Scale, Edition] = field(default_factory=dict)
    more: Read | None = None

    def __call__(self, scope: Scope) -> Table:
        """A row per arm and seed. Runs in the cache are not repeated; others are made by the workers of the scope."""
        runs, sequences = self._runs(scope), _sequences(scope.scale)
        measure_one = partial(measured, sequences=sequences, cache=scope.cache, more=self.more)
        recipes = [recipe for _, recipe in runs]
        made = in_order(scope.workers, measure_one, recipes, scope.progress("training"))
        arms, default = self.at(scope.scale).arms, self._default(scope)
        curves = {(arm.name, recipe.seed): curve for (arm, recipe), (_, curve) in zip(runs, made, strict=True)}
        rows: list[dict[str, Cell]] = []
        for (arm, recipe), (numbers, curve) in zip(runs, made, strict=True):
            others = () if arm.name == default else curves.get((default, recipe.seed), ())
            at_loss = {at_this_loss(default): at_equal_loss(curve, others)} if default else {}
            published_there = _published(arm, arms)
            rows.append({col.MODEL: arm.name, col.SEED: recipe.seed, **numbers, **published_there, **at_loss})
        return Table.of("", self._protocol(scope), with_all_columns(rows))  # `more` reads no diverged run

    def _default(self, scope: Scope) -> str:
        """The arm that leaves the base as it is; empty without one."""
        base, arms = base_of(scope, self.bases), self.at(scope.scale).arms
        return next((arm.name for arm in arms if arm.change(base) == base), "")

    def recipes(self, scope: Scope) -> list[Recipe]:
        """How every arm is trained with every seed."""
        return [recipe for _, recipe in self._runs(scope)]

    def at(self, scale: Scale) -> Edition:
        """The arms and the note at a scale."""
        return self.editions.get(scale, self.edition)

    def _runs(self, scope: Scope) -> list[tuple[Arm, Recipe]]:
        """Every arm with every seed, and how it is trained; whole sets of arms come first."""
        base = base_of(scope, self.bases)
        return [(arm, arm.recipe(base, seed)) for seed in range(scope.seeds) for arm in self.at(scope.scale).arms]

    def _protocol(self, scope: Scope) -> str:
        base, note = base_of(scope, self.bases), self.at(scope.scale).note
        size = f"{base.model.n_layers} layers x {base.model.n_heads} heads, d_model {base.model.d_model}"
        protocol = (
            f"scale {scope.scale}: {size}, {base.steps} steps of {base.batch} sequences, lr {base.lr:g}, weight decay "
            f"{base.weight_decay:g}, {scope.seeds} seeds; n={_sequences(scope.scale)} held-out sequences, "
            f"{lengths_of(base)}, fp32, epsilon={EPSILON}; null: bias and mask alone; intervals of "
            "rows: over sequences"
        )
        return f"{protocol}; {note}" if note else protocol


def _published(arm: Arm, arms: Sequence[Arm]) -> dict[str, Cell]:
    """The paper's numbers of an arm, in a column for each quantity that it reports of any arm."""
    shown = [name for name in PUBLISHED if any(name in other.reported for other in arms)]
    return {published(name): arm.reported.get(name) for name in shown}


def study(
    claim: str,
    arms: Sequence[Arm],
    rules: Sequence[Rule],
    scales: Sequence[Scale] = (Scale.SMOKE, Scale.DEMO, Scale.TEXT, Scale.PAPER),
    note: str = "",
    bases: Mapping[Scale, Recipe] = BASES,
    editions: Mapping[Scale, Edition | Sequence[str]] = MappingProxyType({}),
) -> Experiment:
    """An experiment whose models are trained: what the paper claims, the models, and the rules of the verdicts.

    `arms` are the models as changes of the base recipe of the scale, the first of them the baseline. `note` says what
    a reader must know beside the protocol. `editions` take their place at other scales: other arms, or the names of
    those that suffice for the claim where a training takes ten minutes.
    """
    whole = Edition(arms, rules, note)
    at = {scale: made if isinstance(made, Edition) else _part(whole, made) for scale, made in editions.items()}
    rows = Trainings(whole, bases, at)
    default = next(scale for scale in (Scale.DEMO, Scale.TEXT, Scale.GPU) if scale in scales)
    rules_at: dict[str, Sequence[Rule]] = {scale: edition.rules for scale, edition in at.items()}
    return Experiment(claim, rows, by_model, rules, scales, rows.recipes, means_over_seeds, lambda: default, rules_at)


def means_over_seeds(table: Table) -> Table:
    """A row per arm: how many trainings ended well, and the mean over seeds of every quantity."""
    names = map(str, unique_values(table, col.MODEL))
    rows = [_in_short(name, table.where(**{col.MODEL: name})) for name in names]
    alone = f"; without BOS: the tokens after it, T={SINK_LENGTH - 1} at most" * (SINK_1_ALONE in table.frame)
    note = f"mean over seeds; {RANGE}: over seeds; strongest: position, from 1{alone}; {table.note}"
    return Table.of(table.title, note, _without_empty_columns(rows))


def _sequences(scale: Scale) -> int:
    """Held-out sequences that every run is measured on."""
    return HELD_OUT_SEQUENCES.get(scale, 512)


def _in_short(name: str, runs: Table) -> dict[str, Cell]:
    failed = sum(state != TRAINED for state in runs.frame[col.STATE])
    row: dict[str, Cell] = {col.MODEL: name, "trained": f"{len(runs.frame) - failed} of {len(runs.frame)}"}
    for quantity in (name for name in SHOWN if name in runs.frame):
        values = [value for value in runs.numbers(quantity) if math.isfinite(value)]
        row[quantity] = fmean(values) if values else None
        if quantity == col.ALPHA_1:
            row[RANGE] = f"{min(values):.2f} to {max(values):.2f}" if values else ""
    places = map(str, runs.frame[col.STRONGEST].dropna())
    row["strongest"] = ", ".join(dict.fromkeys(places))
    return row | {column: runs.records()[0][column] for column in map(published, PUBLISHED) if column in runs.frame}


def _without_empty_columns(rows: Sequence[Mapping[str, Cell]]) -> tuple[Mapping[str, Cell], ...]:
    kept = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    return tuple({name: row[name] for name in kept} for row in rows)


_AS_SHARES = (col.ALPHA_1, col.SINK_1)  # they lie between 0 and 1, and are drawn on that axis
_PANEL = 210  # pixels of height
_PAPER = {"mode": "markers", "marker": {"color": colour(1), "symbol": "diamond-open", "size": 11, "line": {"width": 2}}}


def by_model(table: Table, quantities: tuple[str, ...] = (col.ALPHA_1, col.SINK_1, col.LOSS)) -> go.Figure:
    """A panel per quantity, with a mark per seed and a line at the mean of each model.

    Grey: the null. Hollow: the value of the paper, where the table has it. A model whose training failed has no mark.
    """
    shown = [name for name in quantities if any(math.isfinite(value) for value in table.numbers(name))]
    figure = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.24 / max(1, len(shown)))
    is_paper_named = False
    names = unique_values(table, col.MODEL)
    models = [escaped(name) for name in names]
    for i, quantity in enumerate(shown):
        panel = {"row": i + 1, "col": 1, "showlegend": i == 0}
        figure.add_scatter(
            x=[escaped(name) for name in table.frame[col.MODEL]],
            y=table.numbers(quantity),
            error_y=error_bars(table, quantity),
            text=[f"seed {seed}" for seed in cells_of(table, col.SEED)],
            name="a seed",
            mode="markers",
            marker={"color": colour(0), "size": 8, "opacity": 0.6},
            **panel,
        )
        means = means_of(table, names, quantity)
        dash = {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": colour(0)}}
        figure.add_scatter(x=models, y=means, name="mean of the seeds", mode="markers", marker=dash, **panel)
        if quantity == col.ALPHA_1:
            nulls = means_of(table, names, NULL)
            grey = {"symbol": "line-ew", "size": 26, "line": {"width": 2, "color": GREY}}
            figure.add_scatter(x=models, y=nulls, name="null", mode="markers", marker=grey, **panel)
        if published(quantity) in table.frame:
            papers = [table.where(**{col.MODEL: name}).numbers(published(quantity))[0] for name in names]
            figure.add_scatter(
                x=models, y=papers, name="the paper's model", **_PAPER, **panel | {"showlegend": not is_paper_named}
            )
            is_paper_named = True
        figure.update_yaxes(title=escaped(quantity), row=i + 1, col=1, **SHARE if quantity in _AS_SHARES else {})
    figure.update_xaxes(range=[-0.5, len(models) - 0.5])
    caption = "One mark for each seed with its interval over sequences; the line is the mean of the seeds."
    return themed(figure, table.title, 130 + _PANEL * max(1, len(shown)), f"{caption} {table.note}")


def means_of(table: Table, names: list[Cell], quantity: str) -> list[float]:
    """The mean of a quantity over the rows of each model."""
    values = (table.where(**{col.MODEL: name}).numbers(quantity) for name in names)
    return [fmean([*filter(math.isfinite, each)] or [math.nan]) for each in values]
