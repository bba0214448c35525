"""Draws every view from the checkpoints that ship, and from the models that `make models` made: `make figures`.

    python -m experiments.book.gallery

Writes figures/gallery.html, and the pictures that the documents show.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkinterp.backends.encoder import Silence
from sinkinterp.backends.load import load
from sinkinterp.backends.named_models import SHIPPED, downloaded, downloads
from sinkinterp.backends.subject import Subject
from sinkinterp.data.backcopy import BigramBackcopy
from sinkinterp.data.choices import Bos, Drawn
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import write_file
from sinkinterp.interventions import SwapPositions
from sinkinterp.measurement.maps import attention_map, head_maps
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.instruments import GEOMETRY, MASSIVE
from sinkinterp.pages.demo import swaps
from sinkinterp.pages.page import Section
from sinkinterp.pages.report import save
from sinkinterp.plots.theme import add_curve, colour, escaped, positive_axis, themed, unique_values
from sinkinterp.report.heads import heads_overview, sinks_by_head
from sinkinterp.report.maps import attention_figure
from sinkinterp.report.norms import FIRST_TOKEN, KIND, NORM, OTHER_TOKENS, residual_norms_by_block
from sinkinterp.report.report import Report, views_of
from sinkinterp.report.summary import sink_summary, sink_verdict
from sinkinterp.runs.inputs import Inputs
from sinkinterp.runs.trained import EVALUATION_SEQUENCES, SINK_LENGTH, recipe_of, training_history
from sinkinterp.table import ALPHA_1, BLOCK, HEAD, LAYER, MODEL, Table
from sinkinterp.train.checkpoint import history_of
from sinkinterp.train.recipe import Recipe

from ..shared.lengths import sinks_by_length
from .cards import cards_page

LENGTH, SEQUENCES = 64, 256
LENGTHS = (4, 6, 8, 12, 16, 32, 64)  # of the sequences that the curves over length are measured on
FEW, MAPPED = 4, 32  # maps side by side, and sequences of a mean map
EPSILON = 0.3
SHOWN = ("norms", "angles", "massive")  # views of each model
_WORDS = tomllib.loads((Path(__file__).parent / "templates" / "gallery.toml").read_text(encoding="utf-8"))
PREVIEWS = _WORDS["previews"]
FEWER = 100  # sequences of pretrained models
LANGUAGE_MODELS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"}  # folder -> name on the page
NATURAL, REPEATED = "natural text", "one token, repeated"
PER_BLOCK = 15  # points of height
MAP_WIDTH = 0.24  # of the figure
SIZES = {"front": (6.5, 3.4)}  # inches of pictures; others have about the height of the screen
DASHES = ("solid", "dot", "dash", "dashdot")


@dataclass(frozen=True)
class Shipped:
    """A checkpoint that ships, and what was measured of it."""

    recipe: Recipe
    subject: Subject
    token_set: TokenSet
    report: Report


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
    sections = list(pretrained_models(on_model))
    for task, names in groupby(checkpoints, lambda name: name.split("-")[0]):
        sections += _family_sections(f"the {task} models", {name: checkpoints[name] for name in names})
    for name, shipped in checkpoints.items():
        sections += _model_sections(name, shipped)
    first_figures = {section.title: section.figures[0] for section in sections if section.figures}
    here = "".join(f", and from {name}" for name in language_models().values())
    lead = _WORDS["lead"].format(n=len(checkpoints), here=here)
    previews = {file: first_figures[title] for file, title in PREVIEWS.items() if title in first_figures}
    return Gallery(cards_page("sinkinterp: gallery", lead, sections), previews)


def _measured(name: str) -> Shipped:
    source = f"sinkinterp/{name}"
    subject, recipe = load(source, name=name), recipe_of(SHIPPED / name)
    length = min(LENGTH, subject.shape.n_ctx or LENGTH)
    token_set = Inputs(length, SEQUENCES).token_set(subject, source)
    report = measure(subject, token_set, instruments=(GEOMETRY, MASSIVE))
    return Shipped(recipe, subject, token_set, report)


def _family_sections(title: str, family: Checkpoints) -> Iterator[Section]:
    """What is drawn of the models of one task side by side."""
    length = next(iter(family.values())).recipe.data.length
    histories = {name: history_of(SHIPPED / name) for name in family}
    sizes = {"n": EVALUATION_SEQUENCES, "length": length, "measured": min(SINK_LENGTH, length)}
    note = _WORDS["training"].format(**sizes)
    residuals = residual_norms_by_block({name: shipped.report for name, shipped in family.items()})
    yield Section(f"{title}: where attention goes", figures=list(_maps(family)))
    yield Section.of(training_history(histories, note), f"{title}: sinks over training")
    yield Section.of(residuals, f"{title}: residual norms")
    yield Section.of(_lengths(family), f"{title}: thresholds and lengths")


def _maps(family: Checkpoints) -> Iterator[go.Figure]:
    """Figures with the strongest head of each model, a few models in each."""
    names = list(family)
    for first in range(0, len(names), FEW):
        shown = {name: family[name] for name in names[first : first + FEW]}
        tokens = {name: each.token_set.tokens[:MAPPED] for name, each in shown.items()}
        maps = {n: head_maps(each.subject, tokens[n], [_strongest(each.report)]) for n, each in shown.items()}
        token_set = family[names[first]].token_set
        n, length = min(MAPPED, len(token_set.tokens)), token_set.tokens.shape[1]
        note = _WORDS["maps"].format(n=n, length=length, bos=token_set.bos, source=token_set.source)
        yield attention_figure(maps, "Mean attention maps", note)


def _strongest(report: Report) -> tuple[int, int]:
    row = report.heads(top=1).records()[0]
    return row[LAYER], row[HEAD]


def _lengths(family: Checkpoints) -> Table:
    sets = [(each.subject, each.token_set) for each in family.values()]
    cut = [(subject, given, n) for (subject, given), n in product(sets, LENGTHS) if n <= given.tokens.shape[1]]
    reports = (measure(s, replace(given, tokens=given.tokens[:, :n]), positions=(0,)) for s, given, n in cut)
    return sinks_by_length(reports)


def _of_model(name: str, report: Report, heads: Sequence[go.Figure], subject: Subject, first: str) -> Iterator[Section]:
    """The sections of one model: its sink in a sentence, `heads` and a table, then the views of `SHOWN`."""
    yield Section(f"{name}: {first}", sink_verdict(report), heads, [sink_summary(report)])
    for view in (view for view in views_of(report) if view.name in SHOWN):
        yield Section.of(view.table(report, EPSILON, subject.label), f"{name}: {view.heading}")


def _model_sections(name: str, shipped: Shipped) -> Iterator[Section]:
    """What is drawn of a checkpoint that ships."""
    heads = sinks_by_head(shipped.report)
    overview = [heads.plot()] if len(heads.frame) > 1 else []
    yield from _of_model(name, shipped.report, overview, shipped.subject, "is there a sink?")
    if name == "demo-softmax" and isinstance(shipped.recipe.data, BigramBackcopy):
        yield Section.of(swaps(shipped.subject, shipped.recipe.data), f"{name}: where does the sink go?")


def language_models() -> Mapping[str, str]:
    """Those of `LANGUAGE_MODELS` that are here."""
    return {folder: name for folder, name in LANGUAGE_MODELS.items() if (downloads() / folder).is_dir()}


def pretrained_models(on_model: Callable[[str], None] = lambda name: None) -> Iterator[Section]:
    """What is drawn of every pretrained language model that is here: on text and on repeated tokens, without BOS."""
    for folder, name in language_models().items():
        on_model(name)
        source = f"local/{folder}"
        subject = load(source, name=name)
        drawn = {NATURAL: None, REPEATED: Drawn.REPEAT}
        token_sets = {
            given: Inputs(LENGTH, FEWER, Bos.NEVER, drawn=how).token_set(subject, source)
            for given, how in drawn.items()
        }
        reports = {given: measure(subject, tokens, instruments=[MASSIVE]) for given, tokens in token_sets.items()}
        maps = {given: sinks_by_head(report) for given, report in reports.items()}
        figure = maps_and_norms(maps, _norms(reports), f"{name}: attention to the first token")
        yield from _of_model(name, reports[NATURAL], [figure], subject, "a sink in genuine weights")


def _norms(reports: Mapping[str, Report]) -> Table:
    """Residual norms by block: of the first token of natural text, of the others, and of a repeated token's copies."""
    by_block = residual_norms_by_block(reports)
    kinds = {kind: (NATURAL, kind) for kind in (FIRST_TOKEN, OTHER_TOKENS)}
    kinds["copies of a repeated token"] = REPEATED, OTHER_TOKENS
    found = (
        (kind, name, row) for kind, (given, name) in kinds.items() for row in by_block.where(**{MODEL: given}).records()
    )
    rows = tuple({BLOCK: row[BLOCK], KIND: kind, NORM: row[name]} for kind, name, row in found)
    return Table.of(by_block.title, by_block.note, rows)


def maps_and_norms(maps: Mapping[str, Table], norms: Table, title: str) -> go.Figure:
    """alpha_1 per layer and head, a map per input; beside it residual norms on the same axis of blocks.

    maps: by the name of the input, from `sinks_by_head`. norms: a row per kind of token and block.
    """
    n_maps, blocks = len(maps), unique_values(norms, BLOCK)
    titles = [*(f"alpha_1, {escaped(name)}" for name in maps), "norm of the residual stream before each layer"]
    widths = [MAP_WIDTH] * n_maps + [1 - MAP_WIDTH * n_maps]
    panels = {"subplot_titles": titles, "shared_yaxes": True, "column_widths": widths}
    figure = make_subplots(1, n_maps + 1, **panels, horizontal_spacing=0.03)
    below_all = {"x": (1 - 0.03 * n_maps) * MAP_WIDTH * n_maps / 2, "y": -0.14, "yanchor": "top", "len": 0.3}
    scale = {"title": {"text": ALPHA_1, "side": "bottom"}, "orientation": "h", "thickness": 12, **below_all}
    for i, table in enumerate(maps.values(), 1):
        figure.add_trace(heads_overview(table).data[0].update(colorbar=scale), row=1, col=i)
        figure.update_xaxes(title="head", dtick=1, showgrid=False, row=1, col=i)
    for i, kind in enumerate(unique_values(norms, KIND)):
        line = {"color": colour(i), "dash": DASHES[i % len(DASHES)], "width": 2}
        place = {"row": 1, "col": n_maps + 1}
        add_curve(figure, norms.where(**{KIND: kind}), NORM, BLOCK, i, name=escaped(kind), line=line, **place)
    axis = {**positive_axis(norms.numbers(NORM)), "dtick": 1}
    figure.update_xaxes(title="mean Euclidean norm", **axis, row=1, col=n_maps + 1)
    figure.update_yaxes(range=[len(blocks) - 0.5, -0.5], dtick=2, zeroline=False)
    figure.update_yaxes(title="layer", row=1, col=1)
    caption = _WORDS["norms"].format(note=next(iter(maps.values())).note)
    themed(figure, title, 220 + PER_BLOCK * len(blocks), caption)
    return figure.update_layout(margin={"b": 110}, legend={"x": 1, "xanchor": "right", "y": 1.06})


WHISPER, SENTENCE = "whisper-tiny.en", "The quick brown fox jumps over the lazy dog near the river."


def front() -> go.Figure:
    """The picture of README: a head of Whisper before and after p1 and p5 are swapped. Raises InputError without it."""
    whisper = load(WHISPER, encoder=Silence())
    return attention_map(whisper, SENTENCE, heads=[(3, 2)], edits=SwapPositions(0, 4))


if __name__ == "__main__":
    folder = Path("figures")
    drawn = gallery(lambda name: print(f"measuring {name}"))
    write_file(folder / "gallery.html", drawn.html)
    pictures = {**drawn.previews, **({"front": front()} if WHISPER in downloaded() else {})}
    for name, picture in pictures.items():
        width, height = SIZES.get(name, (7.5, None))
        print(f"wrote {save(picture, folder / f'{name}.png', width=width, height=height)}")
