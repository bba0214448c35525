"""The gallery: every view, drawn from the checkpoints that ship."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import plotly.graph_objects as go
import torch

from .. import tables
from ..backends.load import SHIPPED, load, words_of
from ..backends.subject import Subject
from ..data.backcopy import BigramBackcopy
from ..data.tokens import TokenSet
from ..measurement.instruments import DISTRIBUTIONS, GEOMETRY, MASSIVE, RESIDUALS
from ..measurement.measure import attention_maps, measure
from ..measurement.qk_maps import qk_maps
from ..measurement.report import Report
from ..plots import curves, heatmaps, massive, norms, qk, swaps, training
from ..runs.inputs import Inputs
from ..runs.trained import EVALUATION_SEQUENCES, SINK_LENGTH, recipe_of
from ..table import Table
from ..tables import TokenText
from ..train.checkpoint import history_of
from ..train.recipe import Recipe
from . import demo
from .page import Section, page

LENGTH, SEQUENCES = 64, 256
FEW = 4  # maps side by side, and sequences whose every residual entry is kept
Named = Mapping[str, "Shipped"]
OnModel = Callable[[str], None]


@dataclass(frozen=True)
class Shipped:
    """A checkpoint that ships, measured."""

    recipe: Recipe
    subject: Subject
    token_set: TokenSet
    report: Report
    word: TokenText

    def part(self, sequences: int, length: int | None = None) -> TokenSet:
        """The first of the sequences, and of their tokens."""
        token_set = TokenSet.of(self.token_set.tokens[:sequences, :length], self.token_set.source)
        return replace(token_set, bos=self.token_set.bos)

    @property
    def some(self) -> torch.Tensor:
        """The few sequences that maps and surfaces are made of."""
        return self.token_set.tokens[: 8 * FEW]


@dataclass(frozen=True)
class Gallery:
    """The page, and the figures that stand for it elsewhere, by file name."""

    html: str
    previews: Mapping[str, go.Figure]


def gallery(on_model: OnModel = lambda name: None) -> Gallery:
    """Measures what ships and draws every view of it. Raises InputError as `measure` does."""
    found = {}
    for folder in sorted(path for path in SHIPPED.iterdir() if (path / "recipe.json").is_file()):
        on_model(folder.name)
        found[folder.name] = _measured(folder.name)
    sections = [section for group in _families(found) for section in _compared(group)]
    sections += [section for name, one in found.items() for section in _alone(name, one)]
    first = {section.title: section.figures[0] for section in sections if section.figures}
    lead = (
        f"Every view of sinkinterp, drawn from the {len(found)} checkpoints that ship with it. What is plotted stands "
        "under each figure; drag to zoom, click a name in a legend to hide its line."
    )
    previews = {file: first[title] for file, title in PREVIEWS.items() if title in first}
    return Gallery(page("sinkinterp: gallery", lead, sections), previews)


PREVIEWS = {
    "maps": "demo: where attention goes",
    "training": "demo: sinks over training",
    "swaps": "demo-softmax: the sink follows p1",
    "angles": "demo-softmax: pairs of queries and keys",
    "lengths": "demo: thresholds and lengths",
}  # file name -> section


def _measured(name: str) -> Shipped:
    source = f"sinkinterp/{name}"
    subject, recipe = load(source, name=name), recipe_of(SHIPPED / name)
    length = min(LENGTH, subject.shape.n_ctx or LENGTH)
    token_set = Inputs(length, SEQUENCES).token_set(source, subject.shape.vocab)
    report = measure(subject, token_set, instruments=(GEOMETRY, DISTRIBUTIONS, MASSIVE))
    return Shipped(recipe, subject, token_set, report, words_of(source))


def _families(found: Named) -> Iterator[Named]:
    """Checkpoints of one task together: those whose names begin alike."""
    for _, names in groupby(found, lambda name: name.split("-")[0]):
        yield {name: found[name] for name in names}


def _compared(group: Named) -> Iterator[Section]:
    """What is drawn of several models side by side."""
    family = next(iter(group)).split("-")[0]
    reports = {name: one.report for name, one in group.items()}
    one = next(iter(group.values()))
    yield _section(f"{family}: where attention goes", *_maps(group))
    histories = {name: history_of(SHIPPED / name) for name in group}
    length = one.recipe.data.length
    words = (
        f"n<={EVALUATION_SEQUENCES} held-out sequences, T={length}, sinks in the first {min(SINK_LENGTH, length)} "
        "positions; no BOS, fp32, epsilon=0.3."
    )
    yield _section(f"{family}: sinks over training", training.training(tables.training_history(histories, words)))
    yield _section(f"{family}: residual norms", norms.ratios(tables.residual_norms_by_block(reports)))
    yield _section(f"{family}: thresholds and lengths", curves.over_length(_lengths(group)))


def _maps(group: Named) -> Iterator[go.Figure]:
    names = list(group)
    for few in (names[i : i + FEW] for i in range(0, len(names), FEW)):
        maps = {}
        for name in few:
            layer, head = tables.strongest_head(group[name].report)
            place = group[name].report.attention_layers.index(layer)
            maps[name] = attention_maps(group[name].subject, group[name].some)[place, head].numpy()
        note = "The head that looks at the first position most; * is a slot. "
        yield heatmaps.attention_maps(maps, "Mean attention maps", note + _of_few(group[few[0]]))


def _lengths(group: Named) -> Table:
    lengths = [4, 6, 8, 12, 16, 32, 64]
    reports = [
        measure(one.subject, one.part(SEQUENCES, length), positions=(0,))
        for one in group.values()
        for length in lengths
        if length <= one.token_set.tokens.shape[1]
    ]
    return tables.sinks_by_length(reports)


def _alone(name: str, one: Shipped) -> Iterator[Section]:
    """What is drawn of one model."""
    layer, head = tables.strongest_head(one.report)
    heads = tables.sinks_by_head(one.report)
    overview = [heatmaps.heads_overview(heads)] if len(heads.rows) > 1 else []
    yield Section(
        f"{name}: is there a sink?", tables.sink_verdict(one.report), overview, [tables.sink_summary(one.report)]
    )
    yield _section(f"{name}: norms", norms.by_kind(tables.norms_by_kind(one.report, token_text=one.word)))
    maps = {key: values.numpy() for key, values in qk_maps(one.subject, one.some, layer, head).items()}
    yield _section(
        f"{name}: pairs of queries and keys",
        qk.distributions(tables.qk_distributions(one.report, layer, head)),
        qk.maps(maps, f"Queries and keys of layer {layer}, head {head}", _of_few(one)),
    )
    few = measure(one.subject, one.part(FEW), instruments=(RESIDUALS,))
    found = tables.residual_surface(few, one.word)
    title = f"Residual magnitudes of {name} at block {found.block}"
    surface = massive.surface(found.sizes, found.channels, found.tokens, title, found.note)
    entries = tables.largest_entries(one.report, token_text=one.word, block=found.block, most=5)
    yield Section(f"{name}: residual stream", entries.note, [surface], [entries])
    if name == "demo-softmax" and isinstance(one.recipe.data, BigramBackcopy):
        yield _section(f"{name}: the sink follows p1", swaps.swap_chart(demo.swaps(one.subject, one.recipe.data)))


def _of_few(one: Shipped) -> str:
    n, length = one.some.shape
    return f"n={n}, T={length}, BOS {one.token_set.bos}, fp32, {one.token_set.source}."


def _section(title: str, *figures: go.Figure) -> Section:
    return Section(title, "", figures)
