"""Protocol: how a report's numbers were made. Every table and figure shows it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..metrics.importance import VISIBLE


@dataclass(frozen=True)
class Protocol:
    """How a report's numbers were made."""

    model: str
    sequences: int
    length: int
    dtype: str
    bos: str
    source: str
    source_sha256: str
    texts_too_short: int
    edits: tuple[str, ...]
    divisor: str
    revision: str
    versions: Mapping[str, str]
    shortest: int | None = None  # where sequences differ in length; `length` is then the longest
    encoder: str = ""  # what the encoder of an encoder-decoder model was given
    hides_first_key: bool = False  # whether a window hides the first key from some query
    attention: str = ""  # the implementation that the model ran: sdpa or eager; empty in reports of before
    attention_note: str = ""  # what to know about it
    ended: str = ""  # why fewer sequences were measured than there are; empty where all were

    @property
    def divisor_note(self) -> str:
        """What to know about the divisor of importance; empty where all conventions divide alike."""
        if not self.hides_first_key:
            return ""
        is_default = self.divisor == VISIBLE.description
        other = "the paper divides by T - k + 1" if is_default else f"the default is {VISIBLE.description}"
        return f"a window hides keys from later queries: importance is divided by {self.divisor}; {other}"

    @property
    def lengths(self) -> str:
        """T, or the shortest and the longest where sequences differ."""
        return str(self.length) if self.shortest is None else f"{self.shortest} to {self.length}"

    def line(self, *varying: str) -> str:
        """The part of the protocol that belongs beside every number, without the fields that vary from row to row."""
        parts = {
            "sequences": f"n={self.sequences}" + (f" ({self.ended})" if self.ended else ""),
            "length": f"T={self.lengths}",
            "bos": f"BOS {self.bos}",
            "encoder": self.encoder and f"encoder {self.encoder}",
            "dtype": self.dtype,
            "attention": self.attention_note,
            "source": self.source,
            "texts_too_short": self._skipped(),
            "revision": self.revision and f"weights: {self.revision}",
            "edits": self.edits and f"edits {'; '.join(self.edits)}",
        }
        return ", ".join(str(part) for name, part in parts.items() if part and name not in varying)

    def _skipped(self) -> str:
        count = self.texts_too_short
        return f"{count} {'text' if count == 1 else 'texts'} too short" if count else ""

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Protocol":
        """The inverse of `dataclasses.asdict`, through JSON or not."""
        return Protocol(**{**plain, "edits": tuple(plain["edits"])})


def public_name(model: str) -> str:
    """The name of a model as pages show it: of a folder on this machine, the last part of its path."""
    is_path = model.startswith(("/", "./", "../", "~")) or "\\" in model or model.count("/") > 1
    return short_name(model) if is_path else model


def short_name(model: str) -> str:
    """The last part of a model's name, for titles."""
    return next((part for part in reversed(re.split(r"[/\\]", model)) if part), model)
