"""Parameter groups: what weight decay pulls on."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ..spec import Spec


@dataclass(frozen=True)
class Decay(Spec):
    """Which parameters weight decay pulls on."""

    def decayed(self, model: nn.Module) -> set[str]:
        """Their names."""
        raise NotImplementedError


@dataclass(frozen=True)
class MapsAndTokens(Decay):
    """Linear maps and token embeddings; gains, slots and position tables stay free.

    A position table that decays leaves p1 too small to make a sink of whichever token comes first.
    """

    def decayed(self, model: nn.Module) -> set[str]:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        owners = [m for m in model.modules() if isinstance(m, nn.Linear) or m is embedding]
        chosen = {id(p) for owner in owners for p in owner.parameters()}
        return {name for name, p in model.named_parameters() if id(p) in chosen}


@dataclass(frozen=True)
class Everything(Decay):
    """Every parameter, as the released training of Gu et al. (2025) does."""

    def decayed(self, model: nn.Module) -> set[str]:
        return {name for name, _ in model.named_parameters()}


def groups(model: nn.Module, decay: Decay, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups, decayed and free: every trained parameter in exactly one of them."""
    chosen = decay.decayed(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    pulled = [p for name, p in trained.items() if name in chosen]
    free = [p for name, p in trained.items() if name not in chosen]
    check_cover(model, pulled + free)
    return [{"params": pulled, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def check_cover(model: nn.Module, grouped: list[nn.Parameter]) -> None:
    """Raises RuntimeError unless `grouped` holds every trained parameter of the model once, and nothing else."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if len(grouped) != len(trained) or {id(p) for p in grouped} != trained:
        raise RuntimeError(f"the optimiser holds {len(grouped)} parameters where the model trains {len(trained)}")
