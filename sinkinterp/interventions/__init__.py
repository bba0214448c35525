"""Interventions: frozen values that say what changes and in which layers, heads and positions; backends apply it.

Others are in the modules of this package: masks of caches in `attention_layers`, further operations in `changes`.
"""

from ..attention import Edit
from .attention_layers import (
    AddSinkLogit,
    BiasColumn,
    PatchNormalization,
    RemoveColumn,
    RemoveKeySlot,
    Temperature,
    ZeroKeyBias,
    ZeroKeySlot,
    ZeroQueryBias,
    ZeroValueBias,
)
from .changes import (
    Add,
    Change,
    ChangeKeys,
    ChangeMLP,
    ChangeOutputs,
    ChangeResidual,
    ChangeValues,
    MeanOfOthers,
    Put,
    Scale,
    SetTo,
    SwapPositions,
    SwapWith,
    Zero,
)

__all__ = [
    "Add", "AddSinkLogit", "BiasColumn", "Change", "ChangeKeys", "ChangeMLP", "ChangeOutputs", "ChangeResidual",
    "ChangeValues", "Edit", "MeanOfOthers", "PatchNormalization", "Put", "RemoveColumn", "RemoveKeySlot", "Scale",
    "SetTo", "SwapPositions", "SwapWith", "Temperature", "Zero", "ZeroKeyBias", "ZeroKeySlot", "ZeroQueryBias",
    "ZeroValueBias",
]  # fmt: skip
