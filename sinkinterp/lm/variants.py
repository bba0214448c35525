"""Every architecture of the study, by name: one line each, each a small change of BASE."""

from dataclasses import replace
from typing import Any

from ..attention.kernels import Kernel, Sigmoid, Unit
from ..attention.masks import Causal, Window
from ..attention.slots import KeySlot
from .model import LMSpec
from .positions import Learned

BASE = LMSpec(position=Learned())


def attn(**change: Any) -> LMSpec:
    """BASE with some of its attention changed."""
    return replace(BASE, attention=replace(BASE.attention, **change))


VARIANTS: dict[str, LMSpec] = {
    "llama": LMSpec(),
    "softmax": BASE,
    "sigmoid": attn(kernel=Kernel(similarity=Sigmoid(), normaliser=Unit())),
    "k_bias": attn(slots=KeySlot()),
    "window": attn(mask=Causal() & Window(8)),
}
