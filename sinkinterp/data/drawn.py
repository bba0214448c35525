"""Tokens that no text says."""

from enum import StrEnum


class Drawn(StrEnum):
    """How tokens are drawn (Gu et al. 2025, Table 1): each at random, or one per sequence repeated all along."""

    RANDOM = "random"
    REPEAT = "repeat"
