"""How weights are initialised: as the official release writes, or as its training effectively does."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ..spec import Spec
from .ffn import SwishDown


@dataclass(frozen=True)
class Init(Spec):
    """How every module of a model with `depth` blocks is initialised."""

    def draw(self, module: nn.Module, depth: int) -> None:
        """Draws the weights of this module, without those of its children, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class TorchInit(Init):
    """PyTorch's defaults, with embeddings from N(0, 1). The release effectively uses these on several GPUs."""

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.reset_parameters()


@dataclass(frozen=True)
class WrittenInit(Init):
    """What the release writes: N(0, 0.4 / fan_in) for linear layers and embeddings.

    The down projection of SwiGLU is drawn from N(0, 1 / width / depth^2); no other feed-forward layer depends on depth.
    """

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, SwishDown):
            nn.init.normal_(module.weight, std=module.in_features**-0.5 / depth)
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=(0.4 / module.weight.shape[1]) ** 0.5)
        elif isinstance(module, nn.RMSNorm):
            module.reset_parameters()
