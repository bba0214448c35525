"""Tokens that stand before every text, so that they take the sink over."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sinkinterp.applications.streaming import loss_of
from sinkinterp.attention.sites import RESIDUAL, Residual
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.data.tokens import Tokens
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.metric import Metric
from sinkinterp.runs.case import Case

PREFIXES = ("\n", ".", " the")  # and BOS
TIMES, LONGEST = 64.0, 4  # PrefixQuant's threshold; the most tokens of a prefix


def before(prefix: Sequence[int], texts: Tokens) -> Tokens:
    """The texts behind a prefix that all of them share."""
    return torch.cat((torch.tensor(prefix, dtype=texts.dtype).expand(len(texts), -1), texts), 1)


def best_prefix(case: Case, subject: HuggingFaceSubject, seen: Tokens) -> int:
    """The token before all texts with which they have the lowest loss, of a few."""
    tokenizer = subject.tokenizer
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PREFIXES] if tokenizer else []
    candidates = [of[0] for of in ids if len(of) == 1] + ([] if case.bos_token is None else [case.bos_token])
    losses = {one: loss_of(subject, before([one], seen))[:, 1:].mean().item() for one in candidates or [0]}
    return min(losses, key=losses.__getitem__)


def outlier_tokens(case: Case, subject: HuggingFaceSubject, seen: Tokens) -> list[int]:
    """PrefixQuant's choice (arXiv:2410.05265): the commonest outlier tokens behind the first one, and then BOS.

    An outlier's largest entry is 64 times the median of its text, before some block (PrefixQuant: before the last map
    of a feed-forward layer). The prefix has as many tokens as a text has outliers, rounded up.
    """

    def peaks(x: Residual) -> Float[Tensor, "batch pos"]:
        return x.abs().amax(-1).float()

    peak = Metric("peak", RESIDUAL, peaks)
    sizes = measure(subject, seen, positions=(0,), instruments=[(peak,)], progress=False).extra(peak)
    is_outlier = (sizes > TIMES * sizes.median(-1, keepdim=True).values).any(1)  # sequence pos
    ids, counts = seen[:, 1:][is_outlier[:, 1:]].unique(return_counts=True)
    most = min(math.ceil(is_outlier.sum(1).float().mean().item()), LONGEST)
    last = [] if case.bos_token is None else [case.bos_token]
    commonest = [token for token in ids[counts.argsort(descending=True)].tolist() if token not in last]
    return commonest[: max(most - len(last), 0)] + last
