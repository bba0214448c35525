"""What a subject must keep, whichever library runs it: checked when it is made, so that nothing is wrong silently."""

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..errors import InputError
from .subject import Subject, Tokens

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-8}  # of logits and row sums; 0.1 in half precision


def tokens_for(vocab: int) -> Tokens:
    """The few random tokens that the contract is checked on."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


def check(subject: Subject, bare: Tensor) -> None:
    """Raises InputError, naming the check, unless on `tokens_for` the subject

    - gives the logits of the bare model (`bare`, batch pos vocab);
    - lets no later token change an earlier logit;
    - attends in the layers that its shape names;
    - has rows that sum to one, slots counted, wherever its kernel says so.
    """
    tokens = tokens_for(subject.shape.vocab)
    later = tokens.clone()
    later[:, -1] = (later[:, -1] + 1) % subject.shape.vocab
    trace, trace_later = (subject.run(t, calls={"excess": _excess}) for t in (tokens, later))
    excess = max(t.calls["excess"].max().item() for t in (trace, trace_later))
    tolerance = TOLERANCE.get(subject.dtype, 0.1)
    checks = {
        "its logits are not the bare model's": _distance(trace.logits, bare) <= tolerance,
        "a later token changes earlier logits, so it is not causal": (
            _distance(trace.logits[:, :-1], trace_later.logits[:, :-1]) <= tolerance
        ),
        "its attention rows do not sum to one": excess <= tolerance,
    }
    for failure, passed in checks.items():
        if not passed:
            raise InputError(f"{subject.name} cannot be measured: {failure}")


def _excess(call: AttentionCall) -> Tensor:
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
