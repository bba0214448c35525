"""Protocol: how a report's numbers came about, said beside every one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """How a report's numbers came about."""

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

    def line(self) -> str:
        """The part of the protocol that belongs beside every number."""
        edited = f", edits {'; '.join(self.edits)}" if self.edits else ""
        span = self.length if self.shortest is None else f"{self.shortest} to {self.length}"
        return f"n={self.sequences}, T={span}, BOS {self.bos}, {self.dtype}, {self.source}{edited}"

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Protocol":
        """The inverse of `dataclasses.asdict`, through JSON or not."""
        return Protocol(**{**plain, "edits": tuple(plain["edits"])})
