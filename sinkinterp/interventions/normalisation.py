"""Interventions on how scores become weights: another kernel, another temperature, clipped weights."""

from dataclasses import dataclass

from ..attention.call import AttentionCall
from ..attention.kernels import Exp, Kernel, PNorm, Similarity, Unit
from ..errors import InputError
from ..guesses import nearest
from .selectors import InCalls, OnHeads


@dataclass(frozen=True)
class PatchNormalization(InCalls, OnHeads):
    """Any kernel of `attention.kernels` in place of a model's own, per layer and head.

    A similarity stands for its kernel without normalisation, as in `PatchNormalization(Sigmoid())`. Two drop a factor
    per row and so are normalised: `Exp()` stands for softmax, `ExpMinusOne()` is divided by the sum of its magnitudes.
    A similarity may be given by its name, as in `PatchNormalization("sigmoid")`.
    """

    kernel: Kernel | Similarity

    def __post_init__(self) -> None:
        if isinstance(self.kernel, str):
            object.__setattr__(self, "kernel", _named(self.kernel))
        super().__post_init__()

    def changed(self, call: AttentionCall) -> AttentionCall:
        return self.rescored(call, kernel=self._kernel)

    @property
    def _kernel(self) -> Kernel:
        if isinstance(self.kernel, Kernel):
            return self.kernel
        return Kernel(similarity=self.kernel, normaliser=PNorm() if self.kernel.drops_factor else Unit())


def _named(name: str) -> Similarity:
    kinds = {kind.__name__.lower(): kind for kind in Similarity.__subclasses__() if not kind.__name__.startswith("_")}
    words = kinds | {"softmax": Exp}
    if name.lower() not in words:
        raise InputError(f"no similarity is called {name!r:.40}{nearest(name, words)}; names are {', '.join(words)}")
    return words[name.lower()]()


@dataclass(frozen=True)
class Temperature(InCalls, OnHeads):
    """Scores divided by `temperature` before they are normalised; above 1, attention is flatter.

    A softcap caps what was divided; position biases and sink logits are not divided.
    """

    temperature: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise InputError(f"a temperature is above 0; got {self.temperature}")

    def changed(self, call: AttentionCall) -> AttentionCall:
        return self.rescored(call, scale=call.scale / self.temperature)


@dataclass(frozen=True)
class ClipPattern(InCalls, OnHeads):
    """Clipped softmax: weights become min(max((high - low) A + low, 0), 1), on pairs that may attend. For small T.

    Bondarenko et al. 2023, arXiv:2306.12929; low below 0 lets heads give exactly nothing. The slot's column is kept.
    """

    low: float = -0.03
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise InputError(f"weights are stretched from low to a higher number; got {self.low} and {self.high}")

    def changed(self, call: AttentionCall) -> AttentionCall:
        pattern = call.pattern()
        clipped = ((self.high - self.low) * pattern + self.low).clamp(0, 1) * (pattern > 0)
        first = pattern.shape[-1] - call.k.shape[2]
        clipped[..., :first] = pattern[..., :first]
        return self.on_heads(call, call.with_pattern(clipped))
