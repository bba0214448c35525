"""How weights are drawn: what the official release writes, and what its training effectively runs."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ..spec import Spec
from .ffn import SwishDown


@dataclass(frozen=True)
class Init(Spec):
    """A rule for every module of a model of `depth` blocks."""

    def draw(self, module: nn.Module, depth: int) -> None:
        """Draws the module's own weights, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class TorchInit(Init):
    """PyTorch's own defaults, which the release effectively runs on several GPUs: embeddings from N(0, 1)."""

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.reset_parameters()


@dataclass(frozen=True)
class WrittenInit(Init):
    """What the release writes: N(0, 0.4 / fan_in) in maps and embeddings; SwiGLU's last map N(0, 1 / width / depth^2).

    Only SwiGLU is drawn smaller with depth there, no other feed-forward layer is.
    """

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, SwishDown):
            nn.init.normal_(module.weight, std=module.in_features**-0.5 / depth)
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=(0.4 / module.weight.shape[1]) ** 0.5)
        elif isinstance(module, nn.RMSNorm):
            module.reset_parameters()
