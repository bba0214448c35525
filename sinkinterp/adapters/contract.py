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
    trace = subject.run(torch.cat((tokens, later(tokens))), calls={"excess": excess})
    logits, logits_later = trace.logits.split(len(tokens))
    judge(subject.name, subject.dtype, bare, logits, logits_later, trace.calls["excess"].max().item())


def later(tokens: Tokens) -> Tokens:
    """The same tokens, in a vocabulary of at least two, but for the last of every sequence."""
    changed = tokens.clone()
    changed[:, -1] = torch.where(tokens[:, -1] > 0, tokens[:, -1] - 1, tokens[:, -1] + 1)
    return changed


def judge(name: str, dtype: torch.dtype, bare: Tensor, logits: Tensor, logits_later: Tensor, excess: float) -> None:
    """Raises InputError for answers that break the contract; `excess` is the largest distance of a row sum to one."""
    tolerance = TOLERANCE.get(dtype, 0.1)
    checks = {
        "its logits are not the bare model's": _distance(logits, bare) <= tolerance,
        "a later token changes earlier logits, so it is not causal": (
            _distance(logits[:, :-1], logits_later[:, :-1]) <= tolerance
        ),
        "its attention rows do not sum to one": excess <= tolerance,
    }
    for failure, passed in checks.items():
        if not passed:
            raise InputError(f"{name} cannot be measured: {failure}")


def excess(call: AttentionCall) -> Tensor:
    """How far the rows of a call are from summing to one, at most, per sequence; 0 where its kernel need not."""
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
