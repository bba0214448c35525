"""Tokens that stand before every text, so that they take the sink over, and their keys and values in a cache."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkinterp.backends.anatomy import linear_maps
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.tokens import Tokens
from sinkinterp.measurement.quantities import TokenLosses, token_losses
from sinkinterp.metrics.metric import next_token_loss

from .cases import Case

TRIED = ("\n", ".", " the")  # and BOS, and the tokens that PrefixQuant chooses
TIMES, LONGEST = 64.0, 4  # PrefixQuant's threshold; the most tokens of a prefix
PER_PASS = 512  # tokens that one forward pass reads


def before(prefix: Sequence[int], texts: Tokens) -> Tokens:
    """The texts behind a prefix that all of them share."""
    return torch.cat((torch.tensor(prefix, dtype=texts.dtype).expand(len(texts), -1), texts), 1)


@torch.no_grad()
def kept_in_cache(subject: HuggingFaceSubject, prefix: Sequence[int]) -> Any:
    """The cache of transformers that holds the keys and values of a prefix. None for an empty prefix."""
    ids = torch.tensor([list(prefix)], device=subject.device)
    return subject.model(ids, use_cache=True).past_key_values if prefix else None


@torch.no_grad()
def loss_behind(subject: HuggingFaceSubject, cache: Any, texts: Tokens) -> TokenLosses:
    """Next-token loss of all tokens of a text but its first, in nats, behind what a cache holds, if there is one."""
    losses = []
    for batch in texts.to(subject.device).split(max(1, PER_PASS // texts.shape[1])):
        own = deepcopy(cache)
        if own is not None:
            own.batch_repeat_interleave(len(batch))
        logits = subject.model(batch, past_key_values=own, use_cache=own is not None).logits
        losses.append(next_token_loss(logits, batch).cpu())
    return torch.cat(losses)


@contextmanager
def peaks_in(modules: Sequence[nn.Module]) -> Iterator[list[Float[Tensor, "batch pos"]]]:
    """Yields a list of the largest magnitude that each token has in the inputs of the modules, call by call."""
    peaks: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        peaks.append(inputs[0].abs().amax(-1).float().cpu())

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(keep).remove)
        yield peaks


def outlier_tokens(case: Case, subject: HuggingFaceSubject, seen: Tokens) -> list[int]:
    """PrefixQuant's choice (arXiv:2410.05265): the commonest outlier tokens behind the first one, and then BOS.

    The largest input of an outlier to the last map of a block is 64 times the median of its text. The prefix has as
    many tokens as a text has outliers in the block with most of them, rounded up.
    """
    with peaks_in([[*linear_maps(block)][-1].module for block in subject.modules.blocks]) as peaks:
        loss_behind(subject, None, seen)
    sizes = torch.cat([torch.stack(part) for part in _parts(peaks, len(subject.modules.blocks))], 1)
    is_outlier = sizes > TIMES * sizes.median(-1, keepdim=True).values  # block sequence pos
    ids, counts = seen[:, 1:][is_outlier.any(0)[:, 1:]].unique(return_counts=True)
    most = min(math.ceil(is_outlier.sum(2).float().mean(1).max().item()), LONGEST)
    last = [] if case.bos_token is None else [case.bos_token]
    commonest = [token for token in ids[counts.argsort(descending=True, stable=True)].tolist() if token not in last]
    return [*commonest[: max(most - len(last), 0)], *last[:most]]


def best_token(case: Case, subject: HuggingFaceSubject, seen: Tokens, more: Sequence[int] = ()) -> int:
    """The token before all texts with which they have the lowest loss, of a few, BOS and those of `more`."""
    tokenizer = subject.tokenizer
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TRIED] if tokenizer else []
    bos = [] if case.bos_token is None else [case.bos_token]
    candidates = dict.fromkeys([*(of[0] for of in ids if len(of) == 1), *bos, *more])
    losses = {one: token_losses(subject, before([one], seen))[:, 1:].mean().item() for one in candidates or [0]}
    return min(losses, key=losses.__getitem__)


def _parts(peaks: list[Tensor], count: int) -> Iterator[list[Tensor]]:
    """The peaks of every forward pass, `count` of them."""
    return (peaks[start : start + count] for start in range(0, len(peaks), count))


def largest_over_median(
    subject: HuggingFaceSubject, cache: Any, texts: Tokens
) -> tuple[TokenLosses, Float[Tensor, " batch"]]:
    """The loss of texts behind a cache, and how many times the median token the largest input of a linear map is."""
    modules = [one.module for block in subject.modules.blocks for one in linear_maps(block)]
    with peaks_in(modules) as peaks:
        loss = loss_behind(subject, cache, texts)
    times = [peak.amax(1) / peak.median(1).values for peak in peaks]
    return loss, torch.cat([torch.stack(part).amax(0) for part in _parts(times, len(modules))])
