"""Interventions: frozen values that say what changes and in which layers, heads and positions; backends apply it."""

from ..attention import Edit as Edit, HeadWeights as HeadWeights
from .attention_layers import *
from .changes import *
from .edit import *
from .positions import *

__all__ = [
    "Ablate", "Add", "AddSinkLogit", "Apply", "AttendSelfOnly", "BiasColumn", "BlindKeys", "Change",
    "ChangeAttentionInput", "ChangeKeys", "ChangeMLP", "ChangeNeurons", "ChangeOutputs", "ChangePattern",
    "ChangePositionEmbedding",
    "ChangeQueries", "ChangeResidual", "ChangeTokenEmbedding", "ChangeValues", "ClampNorm",
    "Dropped", "Edit", "Evict", "First", "HeadWeights", "Keep", "KeepHeaviest", "MatchedNoise", "MeanOfOthers",
    "Operation", "PatchNormalization", "Put", "PutAt", "RemoveColumn", "RemoveKeySlot", "RemovePosition",
    "Renormalised", "ReplacePosition", "Scale", "SetTo", "ShiftPositions", "SpreadEvenly", "SwapPositions",
    "SwapWith", "Temperature", "WithoutMassive", "Zero", "ZeroKeyBias", "ZeroKeySlot", "ZeroMassive",
    "ZeroQueryBias", "ZeroValueBias",
]  # fmt: skip
