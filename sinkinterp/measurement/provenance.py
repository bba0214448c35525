"""Protocol: how a report's numbers were made. Every table and figure shows it."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from ..backends.subject import Subject
from ..data.tokens import TokenSet
from ..interventions.description import description
from ..interventions.edit import Edit
from ..metrics.importance import VISIBLE, Convention

PACKAGES = ("sinkinterp", "torch", "transformers")  # whose versions are noted, beside those of the backend


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

    @property
    def divisor_note(self) -> str:
        """What to know about the divisor of importance; empty where all conventions divide alike."""
        if not self.hides_first_key:
            return ""
        is_default = self.divisor == VISIBLE.description
        other = "--preset paper divides by T - k + 1" if is_default else f"the default is {VISIBLE.description}"
        return f"a window hides keys from later queries: importance is divided by {self.divisor}; {other}"

    @property
    def lengths(self) -> str:
        """T, or the shortest and the longest where sequences differ."""
        return str(self.length) if self.shortest is None else f"{self.shortest} to {self.length}"

    def line(self, *varying: str) -> str:
        """The part of the protocol that belongs beside every number, without the fields that vary from row to row."""
        parts = {
            "sequences": f"n={self.sequences}",
            "length": f"T={self.lengths}",
            "bos": f"BOS {self.bos}",
            "encoder": self.encoder and f"encoder {self.encoder}",
            "dtype": self.dtype,
            "source": self.source,
            "revision": self.revision and f"weights: {self.revision}",
            "edits": self.edits and f"edits {'; '.join(self.edits)}",
        }
        return ", ".join(str(part) for name, part in parts.items() if part and name not in varying)

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Protocol":
        """The inverse of `dataclasses.asdict`, through JSON or not."""
        return Protocol(**{**plain, "edits": tuple(plain["edits"])})


def protocol_of(
    subject: Subject,
    token_set: TokenSet,
    edits: Sequence[Edit],
    convention: Convention,
    hides_first_key: bool = False,
) -> Protocol:
    """The protocol of a measurement that is made now."""
    sequences, length = token_set.tokens.shape
    return Protocol(
        model=subject.name,
        sequences=sequences,
        length=length,
        dtype=str(subject.dtype).removeprefix("torch."),
        bos=token_set.bos,
        source=token_set.source,
        source_sha256=token_set.sha256,
        texts_too_short=token_set.too_short,
        edits=tuple(map(description, edits)),
        divisor=convention.description,
        revision=subject.revision,
        versions={"python": platform.python_version()}
        | {name: version(name) for name in (*PACKAGES, *subject.libraries)},
        shortest=None if token_set.lengths is None else int(token_set.lengths.min()),
        encoder=subject.encoder,
        hides_first_key=hides_first_key,
    )
