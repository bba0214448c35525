"""StreamingLLM on trained models: the perplexity of long texts that are read through a rolling cache."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from sinkinterp.applications.eviction import streaming_table
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.checks import InputError
from sinkinterp.data.choices import Scale
from sinkinterp.data.progress import Progress
from sinkinterp.plots.theme import sweep_figure
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import Cell, Table, high_of, low_of

from .shared.cases import Case, Model, of_first_model, on_models
from .shared.corpora import long_texts
from .shared.genuine import Has, models_with
from .shared.rules import of_each

CLAIM = "A cache that forgets the first tokens breaks the model; keeping four of them is enough."
RULE = (
    "without kept tokens the added loss is at least 0.5 nats above that with four, outside each other's intervals; "
    "with eight it differs from that with four by less than .02 nats"
)
REPORTED: dict[str, dict[str, float]] = {
    # Xiao et al. 2024 (2309.17453), Table 2, perplexity on PG-19 by kept + last tokens; second-hand
    "LLaMA-2-7B": {"0 + 4096": 3359.95, "1 + 4095": 11.88, "2 + 4094": 10.51, "4 + 4092": 9.59, "8 + 4088": 9.54}
}
MODELS: dict[Scale, list[Model]] = {
    Scale.SMOKE: ["sinkinterp/text-softmax-48k"],
    Scale.REAL: models_with(Has.TEXT, lacking=[Has.WINDOWS]),  # whose caches keep no key of every token
    Scale.PAPER: ["HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M", "EleutherAI/pythia-160m"],
}
SINKS = (0, 1, 2, 4, 8)
DOCUMENTS, LENGTH, PARTS = 10, 2048, 4  # PARTS: windows in a text
FEWER = 3, 1024  # texts and their length, for a model that is measured on few sequences
JOINED = 256  # tokens of each of the texts that are joined where single texts are too short


def measure(case: Case, progress: Progress) -> Table:
    """A row per number of kept tokens, beside full attention."""
    if not isinstance(case.subject, HuggingFaceSubject):
        raise InputError(f"{case.subject.name} has no cache of transformers; give a name or a folder")
    documents, longest = (DOCUMENTS, LENGTH) if case.most is None else FEWER
    length = case.size(length=longest)[1]
    tokens, source = long_texts(case, (documents, length), JOINED, case.start, progress)
    on_text, window = progress(f"streaming {case.subject.name}"), length // PARTS
    table = streaming_table(case.subject, tokens, window=window, sinks=SINKS, on_progress=on_text)
    weights = case.subject.revision or "as saved"
    note = f"{table.note}; BOS {case.start}; {source}; null: full attention (all); weights: {weights}; rule: {RULE}"
    return Table.of(CLAIM, note, tuple({**case.names, **row} for row in table.records()))


def draw(table: Table) -> go.Figure:
    """Perplexity before and after eviction begins, by cache, of the first model."""
    first = of_first_model(table, "Perplexity through a rolling cache")
    return sweep_figure(first, "cache", ("perplexity before", "perplexity after"))


def _added(table: Table, sinks: int) -> Mapping[str, Cell]:
    return table.where(sinks=sinks).records()[0]


def _breaks(table: Table) -> tuple[bool | None, str]:
    none, four = (_added(table, sinks) for sinks in (0, 4))
    apart = float(none[low_of(ADDED)] or 0) > float(four[high_of(ADDED)] or 0)
    gap = float(none[ADDED] or 0) - float(four[ADDED] or 0)
    return apart and gap >= 0.5, f"{gap:.3f} nats more than with four"


def _four_are_enough(table: Table) -> tuple[bool | None, str]:
    gap = float(_added(table, 8)[ADDED] or 0) - float(_added(table, 4)[ADDED] or 0)
    return abs(gap) < 0.02, f"{gap:+.3f} nats"


ADDED = "added loss"


RULES: Sequence[Rule] = (
    of_each(Rule("without kept tokens the loss rises by half a nat more than with four", _breaks)),
    of_each(Rule("eight kept tokens differ from four by less than .02 nats", _four_are_enough)),
)

EXPERIMENT = on_models(CLAIM, MODELS, measure, draw, RULES)
