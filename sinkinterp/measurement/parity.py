"""Do the backends agree? The same metrics on every backend, beside transformers' own dense eager attention."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ..backends.gap import Gap
from ..backends.load import BACKENDS, load
from ..data.tokens import Tokens
from ..errors import InputError
from ..metrics.instruments import ALL
from ..metrics.metric import Alpha
from ..report.report import Report
from ..table import Cell, Table
from .measure import measure

REFERENCE = "huggingface"
TOLERANCE = 1e-5  # of the largest number of a read in its layer, in fp32
DIFFERENCE, LARGEST, VERDICT = "largest difference", "largest number", "verdict"
_DIFFERS = "DIFFERS"


def parity(model: PreTrainedModel, name: str, sequences: int = 5, length: int = 17) -> Table:
    """The largest difference from Hugging Face's numbers, per backend and metric, on random tokens.

    A backend that refuses the model has one row, with what it says.
    """
    subject = load(model, name=name)
    length = min(length, subject.shape.n_ctx or length)
    tokens = torch.randint(subject.shape.vocab, (sequences, length), generator=torch.Generator().manual_seed(0))
    reference = measure(subject, tokens, instruments=ALL)
    dense = Gap.of(reference.raw_importance, _dense_importance(model, tokens))
    rows = [_row("dense eager attention", "importance", dense)]
    for backend in BACKENDS:
        if backend != REFERENCE:
            rows += _compared(model, name, backend, tokens, reference)
    note = (
        f"n={sequences} random sequences, T={length}, {reference.protocol.dtype}; "
        f"both numbers are those of the layer that is furthest off; agreement is a difference of {TOLERANCE} or less "
        "of its largest number"
    )
    return Table(f"Do the backends agree on {name}?", note, tuple(rows))


def agrees(table: Table) -> bool:
    """Whether every difference in a table of `parity` is within tolerance; a refusal is not a difference."""
    return _DIFFERS not in table.column(VERDICT)


def _compared(
    model: PreTrainedModel, name: str, backend: str, tokens: Tokens, reference: Report
) -> list[dict[str, Cell]]:
    try:
        report = measure(load(model, backend=backend, name=name), tokens, instruments=ALL)
    except InputError as refusal:
        return [_row(backend, str(refusal), None)]
    tensors = report.tensors()
    return [_row(backend, read, _worst_gap(tensors[read], expected)) for read, expected in reference.tensors().items()]


def _worst_gap(given: Tensor, right: Tensor) -> Gap:
    """The gap of the layer or block that is furthest off, of equal ones the largest; of the whole without layers."""
    if given.shape != right.shape or right.ndim < 3:
        return Gap.of(given, right)
    gaps = [Gap.of(*layer) for layer in zip(given.unbind(1), right.unbind(1), strict=True)]
    return max(gaps, key=lambda gap: (gap.difference / gap.size if gap.size else gap.difference, gap.size))


def _row(backend: str, read: str, gap: Gap | None) -> dict[str, Cell]:
    if gap is None:
        return {"backend": backend, "read": read, DIFFERENCE: None, LARGEST: None, VERDICT: "refused"}
    verdict = "agrees" if gap.is_within(TOLERANCE) else _DIFFERS
    return {"backend": backend, "read": read, DIFFERENCE: gap.difference, LARGEST: gap.size, VERDICT: verdict}


def _dense_importance(model: PreTrainedModel, tokens: Tokens) -> Alpha:
    """Importance from the patterns that transformers itself returns."""
    patterns = dense_patterns(model, tokens)
    seen = patterns.ne(0).flatten(3).any(2).any(0).unflatten(-1, patterns.shape[-2:])  # one weight may underflow to 0
    return patterns.sum(-2) / seen.sum(-2)[None, :, None]


@torch.no_grad()
def dense_patterns(model: PreTrainedModel, tokens: Tokens) -> Float[Tensor, "sequence layer head query key"]:
    """The patterns that transformers itself returns with eager attention."""
    eager = eager_copy(model)
    output = eager(tokens.to(model.device), output_attentions=True, use_cache=False)
    return torch.stack([p for p in output.attentions if p is not None], 1)[..., -tokens.shape[1] :].cpu().float()


def eager_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model that runs eager attention."""
    eager = copy.deepcopy(model).eval()
    eager.set_attn_implementation("eager")
    eager.config._attn_implementation = "eager"  # what Falcon asks for, which the line above does not set
    return eager
