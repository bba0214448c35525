"""The gallery's part on genuine pretrained weights: the models that `make models` has made."""

from collections.abc import Callable, Iterator, Mapping

from .. import tables
from ..backends.load import load
from ..backends.model_files import words_of
from ..backends.places import downloads
from ..data.bos import Bos
from ..data.random_inputs import Drawn
from ..data.tokens import TokenSet
from ..measurement.instruments import MASSIVE
from ..measurement.measure import measure
from ..measurement.report import Report
from ..plots import massive, norms
from ..plots.columns import BLOCK, MODEL
from ..plots.norms import FIRST_TOKEN, KIND, NORM, OTHER_TOKENS
from ..plots.sink_maps import maps_and_norms
from ..runs.inputs import Inputs
from ..table import Table
from .page import Section

SEQUENCES, LENGTH = 100, 64
LANGUAGE_MODELS = {"smollm2-135m-instruct": "SmolLM2-135M-Instruct"}  # folder -> name on the page
NATURAL, REPEATED = "natural text", "one token, repeated"


def language_models() -> Mapping[str, str]:
    """Those of `LANGUAGE_MODELS` that are here."""
    return {folder: name for folder, name in LANGUAGE_MODELS.items() if (downloads() / folder).is_dir()}


def sections(on_model: Callable[[str], None] = lambda name: None) -> Iterator[Section]:
    """What is drawn of every pretrained language model that is here."""
    for folder, name in language_models().items():
        on_model(name)
        yield from _model_sections(f"local/{folder}", name)


def first_title(name: str) -> str:
    """The title of a model's first section."""
    return f"{name}: a sink in genuine weights"


def _model_sections(source: str, name: str) -> Iterator[Section]:
    reports = _reports(source, name)
    natural = reports[NATURAL]
    heads = {given: tables.sinks_by_head(report) for given, report in reports.items()}
    figure = maps_and_norms(heads, _norms(reports), f"{name}: attention to the first token")
    yield Section(first_title(name), tables.sink_verdict(natural), [figure], [tables.sink_summary(natural)])
    yield Section(f"{name}: massive activations", "", [massive.by_block(tables.massive_by_block(natural))])
    by_kind = tables.norms_by_kind(natural, token_text=words_of(source))
    yield Section(f"{name}: norms", "", [norms.by_kind(by_kind)])


def _reports(source: str, name: str) -> dict[str, Report]:
    """The model measured without BOS, by input."""
    subject = load(source, name=name)
    vocab = subject.shape.vocab
    token_sets: dict[str, TokenSet] = {
        NATURAL: Inputs(LENGTH, SEQUENCES, Bos.NEVER).token_set(source, vocab),
        REPEATED: Inputs(LENGTH, SEQUENCES, Bos.NEVER, drawn=Drawn.REPEAT).token_set(source, vocab),
    }
    return {given: measure(subject, token_set, instruments=[MASSIVE]) for given, token_set in token_sets.items()}


def _norms(reports: Mapping[str, Report]) -> Table:
    """Residual norms by block: of the first token of natural text, of the others, and of a repeated token's copies."""
    by_block = tables.residual_norms_by_block(reports)
    kinds = {
        FIRST_TOKEN: (NATURAL, FIRST_TOKEN),
        OTHER_TOKENS: (NATURAL, OTHER_TOKENS),
        "copies of a repeated token": (REPEATED, OTHER_TOKENS),
    }
    rows = tuple(
        {BLOCK: row[BLOCK], KIND: kind, NORM: row[column]}
        for kind, (given, column) in kinds.items()
        for row in by_block.where(**{MODEL: given}).rows
    )
    return Table(by_block.title, by_block.note, rows)
