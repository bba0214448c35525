"""The pictures of the documents that show models: of the checkpoints that ship, and of those that `make models` made.

python -m experiments.book.model_pictures
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sinkinterp.backends.encoder import Silence
from sinkinterp.backends.load import load
from sinkinterp.backends.named_models import SHIPPED, downloaded
from sinkinterp.backends.subject import Subject
from sinkinterp.data.choices import Bos, Drawn
from sinkinterp.data.tokens import TokenSet
from sinkinterp.interventions import SwapPositions
from sinkinterp.measurement.maps import attention_map, head_maps
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.instruments import GEOMETRY, MASSIVE
from sinkinterp.pages.demo import swaps
from sinkinterp.pages.report import save
from sinkinterp.plots.theme import add_curve, colour, escaped, positive_axis, themed, unique_values
from sinkinterp.report.heads import heads_overview, sinks_by_head
from sinkinterp.report.maps import attention_figure
from sinkinterp.report.norms import FIRST_TOKEN, KIND, NORM, OTHER_TOKENS, residual_norms_by_block
from sinkinterp.report.report import Report
from sinkinterp.runs.inputs import Inputs
from sinkinterp.runs.trained import EVALUATION_SEQUENCES, SINK_LENGTH, training_history
from sinkinterp.table import ALPHA_1, BLOCK, HEAD, LAYER, MODEL, Table
from sinkinterp.train.checkpoint import history_of
from sinkinterp.train.recipe import recipe_in

from ..shared.lengths import sinks_by_length

LENGTH, SEQUENCES = 64, 256
LENGTHS = (4, 6, 8, 12, 16, 32, 64)  # of the sequences that the curves over length are measured on
MAPPED = 32  # sequences of a mean map
EPSILON = 0.3
TWINS = ("demo-k_bias", "demo-sigmoid", "demo-softmax")  # of one task
_WORDS = tomllib.loads((Path(__file__).parent / "templates" / "model_pictures.toml").read_text(encoding="utf-8"))
FEWER = 100  # sequences of SmolLM2
WHISPER, SENTENCE = "whisper-tiny.en", "The quick brown fox jumps over the lazy dog near the river."
NATURAL, REPEATED = "natural text", "one token, repeated"
PER_BLOCK = 15  # points of height
MAP_WIDTH = 0.24  # of the figure
DASHES = ("solid", "dot", "dash", "dashdot")


def _shipped(name: str) -> tuple[Subject, TokenSet]:
    """A checkpoint that ships, and what it is measured on."""
    source = f"sinkinterp/{name}"
    subject = load(source, name=name)
    return subject, Inputs(min(LENGTH, subject.shape.n_ctx or LENGTH), SEQUENCES).token_set(subject, source)


def _maps() -> go.Figure:
    """The strongest head of each twin."""
    twins = {name: _shipped(name) for name in TWINS}
    maps = {
        name: head_maps(subject, given.tokens[:MAPPED], [_strongest(measure(subject, given))])
        for name, (subject, given) in twins.items()
    }
    _, first = twins[TWINS[0]]
    n, length = min(MAPPED, len(first.tokens)), first.tokens.shape[1]
    note = _WORDS["maps"].format(n=n, length=length, bos=first.bos, source=first.source)
    return attention_figure(maps, "Mean attention maps", note)


def _strongest(report: Report) -> tuple[int, int]:
    row = report.heads(top=1).records()[0]
    return row[LAYER], row[HEAD]


def _training() -> go.Figure:
    length = recipe_in(SHIPPED / TWINS[0]).data.length
    note = _WORDS["training"].format(n=EVALUATION_SEQUENCES, length=length, measured=min(SINK_LENGTH, length))
    return training_history({name: history_of(SHIPPED / name) for name in TWINS}, note).plot()


def _swaps() -> go.Figure:
    name = "demo-softmax"
    return swaps(_shipped(name)[0], recipe_in(SHIPPED / name).data).plot()


def _angles() -> go.Figure:
    subject, given = _shipped("text-softmax")
    report = measure(subject, given, instruments=[GEOMETRY])
    return report.plot("angles", EPSILON, subject.label)


def _lengths() -> go.Figure:
    return sinks_by_length(_cut_reports()).plot()


def _cut_reports() -> Iterator[Report]:
    """Reports of the twins on the first tokens of their texts."""
    for (subject, given), length in product(map(_shipped, TWINS), LENGTHS):
        if length <= given.tokens.shape[1]:
            yield measure(subject, replace(given, tokens=given.tokens[:, :length]), positions=(0,))


def _smollm2() -> go.Figure:
    """Maps and norms of SmolLM2 on text and on repeated tokens, without BOS. Raises InputError where it is missing."""
    source = "local/smollm2-135m-instruct"
    subject = load(source, name="SmolLM2-135M-Instruct")
    reports = {}
    for given, drawn in {NATURAL: None, REPEATED: Drawn.REPEAT}.items():
        token_set = Inputs(LENGTH, FEWER, Bos.NEVER, drawn=drawn).token_set(subject, source)
        reports[given] = measure(subject, token_set, instruments=[MASSIVE])
    maps = {given: sinks_by_head(report) for given, report in reports.items()}
    return maps_and_norms(maps, _norms(reports), f"{subject.name}: attention to the first token")


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


def _front() -> go.Figure:
    """The picture of README: a head of Whisper before and after p1 and p5 are swapped."""
    whisper = load(WHISPER, encoder=Silence())
    return attention_map(whisper, SENTENCE, heads=[(3, 2)], edits=SwapPositions(0, 4))


PICTURES: Mapping[str, Callable[[], go.Figure]] = {
    "maps": _maps,
    "training": _training,
    "swaps": _swaps,
    "angles": _angles,
    "lengths": _lengths,
    "smollm2": _smollm2,
    "front": _front,
}
NEEDED = {"smollm2": "smollm2", "front": WHISPER}  # models that `make models` makes
SIZES = {"front": (6.5, 3.4)}  # inches; other pictures have about the height of the screen


if __name__ == "__main__":
    for picture, draw in PICTURES.items():
        if picture not in NEEDED or NEEDED[picture] in downloaded():
            width, height = SIZES.get(picture, (7.5, None))
            print(f"wrote {save(draw(), Path('figures') / f'{picture}.png', width=width, height=height)}")
