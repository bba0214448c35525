"""An atlas of genuine models: one row a model with its sink, its massive activation, and what both cost."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import plotly.graph_objects as go
import torch
from jaxtyping import Bool
from torch import Tensor

from sinkinterp.applications.quantising import GRAINS, Quantise, nothing, relative_error
from sinkinterp.attention.shapes import Residual
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens, TokenSet
from sinkinterp.interventions import ChangeResidual, RemoveColumn
from sinkinterp.interventions.attention_layers import Evict
from sinkinterp.measurement.explaining import massive_path
from sinkinterp.measurement.measure import measure as measure_model
from sinkinterp.measurement.patching import activations
from sinkinterp.measurement.quantities import token_losses
from sinkinterp.metrics.estimates import mean_cells, rate_cells
from sinkinterp.metrics.importance import sink_rate
from sinkinterp.metrics.instruments import GEOMETRY, LOSS
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.qk import QK_ANGLES
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.report.explanation import Path
from sinkinterp.report.readings import protocol_note
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import EDIT, KEY_RATIO, MODEL, NULL, SINK_1, VALUE_RATIO, Cell, Table, high_of, low_of

from .shared.cases import Case, on_models
from .shared.effects import LOSS_CHANGE, OTHER_AT, OTHER_EXCESS, Effects
from .shared.genuine import text_models
from .shared.massive import massive_dims
from .shared.rules import MARGIN, above, checked, plus

CLAIM = "Genuine models of four families have one kind of sink: one first token, one massive entry, one token to keep."
RULE = (
    "of each model: Sink_1 is .05 above uniform attention, without BOS and with it; to hide the first token from the "
    "layers behind its writer costs more than to hide the 11th, where no other position is .05 above its null then; a "
    "rolling cache that keeps the first token loses less than one that does not"
)
# Sun et al. 2024 (2402.17762): massive activations of LLaMA2-7B: 2,557 in dimensions 1415 and 2533
MODELS = text_models(has=())
SEQUENCES, EPSILON, TOP, ENOUGH = 16, 0.3, 3, 0.02  # ENOUGH: nats
STARTS = {Bos.NEVER: "without BOS", Bos.ALWAYS: "with BOS"}
KEPT = (0, 1, 4)  # first tokens that a cache keeps
RATES = tuple(f"{SINK_1} {start}" for start in STARTS.values())
HIDDEN, CONTROL = "loss, first token hidden behind its writer", "loss, 11th hidden behind that writer"
EVERYWHERE, CONTROL_EVERYWHERE = "loss, first token hidden in all layers", "loss, 11th hidden in all layers"
FEW = 6  # texts on which columns are hidden, residuals rounded, and starts compared
SECOND, THERE, EXCESS = "Sink_2 then", "strongest other position then", "strongest other alpha over its null then"
ERROR, FIRST_AS_IT_IS = "int8 error per", "int8 error per tensor, first left out"
EVICTED = tuple(f"loss of a cache that keeps {kept}" for kept in KEPT)


def measure(case: Case, progress: Progress) -> Table:
    """One row: the model's sinks, heads, massive entry, geometry, and what the first token is worth."""
    on_part, subject = progress(f"measuring {case.subject.name}"), case.subject
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"{subject.name} is read through another library; give a name or a folder")
    reports = {bos: _report(case, bos, progress) for bos in {Bos.NEVER: 0, case.bos: 1}}
    start = max(reports, key=lambda bos: reports[bos].sink_rate(0, EPSILON).mean)
    report = reports[start]
    sinks = {**_sinks(reports), **_losses(reports)}
    tokens, row = report.tokens, {**case.names, **sinks, "the rest": STARTS[start], **_geometry(report)}
    parts: tuple[Callable[..., dict[str, Cell]], ...] = (
        _massive,
        partial(_costs, full=report.extra(NEXT_TOKEN_LOSS)),
        _rounding,
    )
    for done, part in enumerate(parts, 1):
        on_part(done, len(parts) + 1)
        row |= part(subject, tokens)
    on_part(1, 1)
    note = (
        f"{protocol_note(report, EPSILON)}; the rest: of the start with the larger Sink_1, if they differ; "
        "null: uniform attention; ratios: first token over the others, mean over heads and layers; cosines: "
        "of queries with the first key, and with others; massive: |x| > 100 and 1,000 x the median, in most sequences; "
        "entry: the one of the first token that stands out most, and who writes it; of the first "
        f"{FEW} texts: Sink_2 and loss of a start, hidden columns, int8 errors; loss of a start: of the tokens "
        "that are predicted with both; other losses in nats above the model's own: a column's attention given to the "
        "others, in all layers, or from the first whose input has a massive entry of the first token, and then Sink_2 "
        "and the strongest position but the first, over those layers; a cache of "
        f"{tokens.shape[1] // 2} tokens after it began to evict; to keep: the fewest of {', '.join(map(str, KEPT))} "
        f"within {ENOUGH} nats of {KEPT[-1]}; int8 error: of the residual, scales of a text, a token or a channel, "
        f"squared over squared; rule: {RULE}"
    )
    return Table.of(CLAIM, note, (row,))


def _report(case: Case, bos: Bos, progress: Progress) -> Report:
    token_set = case.tokens(case.size(SEQUENCES), progress, bos)
    return measure_model(case.subject, token_set, positions=(0, 1), instruments=[GEOMETRY, LOSS])


def _sinks(reports: Mapping[Bos, Report]) -> dict[str, Cell]:
    """Sink_1 without BOS and with it, empty where the tokenizer has none, beside uniform attention."""
    cells: dict[str, Cell] = {}
    for bos, start in STARTS.items():
        name = f"{SINK_1} {start}"
        cells |= (
            rate_cells(name, sink_rate(reports[bos].alpha(), EPSILON))
            if bos in reports
            else dict.fromkeys(mean_cells(name, torch.zeros(2)))
        )
        seconds = sink_rate(reports[bos].alpha(1)[:FEW], EPSILON) if bos in reports else None
        cells[f"Sink_2 {start}"] = None if seconds is None else seconds.mean().item()
    null = max(report.null_sink_rate(0, EPSILON) for report in reports.values())
    return {**cells, NULL: null}


def _losses(reports: Mapping[Bos, Report]) -> dict[str, Cell]:
    """The loss without BOS and with it, of the same tokens: those that both starts predict."""
    losses = {bos: report.extra(NEXT_TOKEN_LOSS)[:FEW] for bos, report in reports.items()}
    if len(losses) == 2:
        plain, marked = (reports[bos].tokens[:FEW] for bos in (Bos.NEVER, Bos.ALWAYS))
        same = (plain[:, :-1] == marked[:, 1:]).all(1)  # a text may be long enough with BOS alone
        losses = {Bos.NEVER: losses[Bos.NEVER][same, :-1], Bos.ALWAYS: losses[Bos.ALWAYS][same, 1:]}
    cells: dict[str, Cell] = {}
    for bos, start in STARTS.items():
        name = f"loss {start}"
        found = losses[bos].mean(1) if bos in losses else torch.full((2,), torch.nan)
        cells |= mean_cells(name, found) if bos in losses else dict.fromkeys(mean_cells(name, found))
    return cells


def _geometry(report: Report) -> dict[str, Cell]:
    """The strongest heads, lengths of the first key and value over the others', and cosines of queries with keys."""
    alpha, angles = report.alpha().mean(0), report.extra(QK_ANGLES).nanmean((1, 2))
    strongest = alpha.flatten().argsort(descending=True)[:TOP].tolist()
    named = [(report.attention_layers[i // alpha.shape[1]], i % alpha.shape[1], alpha.flatten()[i]) for i in strongest]
    heads = ", ".join(f"{layer}.{head} ({value:.2f})" for layer, head, value in named)
    return {
        "strongest heads": heads,
        **mean_cells(KEY_RATIO, report.key_ratio().mean((1, 2))),
        **mean_cells(VALUE_RATIO, report.value_ratio().mean((1, 2))),
        **mean_cells("cosine with the first key", angles[:, 0]),
        **mean_cells("cosine with others", angles[:, 1]),
    }


def _massive(subject: HuggingFaceSubject, tokens: Tokens) -> dict[str, Cell]:
    """Returns where an entry of the first token is massive, its size, who writes it and who erases it."""
    path = massive_path(subject, tokens)
    if isinstance(path, Path):
        writer, eraser = path.writer, path.eraser and path.eraser[0]
    else:
        writer, eraser = "the embedding" if path.is_embedding else "no part", None
    return {
        "dimension": path.dim,
        "times the others": path.times,
        "massive from": None if path.life is None else path.life.first,
        "massive until": None if path.life is None else path.life.last,
        "entry": path.value,
        "written by": writer,
        "erased by": eraser,
    }


def _costs(subject: HuggingFaceSubject, tokens: Tokens, full: Tensor) -> dict[str, Cell]:
    """Returns the cost of hiding a column, and of keeping a number of first tokens in a cache of half the text."""
    token_set, row = TokenSet.of(tokens[:FEW]), dict[str, Cell]()
    behind = range(_first_behind_writer(subject, token_set), subject.shape.n_layers)
    for hidden, control, layers in ((EVERYWHERE, CONTROL_EVERYWHERE, None), (HIDDEN, CONTROL, behind)):
        row |= _hidden(subject, token_set, hidden, control, layers)
    half = tokens.shape[1] // 2
    means = []
    for name, kept in zip(EVICTED, KEPT, strict=True):
        added = (token_losses(subject, tokens, [Evict(half, kept)]) - full)[:, half:].mean(1)
        row |= mean_cells(name, added)
        means.append(added.mean().item())
    fewest = next(kept for kept, mean in zip(KEPT, means, strict=True) if mean <= means[-1] + ENOUGH)
    return row | {"first tokens to keep": fewest}


def _first_behind_writer(subject: HuggingFaceSubject, token_set: TokenSet) -> int:
    """The first layer that reads a massive entry of the first token, or that is behind who writes the largest one."""
    place, path = massive_dims(subject, token_set), massive_path(subject, token_set.tokens)
    return place.onset if place.massive or not isinstance(path, Path) else path.at + 1


def _hidden(
    subject: HuggingFaceSubject, token_set: TokenSet, hidden: str, control: str, layers: Sequence[int] | None
) -> dict[str, Cell]:
    """Returns what hiding the first token from some layers costs, and hiding the 11th; and who is the sink then."""

    def second(report: Report) -> Tensor:
        chosen = [i for i, layer in enumerate(report.attention_layers) if layers is None or layer in layers]
        return sink_rate(report.alpha(1)[:, chosen], EPSILON)

    effects = Effects(layers=None if layers is None else tuple(layers), more={SECOND: second})
    edits = {name: [[RemoveColumn(positions=[at], layers=layers)]] for name, at in ((hidden, 0), (control, 10))}
    cells: dict[str, Cell] = {}
    for row in effects.rows(subject, token_set, edits)[1:]:
        cells |= {end(str(row[EDIT])): row[end(LOSS_CHANGE)] for end in (str, low_of, high_of)}
        if row[EDIT] == hidden:
            found = {SECOND: row[SECOND], THERE: row[OTHER_AT], EXCESS: row[OTHER_EXCESS]}
            cells |= {f"{hidden}: {name}": value for name, value in found.items()}
    return cells


def _rounding(subject: HuggingFaceSubject, tokens: Tokens) -> dict[str, Cell]:
    """The error of int8 residuals with a scale for each text, token or channel; with the first token as it is."""
    x = {block: here.cpu().float() for block, here in activations(ChangeResidual(), subject, tokens[:FEW]).items()}
    ways = {f"{ERROR} {grain}": (over, nothing) for grain, over in GRAINS.items()}
    ways[FIRST_AS_IT_IS] = GRAINS["tensor"], _first
    return {
        key: cell
        for name, (over, left) in ways.items()
        for key, cell in mean_cells(name, relative_error(x, Quantise(8, over, left), left)).items()
    }


def _first(block: int, x: Residual) -> Bool[Tensor, "1 pos 1"]:
    return (torch.arange(x.shape[1], device=x.device) == 0)[None, :, None]


def draw(table: Table) -> go.Figure:
    """Draws Sink_1, the cost of hiding the first token and the cost of evicting it, by model."""
    return sweep_figure(Table("Genuine models", table.note, table.frame), MODEL, (*RATES, HIDDEN, EVICTED[0]))


ANY: Mapping[str, Cell] = {}
RULES: Sequence[Rule] = (
    *(
        above(f"{rate} lies .05 above uniform attention", rate, ANY, ANY, bound=plus(0.05), other_column=NULL)
        for rate in RATES
    ),
    checked(
        above("to hide the first token costs more than to hide the 11th", HIDDEN, ANY, ANY, other_column=CONTROL),
        f"{HIDDEN}: {EXCESS}",
        ANY,
        high=MARGIN,
    ),
    above(
        "a cache without the first token loses more than one that keeps it",
        EVICTED[0],
        ANY,
        ANY,
        other_column=EVICTED[1],
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
