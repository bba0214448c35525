"""Choices that a user names: the rule about BOS, how random tokens are drawn, and the dtype of a model."""

import re
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


def dtype_name(name: str) -> str:
    """The name that torch gives to the dtype of a usual name, such as bf16 or torch.half; other names as they are."""
    plain = name.lower().removeprefix("torch.")
    return "float16" if plain == "half" else re.sub(r"^(bf|fp?)(16|32)$", lambda m: f"{_KINDS[m[1]]}{m[2]}", plain)


_KINDS = {"bf": "bfloat", "f": "float", "fp": "float"}
