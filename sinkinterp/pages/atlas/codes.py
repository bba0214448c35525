"""Numbers stored in one or two bytes, for pages that hold millions of them. A scale says how much precision is lost."""

import base64
import gzip
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from .schema import ScaleData

Values = Float[np.ndarray, "*shape"]


@dataclass(frozen=True)
class Scale:
    """Codes 1, 2, ... stand for values from `low` to `high` in even steps. Code 0 stands for no value (NaN)."""

    is_log: ClassVar[bool] = False

    low: float
    high: float
    bits: int = 8

    @property
    def step(self) -> float:
        """The difference between the values of neighbouring codes."""
        return (self.high - self.low) / (2**self.bits - 2)

    def codes(self, values: Values) -> np.ndarray:
        """The nearest codes, `bits` wide."""
        return self._codes(values.astype(np.float64), self.low, self.step, first=1)

    def values(self, codes: np.ndarray) -> Values:
        """The values of codes, in fp32."""
        return np.where(codes == 0, np.nan, self.low + (codes.astype(np.float64) - 1) * self.step).astype(np.float32)

    def precision(self) -> str:
        """A text that says how far a code may be from its value."""
        return f"to within {self.step / 2:.1g}"

    def data(self) -> ScaleData:
        """What the page needs to decode."""
        return ScaleData(self.is_log, self.low, self.high, self.bits, self.step)

    def _codes(self, values: Values, low: float, step: float, first: int) -> np.ndarray:
        steps = np.clip(np.rint((values - low) / (step or 1)), 0, 2**self.bits - 1 - first) + first
        return np.where(np.isnan(values), 0, steps).astype(f"uint{self.bits}")


@dataclass(frozen=True)
class LogScale(Scale):
    """Codes 2, 3, ... stand for values from `low` to `high` in even ratios. Code 1 stands for 0.

    Values that round below `low` have code 1, too.
    """

    is_log: ClassVar[bool] = True

    @property
    def step(self) -> float:
        return float(np.log(self.high / self.low)) / (2**self.bits - 3)

    def codes(self, values: Values) -> np.ndarray:
        tiny = values < self.low * np.exp(-self.step / 2)
        logs = np.log(np.where(tiny, self.low, values).astype(np.float64))
        return np.where(tiny, 1, self._codes(logs, np.log(self.low), self.step, first=2)).astype(f"uint{self.bits}")

    def values(self, codes: np.ndarray) -> Values:
        values = self.low * np.exp((codes.astype(np.float64) - 2) * self.step)
        return np.where(codes == 0, np.nan, np.where(codes == 1, 0, values)).astype(np.float32)

    def precision(self) -> str:
        return f"to within {100 * np.expm1(self.step / 2):.1g}%, or as 0 below {self.low:.1g}"


def linear(values: Values, bits: int) -> Scale:
    """The scale from the smallest to the largest value."""
    low, high = (float(v) for v in (np.nanmin(values), np.nanmax(values)))
    return Scale(low, max(high, low + 1e-6), bits)


def logarithmic(values: Values, bits: int) -> LogScale:
    """The scale up to the largest value, from the smallest value above 0, but from no less than a floor.

    The floor is a millionth of the largest value with 8 bits, and 1e-12 of it with 16 bits.
    """
    high = float(np.nanmax(values, initial=0)) or 1.0
    floor = high * (1e-6 if bits == 8 else 1e-12)
    low = float(np.nanmin(np.where(values > 0, values, high)))
    return LogScale(min(max(low, floor), high / 2), high, bits)


def packed(codes: np.ndarray) -> str:
    """Codes as text: all low bytes, then all high bytes if codes have two, compressed (gzip), in base64."""
    planes = codes.astype(f"<u{codes.itemsize}").reshape(-1, 1).view(np.uint8).T
    return text_of(planes.tobytes())


def text_of(data: bytes) -> str:
    """Bytes as text: compressed (gzip), in base64. The same bytes give the same text."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
