"""Do the backends agree? The same reads on every backend, beside transformers' own dense eager attention."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ..backends.load import BACKENDS, load
from ..data.tokens import Tokens
from ..errors import InputError
from ..table import Cell, Table
from .instruments import ALL
from .measure import measure

TOLERANCE = 1e-5  # of every read, in fp32; relative for numbers above 1
OTHERS = tuple(backend for backend in BACKENDS if backend != "huggingface")  # which is what they are compared with


def parity(model: PreTrainedModel, name: str, sequences: int = 5, length: int = 17) -> Table:
    """The largest difference of every read from Hugging Face's, per backend, on random tokens; refusals by name."""
    vocab = model.get_input_embeddings().num_embeddings
    tokens = torch.randint(vocab, (sequences, length), generator=torch.Generator().manual_seed(0))
    reference = measure(load(model, name=name), tokens, instruments=ALL)
    rows = [_row("dense eager attention", "importance", _distance(reference.raw_importance, _dense(model, tokens)))]
    for backend in OTHERS:
        try:
            report = measure(load(model, backend=backend, name=name), tokens, instruments=ALL)
        except InputError as refusal:
            rows.append(_row(backend, str(refusal), None))
        else:
            theirs = report.tensors()
            rows += [_row(backend, read, _distance(theirs[read], ours)) for read, ours in reference.tensors().items()]
    text = (
        f"n={sequences} random sequences, T={length}, {reference.protocol.dtype}; "
        f"agreement is {TOLERANCE} or less, relative for numbers above 1"
    )
    return Table(f"Do the backends agree on {name}?", text, tuple(rows))


def agrees(table: Table) -> bool:
    """Whether every difference in a table of `parity` is within tolerance; a refusal is no difference."""
    return all(float(cell) <= TOLERANCE for cell in table.column("largest difference") if cell is not None)


def _row(backend: str, read: str, difference: float | None) -> dict[str, Cell]:
    verdict = "refused" if difference is None else "agrees" if difference <= TOLERANCE else "DIFFERS"
    return {"backend": backend, "read": read, "largest difference": difference, "verdict": verdict}


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.isnan().equal(b.isnan()):
        return torch.inf
    return ((a - b).abs() / b.abs().clamp(min=1)).nan_to_num().max().item()


@torch.no_grad()
def _dense(model: PreTrainedModel, tokens: Tokens) -> Float[Tensor, "sequence layer head pos"]:
    """Importance from the patterns that transformers itself returns."""
    eager = copy.deepcopy(model).eval()
    eager.set_attn_implementation("eager")
    output = eager(tokens.to(model.device), output_attentions=True, use_cache=False)
    patterns = torch.stack([p for p in output.attentions if p is not None], 1)[..., -tokens.shape[1] :].cpu().float()
    seen = patterns.ne(0).flatten(3).any(2).any(0).unflatten(-1, patterns.shape[-2:])  # one weight may underflow to 0
    return patterns.sum(-2) / seen.sum(-2)[None, :, None]
