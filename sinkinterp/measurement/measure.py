"""measure: from tokens to a report, where subjects, metrics and edits meet; and how measurements read their arguments.

Any model becomes a subject, and any tokens a token set, which passes read in parts that fit into memory.
"""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import BLOCK, Edit, Reads, Unchanged, called, metric as named, per_sequence, with_users_frames
from ..backends.load import subject_of, tokenizer_source
from ..backends.subject import Subject, bos_rule, text_to_tokens, token_set_for
from ..checks import InputError, check_memory, choice, different_numbers, instance_of, whole_number
from ..data.choices import Bos, Dtype
from ..data.progress import OnProgress, no_progress, progress_of
from ..data.sources import embedded_texts
from ..data.tokens import TextToTokens, Tokens, TokenSet, TokensLike
from ..files import cache_folder
from ..interventions.changes import Edits, edits_of
from ..metrics import importance
from ..metrics.importance import Convention, check_epsilon
from ..metrics.instruments import INSTRUMENTS, Instruments, core_fields, core_metrics, hides_first_key
from ..metrics.metric import AnyMetric, LogitsMetric, Metric
from ..report.readings import EXTRA, Protocol
from ..report.report import Report
from ..train.loop import held_out_tokens
from ..train.recipe import recipe_in

ModelLike = Subject | Any
BUSY = {"cpu": 2048}  # more tokens are no faster on a CPU; other devices take as many as fit, up to MOST
MOST = 65_536
SHARE = 0.5  # of the free memory, since the estimate below is rough
version = cache(importlib.metadata.version)  # it takes milliseconds, as long as a pass of a small model
PACKAGES = ("sinkinterp", "torch", "transformers")  # whose versions are noted, beside those of the backend


def inputs_of(model: ModelLike, tokens: TokensLike | Any, column: str = "text") -> tuple[Subject, TokenSet]:
    """The subject and the token set, of the default text for None; `column` holds the texts of a file.

    Raises InputError for what is not a model, or not tokens.
    """
    if isinstance(model, torch.nn.Module) and isinstance(tokens, str):
        TextToTokens(tokenizer_source(model)(), model=f"a {type(model).__name__}")  # raises before the model runs
    subject = subject_of(model)
    if tokens is None:
        return subject, docstrings_for(subject)
    return subject, token_set_for(subject, tokens, column)


def docstrings_for(
    subject: Subject,
    length: int | None = None,
    sequences: int = 100,
    bos: Bos | str | bool = Bos.TOKENIZER,
    on_file: OnProgress = no_progress,
) -> TokenSet:
    """What a model is measured on where no text is given; `on_file` is told of the files that are read.

    A model of ours without a tokenizer reads sequences of its task that its training did not see.
    """
    if subject.tokenizer is None and subject.folder is not None and (subject.folder / "recipe.json").is_file():
        return held_out_tokens(recipe_in(subject.folder).data, sequences)
    context = subject.shape.n_ctx
    length = min(64, context or 64) if length is None else whole_number(length, "length", 2, context)
    sequences, made = whole_number(sequences, "sequences", 1), text_to_tokens(subject, bos_rule(bos))
    return made.of_length(embedded_texts(cache_folder(), on_file), length, sequences, "embedded docstrings")


def equal_inputs_of(model: ModelLike, tokens: TokensLike | Any) -> tuple[Subject, Tokens]:
    """As `inputs_of`, as one tensor. Raises InputError also for sequences of different lengths."""
    subject, token_set = inputs_of(model, tokens)
    return subject, token_set.of_one_length()


def passes(subject: Subject, tokens: Tokens) -> Iterator[tuple[Int[Tensor, " row"], Int[Tensor, "row pos"]]]:
    """The tokens in parts that fit into one forward pass each: the rows of a part, and their tokens."""
    size = sequences_per_pass(subject, tokens.shape[1])
    rows = torch.arange(len(tokens), device=tokens.device)
    yield from zip(rows.split(size), tokens.split(size), strict=True)


def answers_of(
    subject: Subject, tokens: Tokens, reads: Reads, edits: Sequence[Edit] = (), blocks: range | None = None
) -> tuple[Tensor, ...]:
    """The answers of all sequences to each read, `sequence layer ...`, under edits of them; see `Subject.run`."""
    groups = [(torch.arange(len(tokens), device=tokens.device), tokens)]
    traces = [
        subject.run(batch, reads=reads, edits=mine, logits=False, blocks=blocks)
        for _, batch, mine in _edited_passes(subject, groups, edits, len(tokens))
    ]
    return tuple(torch.cat([trace[name] for trace in traces]) for name in reads)


def _edited_passes(
    subject: Subject, groups: Iterable[tuple[Tensor, Tokens]], edits: Sequence[Edit], n: int
) -> Iterator[tuple[Tensor, Tokens, list[Edit]]]:
    """Each pass: its rows of the `n` sequences, their tokens, and the edits for these.

    groups: the sequences of one length, their rows first.
    """
    for edit in edits:
        edit.check_sequences(n)
    for rows, tokens in groups:
        for part, batch in passes(subject, tokens):
            yield rows[part], batch, [edit.for_sequences(rows[part]) for edit in edits]


def sequences_per_pass(subject: Subject, length: int) -> int:
    """How many sequences of `length` tokens one pass takes, at least 1."""
    fitting = SHARE * free_bytes(subject.device) / bytes_per_token(subject)
    tokens = min(BUSY.get(subject.device.type, MOST), fitting)
    return max(1, int(tokens) // length)


def bytes_per_token(subject: Subject) -> int:
    """A rough count of what a pass holds for each token: logits and their fp32 copy, a block's activations, scores."""
    shape = subject.shape
    return subject.dtype.itemsize * (shape.vocab + 24 * shape.d_model) + 4 * (shape.vocab + 3 * BLOCK * shape.n_heads)


def check_text(text: Any, function: str) -> None:
    """Raises InputError, which names a function, where a model is given to it without a text."""
    if text is None:
        raise InputError(f"{function}: a model has no text of its own; give one")


def check_unedited(edits: Edits) -> None:
    """Raises InputError for edits of what was measured before."""
    if edits_of(edits):
        raise InputError("what is measured already is not edited any more; give the model and its text")


def check_fits(subject: Subject, tokens: Tokens, positions: int) -> None:
    """Raises InputError where one sequence's pass, or the numbers of a report, exceed the machine's memory.

    positions: how many numbers a head keeps of each sequence.
    """
    n, length = tokens.shape
    shape = subject.shape
    heads = len(shape.attention_layers) * (4 * shape.n_heads * positions + 2 * shape.n_kv_heads * length)
    fix = "use fewer or shorter sequences, or measure positions=(0,) only"
    check_memory(4 * n * (heads + (shape.n_layers + 1) * length), f"the numbers of {n:,} x {length:,} tokens", fix)
    if subject.device.type == "cpu" and length <= (shape.n_ctx or length):
        check_memory(bytes_per_token(subject) * length, f"a pass of {length:,} tokens", fix)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device now; two gigabytes where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2 * 1024**3


def dtype_of(subject: Subject) -> str:
    """The dtype that a subject computes in, as text."""
    return str(subject.dtype).removeprefix("torch.")


def run_note(subject: Subject, tokens: Tokens) -> str:
    """The beginning of the note of a table without a report: model, n, T, first tokens and dtype."""
    n, length = tokens.shape
    firsts = tokens[:, 0].unique().tolist()
    start = f"all begin with token {firsts[0]}" if len(firsts) == 1 else "first tokens differ"
    return f"{subject.name}: n={n}, T={length}, {start}, {dtype_of(subject)}"


def protocol_of(
    subject: Subject, token_set: TokenSet, edits: Sequence[Edit], convention: Convention, hides_first_key: bool = False
) -> Protocol:
    """The protocol of a measurement that is made now."""
    sequences, length = token_set.tokens.shape
    return Protocol(
        model=subject.name,
        sequences=sequences,
        length=length,
        dtype=dtype_of(subject),
        bos=token_set.bos,
        source=token_set.source,
        source_sha256=token_set.sha256,
        texts_too_short=token_set.too_short,
        edits=tuple(edit.in_words for edit in edits),
        divisor=convention.description,
        revision=subject.revision,
        versions={"python": platform.python_version()}
        | {name: version(name) for name in (*PACKAGES, *subject.libraries)},
        shortest=None if token_set.lengths is None else int(token_set.lengths.min()),
        encoder=subject.encoder,
        hides_first_key=hides_first_key,
        attention=subject.implementation,
        attention_note=subject.attention_note,
    )


@dataclass(frozen=True)
class Preset:
    """How to measure: T, n, BOS, epsilon, the type of weights and activations, and how importance is averaged."""

    length: int = 64
    sequences: int = 100
    bos: Bos = Bos.TOKENIZER
    epsilon: float = 0.3
    dtype: str = "float32"
    convention: Convention = importance.VISIBLE

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        choice(self.dtype, dict.fromkeys(map(str, Dtype)), "dtype")


PRESETS = {
    # Gu et al. 2025, sections 3.2 and 3.3: the definition, without BOS
    "paper": Preset(bos=Bos.NEVER, convention=importance.PAPER),
    # the release's script for models of the Hub: BOS as the tokenizer adds it, in fp32
    "released-open-models": Preset(convention=Convention("T - k + 1, all queries", importance.queries_from)),
    # the release's script for its own models: no BOS, weights and the comparison with epsilon in bfloat16
    "released-own-models": Preset(bos=Bos.NEVER, epsilon=0.30078125, dtype="bfloat16", convention=importance.RELEASED),
}


Answers = dict[str, Tensor]  # by the name of the metric


@with_users_frames
def measure(  # noqa: PLR0913  everything that a measurement takes
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    column: str = "text",
    edits: Edits = (),
    positions: int | Sequence[int] | None = None,
    instruments: Instruments = (),
    convention: Convention = importance.VISIBLE,
    progress: bool | OnProgress = True,
) -> Report:
    """The report of a model on some tokens, with `edits`, one or several, applied while it runs.

    `model` is a subject, or what `load` makes one of: a name, a path, a model in memory. `tokens` are a text, a list of
    texts (each a sequence of its own length; `subject.tokens` cuts them to one length), the `Path` of a file
    or folder of texts, `si.texts(...)`, ids in lists, arrays or tensors (`sequence pos`, or `pos`), what a tokenizer
    returned, or a TokenSet; by default the first 100 docstrings that `sinkinterp measure` reads. `column` holds the
    texts of a file. `positions` (from 0; default all) are those whose importance is measured: one costs a column per
    head, all cost a second pass over the keys in blocks. Neither keeps a T x T map. `instruments` are measured beside
    importance and norms. `convention` says what importance is divided by. `progress` shows a bar where it takes over
    two seconds, or is a function that takes how many sequences are done, of how many. Padding is left out where an
    attention mask marks it. Raises InputError for whatever does not fit, and for activations that are not finite.
    """
    subject, token_set = inputs_of(model, tokens, column)
    given_edits = edits_of(edits)
    instance_of(convention, Convention, "convention is one of sinkinterp.metrics.importance: PAPER, VISIBLE")
    metrics = _distinct_metrics(instruments)
    length = subject.n_keys or token_set.tokens.shape[1]
    chosen = torch.arange(length)
    if positions is not None:
        chosen = torch.tensor(sorted(different_numbers(positions, "positions", 0, length - 1)))
    check_fits(subject, token_set.tokens, len(chosen))

    def metrics_at(length: int) -> Sequence[AnyMetric]:
        return (*core_metrics(chosen[chosen < (subject.n_keys or length)], convention), *metrics)

    with progress_of(progress, f"measuring {subject.name}") as on_batch:
        answers = _answers_of_all(subject, token_set, metrics_at, given_edits, on_batch)
    return Report(
        tokens=token_set.tokens.cpu(),
        positions=tuple(chosen.tolist()),
        attention_layers=subject.shape.attention_layers,
        protocol=protocol_of(subject, token_set, given_edits, convention, hides_first_key(answers)),
        extras={metric.name: answers[metric.name] for metric in metrics},
        **core_fields(answers),
    )


def _answers_of_all(
    subject: Subject,
    token_set: TokenSet,
    metrics_at: Callable[[int], Sequence[AnyMetric]],
    edits: Sequence[Edit],
    on_batch: OnProgress,
) -> Answers:
    """The answers of all sequences in their order; `metrics_at` gives the metrics for sequences of a length."""
    parts: list[Answers] = []
    measured: list[Tensor] = []
    n = len(token_set.tokens)
    on_batch(0, n)
    for rows, batch, mine in _edited_passes(subject, token_set.groups(), edits, n):
        parts.append(_read_batch(subject, batch, metrics_at(batch.shape[1]), mine))
        measured.append(rows.cpu())
        on_batch(sum(map(len, measured)), n)
    if len(parts) == 1:
        return parts[0]
    in_order = torch.cat(measured).argsort()
    return {name: _joined([part[name] for part in parts])[in_order] for name in parts[0]}


def _read_batch(subject: Subject, batch: Tokens, metrics: Sequence[AnyMetric], edits: Sequence[Edit]) -> Answers:
    """Returns the answers of one forward pass, sequence first."""
    reads = {metric.name: metric.site.read(metric.read) for metric in metrics if isinstance(metric, Metric)}
    of_logits = [metric for metric in metrics if isinstance(metric, LogitsMetric)]
    trace = subject.run(batch, reads=reads, edits=edits, logits=bool(of_logits))
    logits = {m.name: _read_logits(m, trace.logits, batch.to(trace.logits.device, copy=True)) for m in of_logits}
    return {name: value.cpu() for name, value in (trace.answers | logits).items()}


def _read_logits(metric: LogitsMetric, logits: Tensor, tokens: Tokens) -> Tensor:
    who = named(metric.name)
    answer = Unchanged((logits, tokens)).shown_to(lambda shown: called(metric.read, who, *shown), who)
    return per_sequence(answer, len(tokens), who)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Answers of all sequences. If sequences differ in length, so do axes: those of shorter ones end in NaN."""
    longest = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    padded = []
    for part in parts:
        missing = [size - has for size, has in zip(longest, part.shape[1:], strict=True)]
        ends = [n for size in reversed(missing) for n in (0, size)]
        padded.append(torch.nn.functional.pad(part, ends, value=torch.nan) if any(missing) else part)
    return torch.cat(padded)


def _distinct_metrics(instruments: Any) -> tuple[AnyMetric, ...]:
    """All metrics of the instruments, each once. Raises InputError where two have one name, or a report's own."""
    by_name: dict[str, AnyMetric] = {}
    taken = {metric.name for metric in core_metrics(torch.arange(0), importance.VISIBLE)}
    taken |= {field.name for field in fields(Report)}
    for metric in _metrics_in(instruments):
        instance_of(metric.name or None, str, "a metric's name is a text")
        if metric.name in taken or by_name.setdefault(metric.name, metric) != metric:
            raise InputError(f"two metrics are named {metric.name!r}; give the instrument's metric another name")
    return tuple(by_name.values())


def _metrics_in(instruments: Any) -> Iterator[AnyMetric]:
    """The metrics of one instrument or of several. Raises InputError for what is not an instrument."""
    if isinstance(instruments, AnyMetric):
        yield instruments
    elif isinstance(instruments, list | tuple):
        for part in instruments:
            yield from _metrics_in(part)
    else:
        fix = f"give si.measurement.instruments.NAME, and for NAME one of ALL, {', '.join(INSTRUMENTS)}"
        raise InputError(f"{instruments!r:.40} is not an instrument; {fix}")


WIDTH = 0.05  # of the 95% interval of Sink_1: 2.5 points of a hundred to both sides of the middle
STAGES = (32, 64)  # sequences after which the width is looked at; few looks, since each may end by luck


def measure_enough(
    first: Callable[[int], TokenSet], measured: Callable[[TokenSet, str], Report], most: int, epsilon: float = 0.3
) -> Report:
    """The report of 32, of 64 or of `most` sequences: of the fewest whose Sink_1 has an interval of at most `WIDTH`.

    `first(n)` gives the first n sequences, all of one length. `measured` makes the report of a token set; it is also
    told why these are measured. No sequence is measured twice. The protocol says where a measurement ended and by which
    rule. Intervals of a fixed width by sequential looks: Chow and Robbins 1965 (doi:10.1214/aoms/1177700156). Looking
    costs a little: in simulations of sequences whose shares of heads are normal, these intervals cover the truth in 91
    to 94% of 1,500 draws, those of a fixed n=100 in 93 to 95%.
    """
    report: Report | None = None
    for done, n in pairwise((0, *(n for n in STAGES if n < most), most)):
        token_set, why = first(n), ""
        if report is not None:
            why = f", since Sink_1 is known to {_interval_width(report, epsilon):.2f} only"
        part = measured(replace(token_set, tokens=token_set.tokens[done:]), why)
        hides = part.protocol.hides_first_key or (report is not None and report.protocol.hides_first_key)
        protocol = replace(part.protocol, sequences=len(token_set.tokens), hides_first_key=hides)
        report = replace(part, protocol=protocol) if report is None else _reports_joined(report, part, protocol)
        if n < most and _interval_width(report, epsilon) <= WIDTH:
            rule = f"of {most}: Sink_1's interval is at most {WIDTH} wide"
            return replace(report, protocol=replace(protocol, ended=rule))
    assert report is not None
    return report


def _interval_width(report: Report, epsilon: float) -> float:
    sink = report.sink_rate(0, epsilon)
    return sink.high - sink.low


def _reports_joined(before: Report, part: Report, protocol: Protocol) -> Report:
    """The sequences of two reports, in one."""
    tensors = {name: torch.cat((value, part.tensors()[name])) for name, value in before.tensors().items()}
    own: dict[str, Any] = {name: value for name, value in tensors.items() if not name.startswith(EXTRA)}
    extras = {name: tensors[EXTRA + name] for name in before.extras}
    return replace(before, **own, extras=extras, protocol=protocol)
