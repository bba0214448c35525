"""Numbers in one or two bytes, for pages that hold millions of them; what is lost is said beside them."""

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Values = Float[np.ndarray, "*shape"]
Codes = Int[np.ndarray, "*shape"] | np.ndarray


@dataclass(frozen=True)
class Scale:
    """Codes 1, 2, ... for values from `low` to `high` in even steps; code 0 says that there is no value (NaN)."""

    low: float
    high: float
    bits: int = 8

    @property
    def step(self) -> float:
        """From one code to the next."""
        return (self.high - self.low) / (2**self.bits - 2)

    def codes(self, values: Values) -> np.ndarray:
        """The nearest codes, `bits` wide."""
        return self._codes(values.astype(np.float64), self.low, self.step, 1)

    def values(self, codes: np.ndarray) -> Values:
        """What the codes stand for, in fp32."""
        return np.where(codes == 0, np.nan, self.low + (codes.astype(np.float64) - 1) * self.step).astype(np.float32)

    def precision(self) -> str:
        """How far a code may be from its value, in words."""
        return f"to within {self.step / 2:.1g}"

    def to_dict(self) -> dict[str, Any]:
        """What the page needs to read codes."""
        return {"log": False, "low": self.low, "high": self.high, "bits": self.bits, "step": self.step}

    def _codes(self, values: Values, low: float, step: float, first: int) -> np.ndarray:
        steps = np.clip(np.rint((values - low) / (step or 1)), 0, 2**self.bits - 1 - first) + first
        return np.where(np.isnan(values), 0, steps).astype(f"uint{self.bits}")


@dataclass(frozen=True)
class LogScale(Scale):
    """Codes 2, 3, ... for values from `low` to `high` in even ratios; code 1 is 0, and all that rounds below `low`."""

    @property
    def step(self) -> float:
        return float(np.log(self.high / self.low)) / (2**self.bits - 3)

    def codes(self, values: Values) -> np.ndarray:
        tiny = values < self.low * np.exp(-self.step / 2)
        logs = np.log(np.where(tiny, self.low, values).astype(np.float64))
        return np.where(tiny, 1, self._codes(logs, np.log(self.low), self.step, 2)).astype(f"uint{self.bits}")

    def values(self, codes: np.ndarray) -> Values:
        values = self.low * np.exp((codes.astype(np.float64) - 2) * self.step)
        return np.where(codes == 0, np.nan, np.where(codes == 1, 0, values)).astype(np.float32)

    def precision(self) -> str:
        return f"to within {100 * np.expm1(self.step / 2):.1g}%, or as 0 below {self.low:.1g}"

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "log": True}


def linear(values: Values, bits: int) -> Scale:
    """The scale from the smallest to the largest value."""
    low, high = (float(v) for v in (np.nanmin(values), np.nanmax(values)))
    return Scale(low, max(high, low + 1e-6), bits)


def logarithmic(values: Values, bits: int) -> LogScale:
    """The scale from the smallest value above 0, or from a millionth (8 bits) of the largest one if that is more."""
    high = float(np.nanmax(values, initial=0)) or 1.0
    floor = high * (1e-6 if bits == 8 else 1e-12)
    low = float(np.nanmin(np.where(values > 0, values, high)))
    return LogScale(min(max(low, floor), high / 2), high, bits)


def packed(codes: np.ndarray) -> str:
    """Codes as text: low bytes, then high bytes if there are any, compressed (gzip), in base64."""
    planes = codes.astype(f"<u{codes.itemsize}").reshape(-1, 1).view(np.uint8).T
    return text_of(planes.tobytes())


def text_of(data: bytes) -> str:
    """Bytes as text: compressed (gzip), in base64. The same bytes give the same text."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
