"""The choice between the two kinds of inputs that are drawn at random."""

from enum import StrEnum


class Drawn(StrEnum):
    """How tokens are drawn (Gu et al. 2025, Table 1): each at random, or one per sequence that fills the sequence."""

    RANDOM = "random"
    REPEAT = "repeat"
