"""The gallery: every view, drawn from the checkpoints that ship, and from pretrained models where they are here."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import plotly.graph_objects as go
import torch

from .. import tables
from ..backends.load import load
from ..backends.model_files import words_of
from ..backends.places import SHIPPED
from ..backends.subject import Subject
from ..data.backcopy import BigramBackcopy
from ..data.tokens import TokenSet
from ..measurement.instruments import DISTRIBUTIONS, GEOMETRY, MASSIVE, RESIDUALS
from ..measurement.measure import attention_maps, measure
from ..measurement.qk_maps import qk_maps
from ..measurement.report import Report
from ..plots import curves, heatmaps, norms, qk, swaps, training
from ..runs.inputs import Inputs
from ..runs.trained import EVALUATION_SEQUENCES, SINK_LENGTH, recipe_of
from ..table import Table
from ..tables import TokenText
from ..train.checkpoint import history_of
from ..train.recipe import Recipe
from . import demo, pretrained
from .page import Section, page
from .report import surface_figure

LENGTH, SEQUENCES = 64, 256
LENGTHS = (4, 6, 8, 12, 16, 32, 64)  # of the sequences that the curves over length are measured on
FEW = 4  # maps side by side, and sequences of which all residual entries are kept
PREVIEWS = {
    "maps": "demo: where attention goes",
    "training": "demo: sinks over training",
    "swaps": "demo-softmax: the sink follows p1",
    "angles": "demo-softmax: pairs of queries and keys",
    "lengths": "demo: thresholds and lengths",
    "smollm2": pretrained.first_title("SmolLM2-135M-Instruct"),
}  # file name -> title of the section whose first figure it shows


@dataclass(frozen=True)
class Shipped:
    """A checkpoint that ships, and what was measured of it."""

    recipe: Recipe
    subject: Subject
    token_set: TokenSet
    report: Report
    word: TokenText

    def part(self, sequences: int, length: int | None = None) -> TokenSet:
        """The first sequences of the token set, cut to `length` tokens."""
        token_set = TokenSet.of(self.token_set.tokens[:sequences, :length], self.token_set.source)
        return replace(token_set, bos=self.token_set.bos)

    @property
    def map_tokens(self) -> torch.Tensor:
        """The sequences that mean maps are made from."""
        return self.token_set.tokens[: 8 * FEW]

    @property
    def map_note(self) -> str:
        """The protocol of mean maps."""
        n, length = self.map_tokens.shape
        return f"n={n}, T={length}, BOS {self.token_set.bos}, fp32, {self.token_set.source}."


Checkpoints = Mapping[str, Shipped]  # by name


@dataclass(frozen=True)
class Gallery:
    """The page, and the figures that other pages show as a preview, by file name."""

    html: str
    previews: Mapping[str, go.Figure]


def gallery(on_model: Callable[[str], None] = lambda name: None) -> Gallery:
    """Measures the checkpoints that ship and the pretrained models that are here, and draws every view of them.

    Raises InputError as `measure` does. `on_model` receives the name of each model before it is measured.
    """
    checkpoints = {}
    for folder in sorted(path for path in SHIPPED.iterdir() if (path / "recipe.json").is_file()):
        on_model(folder.name)
        checkpoints[folder.name] = _measured(folder.name)
    sections = list(pretrained.sections(on_model))
    sections += [section for family in _families(checkpoints) for section in _family_sections(family)]
    for name, shipped in checkpoints.items():
        sections += _model_sections(name, shipped)
    first_figures = {section.title: section.figures[0] for section in sections if section.figures}
    here = "".join(f", and from {name}" for name in pretrained.language_models().values())
    lead = (
        f"Every view of sinkinterp, drawn from the {len(checkpoints)} checkpoints that ship with it{here}. What is "
        "plotted stands under each figure; drag to zoom, click a name in a legend to hide its line."
    )
    previews = {file: first_figures[title] for file, title in PREVIEWS.items() if title in first_figures}
    return Gallery(page("sinkinterp: gallery", lead, sections), previews)


def _measured(name: str) -> Shipped:
    source = f"sinkinterp/{name}"
    subject, recipe = load(source, name=name), recipe_of(SHIPPED / name)
    length = min(LENGTH, subject.shape.n_ctx or LENGTH)
    token_set = Inputs(length, SEQUENCES).token_set(source, subject.shape.vocab)
    report = measure(subject, token_set, instruments=(GEOMETRY, DISTRIBUTIONS, MASSIVE))
    return Shipped(recipe, subject, token_set, report, words_of(source))


def _family(name: str) -> str:
    return name.split("-")[0]


def _families(checkpoints: Checkpoints) -> Iterator[Checkpoints]:
    """The checkpoints of each task: their names begin with the same word."""
    for _, names in groupby(checkpoints, _family):
        yield {name: checkpoints[name] for name in names}


def _family_sections(family: Checkpoints) -> Iterator[Section]:
    """What is drawn of several models side by side."""
    title = _family(next(iter(family)))
    length = next(iter(family.values())).recipe.data.length
    histories = {name: history_of(SHIPPED / name) for name in family}
    note = (
        f"n<={EVALUATION_SEQUENCES} held-out sequences, T={length}, sinks in the first {min(SINK_LENGTH, length)} "
        "positions; no BOS, fp32, epsilon=0.3."
    )
    residuals = tables.residual_norms_by_block({name: shipped.report for name, shipped in family.items()})
    yield _section(f"{title}: where attention goes", *_maps(family))
    yield _section(f"{title}: sinks over training", training.training(tables.training_history(histories, note)))
    yield _section(f"{title}: residual norms", norms.ratios(residuals))
    yield _section(f"{title}: thresholds and lengths", curves.over_length(_lengths(family)))


def _maps(family: Checkpoints) -> Iterator[go.Figure]:
    """Figures with the strongest head of each model, a few models in each."""
    names = list(family)
    for first in range(0, len(names), FEW):
        maps = {name: _strongest_map(family[name]) for name in names[first : first + FEW]}
        note = f"The head that looks at the first position most; * is a slot. {family[names[first]].map_note}"
        yield heatmaps.attention_maps(maps, "Mean attention maps", note)


def _strongest_map(shipped: Shipped) -> np.ndarray:
    layer, head = tables.strongest_head(shipped.report)
    index = shipped.report.attention_layers.index(layer)
    return attention_maps(shipped.subject, shipped.map_tokens)[index, head].numpy()


def _lengths(family: Checkpoints) -> Table:
    reports = [
        measure(shipped.subject, shipped.part(SEQUENCES, length), positions=(0,))
        for shipped in family.values()
        for length in LENGTHS
        if length <= shipped.token_set.tokens.shape[1]
    ]
    return tables.sinks_by_length(reports)


def _model_sections(name: str, shipped: Shipped) -> Iterator[Section]:
    """What is drawn of one model."""
    report = shipped.report
    heads = tables.sinks_by_head(report)
    overview = [heatmaps.heads_overview(heads)] if len(heads.rows) > 1 else []
    yield Section(f"{name}: is there a sink?", tables.sink_verdict(report), overview, [tables.sink_summary(report)])
    yield _section(f"{name}: norms", norms.by_kind(tables.norms_by_kind(report, token_text=shipped.word)))
    yield _section(f"{name}: pairs of queries and keys", *_qk_figures(shipped))
    yield _residual_section(name, shipped)
    if name == "demo-softmax" and isinstance(shipped.recipe.data, BigramBackcopy):
        yield _section(
            f"{name}: the sink follows p1", swaps.swap_chart(demo.swaps(shipped.subject, shipped.recipe.data))
        )


def _qk_figures(shipped: Shipped) -> Iterator[go.Figure]:
    layer, head = tables.strongest_head(shipped.report)
    yield qk.distributions(tables.qk_distributions(shipped.report, layer, head))
    maps = {key: values.numpy() for key, values in qk_maps(shipped.subject, shipped.map_tokens, layer, head).items()}
    yield qk.maps(maps, f"Queries and keys of layer {layer}, head {head}", shipped.map_note)


def _residual_section(name: str, shipped: Shipped) -> Section:
    few = measure(shipped.subject, shipped.part(FEW), instruments=(RESIDUALS,))
    surface = tables.residual_surface(few, shipped.word)
    entries = tables.largest_entries(shipped.report, token_text=shipped.word, block=surface.block, most=5)
    figure = surface_figure(surface, f"Residual magnitudes of {name} at block {surface.block}")
    return Section(f"{name}: residual stream", entries.note, [figure], [entries])


def _section(title: str, *figures: go.Figure) -> Section:
    return Section(title, "", figures)
