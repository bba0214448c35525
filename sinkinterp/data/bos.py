"""The choice that changes a sink most: whether a sequence begins with BOS."""

from enum import StrEnum


class Bos(StrEnum):
    """When sequences begin with the beginning-of-sequence token: as the tokenizer decides, always, or never."""

    TOKENIZER = "tokenizer"
    ALWAYS = "always"
    NEVER = "never"
