"""Do the backends agree? The same metrics on every backend, beside transformers' own dense eager attention."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ..attention import CALL, AttentionCall, Gap
from ..backends.load import BACKENDS, load
from ..checks import InputError
from ..data.progress import Progress, reported, silent
from ..data.tokens import Tokens
from ..metrics.instruments import ALL
from ..report.report import Report
from ..table import Cell, Table
from .measure import measure

REFERENCE = "huggingface"
TOLERANCE = 1e-5  # of the largest number of a read in its layer, in fp32, where scores are at most `SCORE`
SCORE = 16.0  # the last digit of a larger score changes weights by more
DIFFERENCE, LARGEST, VERDICT = "largest difference", "largest number", "verdict"
_DIFFERS = "DIFFERS"


def parity(
    model: PreTrainedModel, name: str, sequences: int = 5, length: int = 17, progress: Progress = silent
) -> Table:
    """The largest difference from Hugging Face's numbers, per backend and metric, on random tokens.

    A backend that refuses the model has one row, with what it says.
    """
    subject = load(model, name=name)
    length = min(length, subject.shape.n_ctx or length)
    tokens = torch.randint(subject.shape.vocab, (sequences, length), generator=torch.Generator().manual_seed(0))
    reference = measure(subject, tokens, instruments=ALL)
    calls = subject.run(tokens, reads={"seen": CALL.read(_seen), "score": CALL.read(_largest_score)})
    tolerance = TOLERANCE * max(1.0, calls["score"].max().item() / SCORE)
    patterns = dense_patterns(model, tokens)
    dense = Gap.of(reference.raw_importance, patterns.sum(-2) / calls["seen"].cpu())
    rows = [_row("dense eager attention", "importance", dense, tolerance)]
    others = [backend for backend in BACKENDS if backend != REFERENCE]
    for backend in reported(others, progress, "backends compared:"):
        rows += _compared(model, name, backend, reference, tolerance)
    note = (
        f"n={sequences} random sequences, T={length}, {reference.protocol.dtype}; "
        f"both numbers are those of the layer that is furthest off; agreement is a difference of {tolerance:.2g} or "
        f"less of its largest number, {TOLERANCE:g} where no score is above {SCORE:g}"
    )
    return Table.of(f"Do the backends agree on {name}?", note, tuple(rows))


def agrees(table: Table) -> bool:
    """Whether every difference in a table of `parity` is within tolerance; a refusal is not a difference."""
    return _DIFFERS not in table.frame[VERDICT].tolist()


def _compared(
    model: PreTrainedModel, name: str, backend: str, reference: Report, tolerance: float
) -> list[dict[str, Cell]]:
    try:
        report = measure(load(model, backend=backend, name=name), reference.tokens, instruments=ALL)
    except InputError as refusal:
        return [_row(backend, str(refusal), None, tolerance)]
    gaps = {read: _worst_gap(report.tensors()[read], expected) for read, expected in reference.tensors().items()}
    return [_row(backend, read, gap, tolerance) for read, gap in gaps.items()]


def _worst_gap(given: Tensor, right: Tensor) -> Gap:
    """The gap of the layer or block that is furthest off, of equal ones the largest; of the whole without layers."""
    if given.shape != right.shape or right.ndim < 3:
        return Gap.of(given, right)
    gaps = [Gap.of(*layer) for layer in zip(given.unbind(1), right.unbind(1), strict=True)]
    return max(gaps, key=lambda gap: (gap.difference / gap.size if gap.size else gap.difference, gap.size))


def _row(backend: str, read: str, gap: Gap | None, tolerance: float) -> dict[str, Cell]:
    if gap is None:
        return {"backend": backend, "read": read, DIFFERENCE: None, LARGEST: None, VERDICT: "refused"}
    verdict = "agrees" if gap.is_within(tolerance) else _DIFFERS
    return {"backend": backend, "read": read, DIFFERENCE: gap.difference, LARGEST: gap.size, VERDICT: verdict}


def _seen(call: AttentionCall) -> Float[Tensor, " batch #head key"]:
    """How many queries can see each key. The patterns do not tell: a weight may underflow to 0."""
    return call.watchers(call.keys).expand(len(call.q), -1, -1).float()


def _largest_score(call: AttentionCall) -> Float[Tensor, " batch"]:
    return call.scores().float().masked_fill(~call.allowed(), 0).abs().amax((1, 2, 3))


@torch.no_grad()
def dense_patterns(model: PreTrainedModel, tokens: Tokens) -> Float[Tensor, "sequence layer head query key"]:
    """The patterns that transformers itself returns with eager attention."""
    eager = eager_copy(model)
    output = eager(tokens.to(model.device), output_attentions=True, use_cache=False)
    columns = slice(-tokens.shape[1], None)  # our slots come first
    return torch.stack([p[..., columns] for p in output.attentions if p is not None], 1).cpu().float()


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model that runs eager attention."""
    eager = copy.deepcopy(model).eval()
    eager.set_attn_implementation("eager")
    eager.config._attn_implementation = "eager"  # what Falcon asks for, which the line above does not set
    return eager
