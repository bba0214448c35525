"""The choice that moves a sink most: whether a sequence begins with BOS."""

from enum import StrEnum


class Bos(StrEnum):
    """Whether sequences begin with the beginning-of-sequence token: as the tokenizer does it, always, or never."""

    TOKENIZER = "tokenizer"
    ALWAYS = "always"
    NEVER = "never"
