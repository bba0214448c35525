"""The exchangeable parts of a recipe: learning-rate schedule, weight decay and objective, each a value."""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from ..data.tokens import Tokens
from ..errors import InputError
from ..lm.blocked_loss import IGNORED
from ..spec import Spec


@dataclass(frozen=True)
class Rate(Spec):
    """The learning rate after the linear warm-up."""

    def factor(self, step: int, steps: int, warmup: int) -> float:
        """The rate at `step` (from 1) divided by the peak rate, in a run of `steps` of which `warmup` warm up."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantRate(Rate):
    """The peak rate until the end, as in the released configurations of Gu et al. (2025)."""

    def factor(self, step: int, steps: int, warmup: int) -> float:
        return 1.0


@dataclass(frozen=True)
class CosineRate(Rate):
    """Half a cosine, from the peak at the end of the warm-up down to `floor` at the last step."""

    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self.floor)

    def factor(self, step: int, steps: int, warmup: int) -> float:
        done = max(0, step - warmup) / max(1, steps - warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class CooldownRate(Rate):
    """The peak rate, then a straight line down to `floor` over the last fraction `last` of the steps.

    The cool-down removes the noise of the constant rate from the final losses.
    """

    last: float = 0.2
    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_floor(self.floor)
        if not 0 < self.last < 1:
            raise InputError(f"a cool-down takes a share of the steps, between 0 and 1; got last={self.last}")

    def factor(self, step: int, steps: int, warmup: int) -> float:
        left = (steps - step) / (self.last * steps)
        return min(1.0, self.floor + (1 - self.floor) * left)


def _check_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise InputError(f"the floor of a rate is a share of its peak, from 0 to 1; got floor={floor}")


@dataclass(frozen=True)
class Decay(Spec):
    """Which parameters weight decay applies to."""

    def decayed(self, model: nn.Module) -> set[str]:
        """The names of the parameters that it applies to."""
        raise NotImplementedError


@dataclass(frozen=True)
class MapsAndTokens(Decay):
    """Linear maps and token embeddings, but not gains, slots and position tables.

    With decay on the position table, p1 stays too small to make a sink of whichever token comes first.
    """

    def decayed(self, model: nn.Module) -> set[str]:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
        owners = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) or m is embedding]
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


@dataclass(frozen=True)
class Objective(Spec):
    """Predicts every token from position `first` on, each from the tokens before it."""

    @property
    def first(self) -> int:
        """Position, from 0, of the first token that is predicted."""
        raise NotImplementedError

    def labels(self, tokens: Tokens) -> Tokens:
        """The tokens to predict, and -100 in place of tokens that are not predicted."""
        if self.first <= 1:  # losses leave out position 0, which has no token before it
            return tokens
        labels = tokens.clone()
        labels[:, : self.first] = IGNORED
        return labels


@dataclass(frozen=True)
class NextToken(Objective):
    """Predicts every token but the first."""

    @property
    def first(self) -> int:
        return 1


@dataclass(frozen=True)
class PrefixLM(Objective):
    """Predicts the tokens after the first `prefix`, which a prefix mask shows to all (Gu et al. 2025, Fig. 5)."""

    prefix: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix < 1:
            raise InputError(f"a prefix is at least 1 token long; got {self.prefix}")

    @property
    def first(self) -> int:
        return self.prefix
