"""Choices that a user names, such as the rule about BOS, the dtype of a model, and the scale of an experiment."""

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


class Scale(StrEnum):
    """Which models an experiment runs on."""

    SMOKE = "smoke"  # what ships, or a few steps of training: seconds, no result
    DEMO = "demo"  # toys that train in seconds
    TEXT = "text"  # small models of text, some seven minutes each
    GPU = "gpu"  # models of text without BOS: a minute each on a GPU, hours on a CPU
    REAL = "real"  # pretrained models that `make models` downloads
    PAPER = "paper"  # the paper's models
