"""Interventions: frozen values that say what changes and in which layers, heads and positions; backends apply it."""

from ..attention.sites import Edit, HeadWeights
from .attention_layers import (
    BlindKeys,
    ClipPattern,
    PatchNormalization,
    Temperature,
    ZeroKeyBias,
    ZeroQueryBias,
    ZeroValueBias,
)
from .changes import (
    Add,
    Apply,
    Change,
    ChangeAttentionInput,
    ChangeKeys,
    ChangeMLP,
    ChangeNeurons,
    ChangeOutputs,
    ChangePattern,
    ChangePositionEmbedding,
    ChangeQueries,
    ChangeResidual,
    ChangeTokenEmbedding,
    ChangeValues,
    ClampNorm,
    Keep,
    MatchedNoise,
    MeanOfOthers,
    Operation,
    Put,
    PutAt,
    Scale,
    SetTo,
    SwapWith,
    Zero,
)  # fmt: skip
from .columns import (
    AddSinkLogit,
    AttendSelfOnly,
    BiasColumn,
    Dropped,
    Evict,
    First,
    KeepHeaviest,
    RemoveColumn,
    RemoveKeySlot,
    Renormalised,
    SpreadEvenly,
    ZeroKeySlot,
)
from .edit import Ablate
from .positions import RemovePosition, ReplacePosition, ShiftPositions, SwapPositions

__all__ = [
    "Ablate", "Add", "AddSinkLogit", "Apply", "AttendSelfOnly", "BiasColumn", "BlindKeys", "Change",
    "ChangeAttentionInput", "ChangeKeys", "ChangeMLP", "ChangeNeurons", "ChangeOutputs", "ChangePattern",
    "ChangePositionEmbedding",
    "ChangeQueries", "ChangeResidual", "ChangeTokenEmbedding", "ChangeValues", "ClampNorm", "ClipPattern",
    "Dropped", "Edit", "Evict", "First", "HeadWeights", "Keep", "KeepHeaviest", "MatchedNoise", "MeanOfOthers",
    "Operation", "PatchNormalization", "Put", "PutAt", "RemoveColumn", "RemoveKeySlot", "RemovePosition",
    "Renormalised", "ReplacePosition", "Scale", "SetTo", "ShiftPositions", "SpreadEvenly", "SwapPositions",
    "SwapWith", "Temperature", "Zero", "ZeroKeyBias", "ZeroKeySlot", "ZeroQueryBias", "ZeroValueBias",
]  # fmt: skip
