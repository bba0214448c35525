"""Activation patching: which activations carry a behaviour from one prompt to another?

A clean prompt shows the behaviour, a corrupted prompt of the same length does not. Each activation of the clean run is
put into the corrupted run, one at a time (denoising). The share restored is 1 where the patched run behaves as the
clean one, and 0 where it behaves as the corrupted one. For noising, swap the prompts: the share is then what is lost.

    metric = logit_difference(right=319, wrong=416)  # ids of the two answers
    si.activation_patching(model, "The cat sat", "The dog sat", metric=metric).plot()

Between two models that read the same text, activations of the first are put into the second:

    twin_patching(sink_model, its_twin, "The cat sat").plot()

Source: Zhang and Nanda 2024, arXiv:2309.16042; Meng et al. 2022, arXiv:2202.05262 (causal tracing).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple

import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import Edit, per_sequence, sites
from ..backends.subject import Logits, Subject, Trace
from ..checks import InputError, instance_of
from ..data.progress import OnProgress, no_progress, progress_of
from ..data.tokens import Tokens, TokensLike
from ..interventions.changes import Change, ChangeResidual, Put, PutAt
from ..metrics.estimates import estimate_cells, intervals, ratio
from ..metrics.metric import PerSequence
from ..plots.theme import DIVERGING, escaped, heat_map, themed, unique_values
from ..report.maps import shown_word
from ..table import HEAD, KV_HEAD, LAYER, POSITION, Cell, Table
from . import patching
from .lens import logit_parts
from .measure import ModelLike, dtype_of, inputs_of, passes
from .patching import Activations, PatchingMetric, PatchingMetricLike, Scene, activations, attribution, metric_of

RESTORED, CONTROL, FIRST_ORDER, TOKEN, KEY = "restored", "control", "first order", "token", "key"
DIRECT = "direct"
_SITE = "a site is a change without an operation, such as ChangeResidual(layers=[1])"
USUAL_TEXT = "The quick brown fox jumps over the lazy dog."  # that two models read where no text is given
OTHERS = 10  # places that a map of some places is compared with
LEAST_GAP = 1e-6  # of the larger, between the clean and the corrupted metric, for a share of it to mean anything


class Place(NamedTuple):
    """What one run patches; -1 for all heads, positions or keys."""

    layer: int
    head: int
    position: int
    key: int


@dataclass(frozen=True)
class Runs:
    """Runs of `subject` in which one place is patched, and the metric of each. `source` makes the clean run."""

    subject: Subject
    source: Subject
    metric: PatchingMetric
    clean: Tokens
    corrupted: Tokens
    clean_logits: Logits
    site: Change
    title: ClassVar[str] = "Which activations restore the clean run?"

    @property
    def names(self) -> str:
        """Returns the model's name, or those of both."""
        name = self.subject.name
        return name if self.source is self.subject else f"{self.source.name} (clean) into {name} (corrupted)"

    @property
    def protocol(self) -> str:
        """Returns what is patched, and how."""
        return f"{self.site.site.label}, clean into corrupted"

    def trace(self, pairs: Int[Tensor, " row"], put: PutAt) -> Trace:
        """The corrupted run of some pairs, with what `put` puts into the site."""
        return self.from_layer(int(put.places[:, 0].min()), pairs, replace(self.site, operation=put))

    def from_layer(self, layer: int, pairs: Int[Tensor, " row"], edit: Edit) -> Trace:
        """The corrupted run of some pairs under an edit of this layer and later ones; nothing else is run, or read."""
        edits, blocks, reads = [edit], range(self.subject.shape.n_layers), self.metric.reads
        if not reads:
            edits = [ChangeResidual(Put({layer: self.stream[layer][pairs]}), layers=[layer]), edit]
            blocks = blocks[layer:]
        logits = self.metric.all_logits
        return self.subject.run(self.corrupted[pairs], reads=reads, edits=edits, logits=logits, blocks=blocks)

    @cached_property
    def stream(self) -> Activations:
        """The residuals of the corrupted run, before every block and behind the last."""
        return activations(ChangeResidual(), self.subject, self.corrupted)

    def patched(
        self, source: Activations, places: Sequence[Place], on_pass: OnProgress = no_progress
    ) -> Float[Tensor, "place pair"]:
        """The metric of every corrupted run, with each place in turn patched from `source`."""
        n, chosen = len(self.corrupted), torch.tensor(places)
        if self.site.site == sites.PATTERN:  # a slot's column stands left of the first key's
            chosen[:, 3] += (chosen[:, 3] >= 0) * (next(iter(source.values())).shape[-1] - self.corrupted.shape[1])
        done: list[Tensor] = []
        on_pass(0, n * len(places))
        for rows, _ in passes(self.subject, self.corrupted.repeat(len(places), 1)):
            pairs = rows.cpu() % n
            done.append(self._number(self.trace(pairs, PutAt(source, pairs, chosen[rows.cpu() // n])), pairs))
            on_pass(sum(map(len, done)), n * len(places))
        return torch.cat(done).unflatten(0, (len(places), n))

    def unpatched(self, subject: Subject, tokens: Tokens) -> PerSequence:
        """The metric of every pair of `tokens`, read by one of the two models."""
        how: dict[str, Any] = {"reads": self.metric.reads, "logits": self.metric.all_logits}
        traces = ((subject.run(x, **how), rows.cpu()) for rows, x in passes(subject, tokens))
        return torch.cat([self._number(trace, pairs) for trace, pairs in traces])

    def _number(self, trace: Trace, pairs: Int[Tensor, " row"]) -> PerSequence:
        answer, who = self.metric.number(self.scene(trace, pairs)), f"the metric {self.metric.name}"
        return per_sequence(answer, len(pairs), who, 1, "take the mean over the other axes").detach().float().cpu()

    def scene(self, trace: Trace, pairs: Int[Tensor, " row"]) -> Scene:
        """What the metric of a run of some pairs is computed of."""
        return Scene(trace, self.clean[pairs], self.clean_logits[pairs], pairs, len(self.clean))


def runs_of(model: ModelLike, clean: Any, corrupted: Any, metric: Any, site: Change) -> Runs:
    """The runs of a model with a clean and a corrupted prompt.

    Raises InputError where a pair of prompts differs in length.
    """
    subject, first = inputs_of(model, clean)
    _, second = inputs_of(subject, corrupted)
    shapes = [tuple(token_set.of_one_length().shape) for token_set in (first, second)]
    if shapes[0] != shapes[1]:
        got = f"here {shapes[0]} and {shapes[1]} (sequences, tokens); change words for others with as many tokens"
        raise InputError(f"clean and corrupted prompts are as many, and of one length in tokens; {got}")
    if first.tokens.equal(second.tokens):
        fix = "change words for others with as many tokens"
        raise InputError(f"clean and corrupted are the same {' x '.join(map(str, shapes[0]))} tokens; {fix}")
    logits = subject.run(first.tokens).logits
    return Runs(subject, subject, metric_of(metric), first.tokens, second.tokens, logits, site)


def activation_patching(  # noqa: PLR0913  two runs, what is patched, and how it is measured
    model: ModelLike,
    clean: TokensLike | Any,
    corrupted: TokensLike | Any,
    *,
    site: Change = ChangeResidual(),
    metric: PatchingMetricLike = patching.divergence_from_clean(),
    by: Sequence[str] | None = None,
    first_order: bool = False,
    direct: bool = False,
    progress: bool | OnProgress = True,
) -> Table:
    """The share of a behaviour that each activation of a site restores, with its interval over pairs of prompts.

    `clean` and `corrupted` are prompts of equal lengths in tokens, one pair or several. `site` chooses what is patched,
    a change without an operation: `ChangeResidual()`, `ChangeMLP()`, `ChangeOutputs()` (what heads return), `Change` at
    another of `si.sites`; its layers, heads and positions narrow the map. `by`: the axes of the map, of "layer",
    "head", "position" (default: layer and position, or layer and head for a site of heads; keys and values have
    "kv_head"; `sites.PATTERN` also has "key", for single edges of attention, whose rows are not normalised again).
    `metric` is one of `measurement.patching`, or a function from logits to a number per sequence.
    A column "control" holds what the same place of a third prompt restores: the clean one of another pair, unless all
    of these are one of the two. The note says what a place drawn at random restores: one of the map, or up to ten
    others where `site` names its places. `first_order` adds what `attribution` estimates, by one pass forward and one
    back, and its error. `direct` adds the share that a head or feed-forward layer writes into the answers' logits
    itself, which sums to 1 over all parts of the residual (see `lens`). One pass reads the clean run, and the patches
    are batched. Raises InputError for prompts that do not fit, and where both prompts behave alike.
    """
    instance_of(site, Change, _SITE)
    runs = runs_of(model, clean, corrupted, metric, site)
    return restored_table(runs, _axes(site, by), progress, first_order, direct)


def twin_patching(  # noqa: PLR0913  two models, what is patched, and how it is measured
    source: ModelLike,
    target: ModelLike,
    tokens: TokensLike | Any,
    *,
    site: Change = ChangeResidual(),
    metric: PatchingMetricLike = patching.first_alpha(),
    by: Sequence[str] | None = None,
    first_order: bool = False,
    direct: bool = False,
    progress: bool | OnProgress = True,
) -> Table:
    """The share of a behaviour of `source` that each of its activations restores in `target`, a model of its shape.

    Both read the same tokens, one text or several. The default metric is the importance of the first token. Other
    arguments and errors are those of `activation_patching`. Also raises InputError where the two read a text as
    different tokens, and where their blocks differ in number or width.
    """
    instance_of(site, Change, _SITE)
    (one, first), (two, second) = (inputs_of(model, tokens) for model in (source, target))
    sizes = [(each.shape.n_layers, each.shape.d_model) for each in (one, two)]
    if sizes[0] != sizes[1]:
        got = " and ".join(f"{n} blocks of width {width}" for n, width in sizes)
        raise InputError(f"{one.name} and {two.name} are not of one shape: {got}")
    if not torch.equal(first.of_one_length().cpu(), second.of_one_length().cpu()):
        raise InputError(f"{one.name} and {two.name} read the text as different tokens; give token ids")
    runs = Runs(two, one, metric_of(metric), first.tokens, second.tokens, one.run(first.tokens).logits, site)
    return restored_table(runs, _axes(site, by), progress, first_order, direct)


def restored_table(
    runs: Runs, axes: Sequence[str], progress: bool | OnProgress, first_order: bool = False, direct: bool = False
) -> Table:
    """The table of the shares that the places of `runs` restore. Raises InputError where gradients do not give them."""
    if first_order and (runs.metric.reads or KEY in axes):
        what = "maps by key are not estimated" if KEY in axes else f"{runs.metric.name} reads attention"
        raise InputError(f"first_order differentiates logits by layer, head and position, and {what}; leave it out")
    source = activations(runs.site, runs.source, runs.clean)
    clean, corrupted = runs.unpatched(runs.source, runs.clean), runs.unpatched(runs.subject, runs.corrupted)
    gap = _gap(runs.metric.name, clean, corrupted)
    places = _places(runs.site, source, axes)
    effects = {name: x - corrupted for name, x in _patched(runs, source, places, progress).items()}
    at_random, who = effects[RESTORED], "a place drawn at random restores"
    others = _others(runs, axes, places, progress)
    if len(others):
        at_random, who = others - corrupted, f"{len(others)} other places drawn at random restore"
    notes = [
        f"{runs.names}: n={len(gap)} pairs, T={runs.clean.shape[1]}, {dtype_of(runs.subject)}",
        runs.protocol,
        f"{runs.metric.name}: clean {clean.mean():.4g}, corrupted {corrupted.mean():.4g}",
        f"{who} {ratio(at_random.mean(0), gap)}",
    ]
    if KV_HEAD in axes:
        notes.append(f"each kv_head serves {runs.subject.shape.n_heads // runs.subject.shape.n_kv_heads} query heads")
    n_runs = len(places) * len(effects) + len(others) + 4 + first_order
    if first_order:
        effects[FIRST_ORDER] = _first_order(runs, source, places)
        error = ((effects[FIRST_ORDER] - effects[RESTORED]).mean(1) / gap.mean()).abs()
        notes.append(f"first order: wrong by {error.mean():.2g} on average and {error.max():.2g} at most")
    if direct:
        effects[DIRECT] = _direct(runs, places)
        notes.append("direct: written into the logits, the clean run less the corrupted one, each at its own scale")
    notes += [f"{n_runs} runs of each pair"] if type(runs) is Runs else []
    notes.append("restored: 1 as the clean run, 0 as the corrupted one; mean change over mean difference of the two")
    has_control = CONTROL in effects
    notes.append("control: the same place of another pair" if has_control else "no control: it takes a third prompt")
    notes.append(intervals(len(gap), "pairs"))
    return Table.of(runs.title, "; ".join(notes), _rows(runs, places, effects, gap), restored_figure)


def restored_figure(table: Table) -> go.Figure:
    """The share restored as a heat map: layers downwards, positions with their words or heads to the right."""
    across = next(name for name in (KEY, POSITION, HEAD, KV_HEAD) if name in table.frame)
    down = [name for name in (LAYER, HEAD, KV_HEAD, POSITION) if name in table.frame and name != across]
    has_words = TOKEN in table.frame
    words = dict(zip(table.frame[POSITION], table.frame[TOKEN], strict=True)) if has_words else {}
    columns = sorted(int(i) for i in unique_values(table, across) if i is not None)
    x = [f"{i} {escaped(shown_word(str(words[i])))}" if i in words else f"{across} {i}" for i in columns]
    hover = f"{' '.join(down)} %{{y}}, {across} %{{x}}: %{{z:.3f}}<extra></extra>"
    colours = {"colorscale": DIVERGING, "zmin": -1, "zmid": 0, "zmax": 1}
    figure = heat_map(table, RESTORED, down, across, **colours, hovertemplate=hover)
    figure.update_traces(x=x).update_xaxes(title=f"{across} (from 0)", tickangle=-60)
    caption = "The share of the clean behaviour that one patched place restores: 1 all, 0 none, below 0 the opposite."
    height = 260 + max(240, min(720, 18 * len(figure.data[0].y)))
    return themed(figure, table.title, height, f"{caption} {table.note}")


def _gap(name: str, clean: PerSequence, corrupted: PerSequence) -> PerSequence:
    """The difference of the two runs. Raises InputError if it is not a number, or too small to be restored."""
    gap = clean - corrupted
    if gap.isnan().any():
        raise InputError(f"{name} is not a number for pair {int(gap.isnan().int().argmax())}, from 0")
    if not gap.mean().abs() > LEAST_GAP * torch.maximum(clean.abs(), corrupted.abs()).mean():
        size = f"{clean.mean():.4g} in both runs, up to {gap.mean().abs():.2g}"
        raise InputError(f"{name} is {size}, so nothing can be restored")
    return gap


def _patched(
    runs: Runs, source: Activations, places: Sequence[Place], progress: bool | OnProgress
) -> dict[str, Float[Tensor, "place pair"]]:
    """The metric with each place patched: from the clean run, and from another pair's where there is one."""
    sources, third = {RESTORED: source}, _third_prompts(runs.clean, runs.corrupted)
    if third is not None:
        sources[CONTROL] = {layer: x[third.to(x.device)] for layer, x in source.items()}
    with progress_of(progress, f"patching {runs.subject.name}") as on_pass:
        return {name: runs.patched(each, places, on_pass) for name, each in sources.items()}


def _others(
    runs: Runs, axes: Sequence[str], places: Sequence[Place], progress: bool | OnProgress
) -> Float[Tensor, "place pair"]:
    """The metric with other places patched, at most `OTHERS` drawn at random that the axes have and the site omits."""
    selectors = {LAYER: "layers", POSITION: "positions", _head_axis(runs.site): runs.site.selector}
    unchosen: dict[str, Any] = {selectors[axis]: None for axis in axes if axis in selectors}
    every = replace(runs.site, **unchosen)
    if every == runs.site:  # the map has all places
        return torch.empty(0, len(runs.corrupted))
    source = activations(every, runs.source, runs.clean)
    others = sorted({*_places(every, source, axes)}.difference(places))
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:OTHERS]
    if not len(order):
        return torch.empty(0, len(runs.corrupted))
    with progress_of(progress, f"patching {runs.subject.name} at random") as on_pass:
        return replace(runs, site=every).patched(source, [others[i] for i in order], on_pass)


def _rows(
    runs: Runs, places: Sequence[Place], effects: Mapping[str, Tensor], gap: PerSequence
) -> tuple[dict[str, Cell], ...]:
    """A row for each place: where it is, and what patches of it restore."""
    words, rows, axes = runs.subject.label, [], (LAYER, _head_axis(runs.site), POSITION, KEY)
    for i, place in enumerate(places):
        row: dict[str, Cell] = {axis: at for axis, at in zip(axes, place, strict=True) if at >= 0}
        row |= {TOKEN: words(int(runs.clean[0, place.position]))} if place.position >= 0 else {}
        for name, values in effects.items():
            row |= estimate_cells(name, ratio(values[i], gap))
        rows.append(row)
    return tuple(rows)


def _third_prompts(clean: Tokens, corrupted: Tokens) -> Int[Tensor, " pair"] | None:
    """For each pair the nearest one before it whose clean prompt is neither of its two; None where one has none."""
    alike = (clean[:, None] == clean).all(-1) | (corrupted[:, None] == clean).all(-1)
    index = torch.arange(len(clean))
    distance = (index[:, None] - index - 1) % len(clean)
    return None if alike.all(1).any() else distance.masked_fill(alike.cpu(), len(clean)).argmin(1)


def _first_order(runs: Runs, source: Activations, places: Sequence[Place]) -> Float[Tensor, "place pair"]:
    """To first order, what each patch changes in the metric, which is one of logits."""
    parts = []
    for rows, batch in passes(runs.subject, runs.corrupted):

        def score(logits: Logits, tokens: Tokens, rows: Tensor = rows) -> PerSequence:
            return runs.metric.number(runs.scene(Trace({}, logits), rows))

        of_rows = {layer: x[rows.to(x.device)] for layer, x in source.items()}
        changes = attribution(runs.site, runs.subject, batch, of_rows, score)
        parts.append(torch.stack([_at(changes[layer], head, position) for layer, head, position, _ in places]))
    return torch.cat(parts, 1).detach().float().cpu()


def _direct(runs: Runs, places: Sequence[Place]) -> Float[Tensor, "place pair"]:
    """The part of the difference of logits that each place writes in the clean run, less that in the corrupted one.

    Raises InputError for another metric, and for what does not write into the residual stream.
    """
    site, answers = runs.site, runs.metric.answers
    if answers is None or site.site not in (sites.OUTPUT, sites.MLP) or site.dims is not None:
        fix = "give site=ChangeOutputs() or ChangeMLP() without dims, and metric=answer_difference(...)"
        raise InputError(f"direct says what heads or feed-forward layers write into two answers' logits; {fix}")
    n, length = runs.corrupted.shape
    right, wrong = (torch.tensor(ids).expand(n) for ids in answers[:2])
    clean = logit_parts(runs.source, runs.clean, right, wrong, answers[2])
    corrupted = logit_parts(runs.subject, runs.corrupted, right, wrong, answers[2])
    at, rows = answers[2] % length, []
    for layer, head, position, _ in places:
        heads = range(runs.subject.shape.n_heads) if head < 0 else (head,)
        names = [f"head {layer}.{h}" for h in heads] if site.site == sites.OUTPUT else [f"MLP {layer}"]
        is_there = position == at if position >= 0 else site.positions is None or at in site.positions
        rows.append(torch.stack([clean[name] - corrupted[name] for name in names]).sum(0) * is_there)
    return torch.stack(rows).float()


def _at(changes: Tensor, head: int, position: int) -> PerSequence:
    """The changes `sequence [head] pos` of one place, summed over the axes that it does not name."""
    at = tuple(slice(None) if k < 0 else slice(k, k + 1) for k in (head, position)[-(changes.ndim - 1) :])
    return changes[(slice(None), *at)].flatten(1).sum(1)


def _axes(site: Change, by: Any) -> tuple[str, ...]:
    """The axes of the map, in their order."""
    of_head = (_head_axis(site),) if site.selector else ()
    by = (LAYER, *(of_head or (POSITION,))) if by is None else by
    axes = (LAYER, *of_head, POSITION, *((KEY,) if site.site == sites.PATTERN else ()))
    chosen = [*by] if isinstance(by, Iterable) and not isinstance(by, str) else [by]
    if LAYER not in chosen or not all(axis in axes for axis in chosen) or len(set(chosen)) < len(chosen):
        raise InputError(f"a map of the {site.site.label} goes by layer, and by {' or '.join(axes[1:])}; got {chosen}")
    return tuple(axis for axis in axes if axis in chosen)


def _head_axis(site: Change) -> str:
    return KV_HEAD if site.selector == "kv_heads" else HEAD


def _places(site: Change, source: Activations, axes: Sequence[str]) -> list[Place]:
    """Every place of a site, or those that it selects, without keys that a query does not see."""
    x = next(iter(source.values()))

    def is_chosen(layer: int, head: int) -> bool:
        return head < 0 or not site.selector or bool(site.head_mask(layer, x.shape[1])[head])

    heads = range(x.shape[1]) if _head_axis(site) in axes else (-1,)
    of_site = [(layer, head) for layer, head in product(source, heads) if is_chosen(layer, head)]
    positions, keys = (range(x.shape[-2]) if some is None else some for some in (site.positions, site.dims))
    each = product(of_site, positions if POSITION in axes else (-1,), keys if KEY in axes else (-1,))
    return [
        Place(layer, head, position, key)
        for (layer, head), position, key in each
        if key <= position or POSITION not in axes or _is_seen(source[layer], head, position, key)
    ]


def _is_seen(pattern: Tensor, head: int, position: int, key: int) -> bool:
    """Tells if a query gives some weight to a later key, as within a prefix."""
    weights = pattern[:, slice(None) if head < 0 else [head], position]
    return bool(weights[..., key - pattern.shape[-2]].any())  # a slot's column stands left of the first key's
