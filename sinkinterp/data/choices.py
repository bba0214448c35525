"""Choices that a user names: the rule about BOS, how random tokens are drawn, and the dtype of a model."""

from enum import StrEnum


class Bos(StrEnum):
    """When sequences begin with the beginning-of-sequence token. This choice changes a sink more than any other."""

    TOKENIZER = "tokenizer"
    ALWAYS = "always"
    NEVER = "never"


class Drawn(StrEnum):
    """How random tokens are drawn (Gu et al. 2025, Table 1): each for itself, or one that fills its sequence."""

    RANDOM = "random"
    REPEAT = "repeat"


class Remedy(StrEnum):
    """What is added to the heads of a model whose sink is mended."""

    KV_BIAS = "kv_bias"
    SINK_LOGIT = "sink_logit"
    K_BIAS = "k_bias"
    NONE = "none"


class Weights(StrEnum):
    """Which weights are trained beside what is added."""

    ALL = "all"
    LORA = "lora"
    NONE = "none"


class Dtype(StrEnum):
    """The numbers that a model computes with."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
