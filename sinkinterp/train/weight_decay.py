"""Which parameters weight decay applies to."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from ..spec import Spec


@dataclass(frozen=True)
class Decay(Spec):
    """Which parameters weight decay applies to."""

    def decayed(self, model: nn.Module) -> set[str]:
        """The names of these parameters."""
        raise NotImplementedError


@dataclass(frozen=True)
class MapsAndTokens(Decay):
    """Linear maps and token embeddings, but not gains, slots and position tables.

    With decay on the position table, p1 stays too small to make a sink of whichever token comes first.
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


def parameter_groups(model: nn.Module, decay: Decay, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups, with and without weight decay. Every trained parameter is in exactly one of them."""
    names = decay.decayed(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decayed = [p for name, p in trained.items() if name in names]
    free = [p for name, p in trained.items() if name not in names]
    check_cover(model, decayed + free)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def check_cover(model: nn.Module, grouped: list[nn.Parameter]) -> None:
    """Raises RuntimeError unless `grouped` holds every trained parameter of the model exactly once, and no others."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    if len(grouped) != len(trained) or {id(p) for p in grouped} != trained:
        raise RuntimeError(f"the optimiser holds {len(grouped)} parameters where the model trains {len(trained)}")
