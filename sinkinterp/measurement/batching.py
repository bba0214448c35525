"""How many sequences one forward pass takes: enough to keep the device busy, few enough for its memory."""

import os
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from ..attention.flash import BLOCK
from ..backends.subject import Subject
from ..checks import check_memory
from ..data.tokens import Tokens

BUSY = {"cpu": 2048}  # more tokens are no faster on a CPU; other devices take as many as fit, up to MOST
MOST = 65_536
SHARE = 0.5  # of the free memory, since the estimate below is rough


def passes(subject: Subject, tokens: Tokens) -> Iterator[tuple[Int[Tensor, " row"], Int[Tensor, "row pos"]]]:
    """The tokens in parts that fit into one forward pass each: the rows of a part, and their tokens."""
    size = sequences_per_pass(subject, tokens.shape[1])
    rows = torch.arange(len(tokens), device=tokens.device)
    yield from zip(rows.split(size), tokens.split(size), strict=True)


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
