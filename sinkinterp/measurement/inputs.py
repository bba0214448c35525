"""Makes subjects and tokens of the arguments of every measurement: of any model, and of any tokens."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention import BLOCK, Edit, Reads
from ..backends.load import check_no_bridge, subject_of, tokenizer_source
from ..backends.subject import Subject, text_to_tokens, token_set_for
from ..checks import check_memory, keywords
from ..data.choices import Bos
from ..data.progress import OnProgress, no_progress
from ..data.sources import embedded_texts
from ..data.tokens import TextToTokens, Tokens, TokenSet, TokensLike
from ..files import cache_folder
from ..interventions.edit import description
from ..metrics.importance import Convention
from ..report.readings import Protocol

ModelLike = Subject | Any
P, R = ParamSpec("P"), TypeVar("R")
BUSY = {"cpu": 2048}  # more tokens are no faster on a CPU; other devices take as many as fit, up to MOST
MOST = 65_536
SHARE = 0.5  # of the free memory, since the estimate below is rough
version = cache(importlib.metadata.version)  # it takes milliseconds, as long as a pass of a small model
PACKAGES = ("sinkinterp", "torch", "transformers")  # whose versions are noted, beside those of the backend


def inputs_of(model: ModelLike, tokens: TokensLike | Any, column: str = "text") -> tuple[Subject, TokenSet]:
    """The subject and the token set, of the default text for None; `column` holds the texts of a file.

    Raises InputError for what is not a model, or not tokens.
    """
    check_no_bridge(model)
    if isinstance(model, torch.nn.Module) and isinstance(tokens, str):
        TextToTokens(tokenizer_source(model)(), model=f"a {type(model).__name__}")  # raises before the model runs
    subject = subject_of(model)
    if tokens is None:
        return subject, docstrings_for(subject, min(64, subject.shape.n_ctx or 64), 100)
    return subject, token_set_for(subject, tokens, column)


def docstrings_for(
    subject: Subject, length: int, sequences: int, bos: Bos = Bos.TOKENIZER, on_file: OnProgress = no_progress
) -> TokenSet:
    """What a model of text is measured on where no text is given; `on_file` is told of the files that are read."""
    texts = embedded_texts(cache_folder(), on_file)
    return text_to_tokens(subject, bos).of_length(texts, length, sequences, "embedded docstrings")


def equal_inputs_of(model: ModelLike, tokens: TokensLike | Any) -> tuple[Subject, Tokens]:
    """As `inputs_of`, as one tensor. Raises InputError also for sequences of different lengths."""
    subject, token_set = inputs_of(model, tokens)
    return subject, token_set.of_one_length()


def reads_inputs(
    function: Callable[Concatenate[Any, Tokens, P], R],
) -> Callable[Concatenate[ModelLike, TokensLike | Any, P], R]:
    """The function, which takes anything that `equal_inputs_of` takes for its subject and its tokens.

    It raises InputError for what is not a model, not tokens, or not an argument of it.
    """

    @wraps(function)
    def reading(model: ModelLike, tokens: TokensLike | Any, *args: P.args, **kwargs: P.kwargs) -> R:
        subject, given = equal_inputs_of(model, tokens)
        return function(subject, given, *args, **kwargs)

    return keywords(reading)


def passes(subject: Subject, tokens: Tokens) -> Iterator[tuple[Int[Tensor, " row"], Int[Tensor, "row pos"]]]:
    """The tokens in parts that fit into one forward pass each: the rows of a part, and their tokens."""
    size = sequences_per_pass(subject, tokens.shape[1])
    rows = torch.arange(len(tokens), device=tokens.device)
    yield from zip(rows.split(size), tokens.split(size), strict=True)


def answers_of(
    subject: Subject, tokens: Tokens, reads: Reads, edits: Sequence[Edit] = (), blocks: range | None = None
) -> tuple[Tensor, ...]:
    """The answers of all sequences to each read, `sequence layer ...`, under edits of them; see `Subject.run`."""
    traces = []
    for edit in edits:
        edit.check_sequences(len(tokens))
    for rows, batch in passes(subject, tokens):
        mine = [edit.for_sequences(rows) for edit in edits]
        traces.append(subject.run(batch, reads=reads, edits=mine, logits=False, blocks=blocks))
    return tuple(torch.cat([trace[name] for trace in traces]) for name in reads)


def sequences_per_pass(subject: Subject, length: int) -> int:
    """How many sequences of `length` tokens one pass takes, at least 1."""
    fitting = SHARE * free_bytes(subject.device) / bytes_per_token(subject)
    tokens = min(BUSY.get(subject.device.type, MOST), fitting)
    return max(1, int(tokens) // length)


def bytes_per_token(subject: Subject) -> int:
    """A rough count of what a pass holds for each token: logits and their fp32 copy, a block's activations, scores."""
    shape = subject.shape
    return subject.dtype.itemsize * (shape.vocab + 24 * shape.d_model) + 4 * (shape.vocab + 3 * BLOCK * shape.n_heads)


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
        edits=tuple(map(description, edits)),
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
