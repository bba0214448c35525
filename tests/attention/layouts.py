"""Fields of an attention call: what may stand beside its queries, keys and values."""

import torch

from sinkinterp.attention.masks import Causal, Window
from sinkinterp.attention.slots import SinkLogit, SlotRow


def band(n, width):
    """What a causal window of `width` keys allows n queries."""
    index = torch.arange(n)
    return (Causal() & Window(width)).allows(index[:, None], index)[None, None]


def random_mask(n):
    return torch.rand(1, 6, n, n, generator=torch.Generator().manual_seed(1)) < 0.4


def layouts(n, width):
    """By name, the fields of calls of six heads of five dimensions with n queries and keys."""
    rng = torch.Generator().manual_seed(2)
    return {
        "causal": {},
        "window": {"mask": band(n, width)},
        "bias": {"bias": torch.randn(1, 6, n, n, generator=rng)},
        "softcap": {"softcap": 2.0},
        "key slot": {"slot": SlotRow(*torch.randn(2, 6, 1, 5, generator=rng))},
        "sink logit": {"slot": SinkLogit(torch.randn(6, generator=rng))},
    }
