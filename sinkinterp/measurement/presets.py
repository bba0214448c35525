"""Presets: the settings that published numbers were measured with, as values."""

from dataclasses import dataclass

from ..data.choices import Bos, Dtype
from ..errors import InputError
from ..guesses import choice
from ..metrics.importance import PAPER, RELEASED, VISIBLE, Convention, queries_from
from ..metrics.sink import check_epsilon


@dataclass(frozen=True)
class Preset:
    """How to measure: T, n, BOS, epsilon, the type of weights and activations, and how importance is averaged."""

    length: int = 64
    sequences: int = 100
    bos: Bos = Bos.TOKENIZER
    epsilon: float = 0.3
    dtype: str = "float32"
    convention: Convention = VISIBLE

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.dtype not in list(Dtype):
            raise InputError(f"{self.dtype!r} is not a dtype that models run in; use {', '.join(Dtype)}")


PRESETS = {
    # Gu et al. 2025, sections 3.2 and 3.3: the definition, without BOS
    "paper": Preset(bos=Bos.NEVER, convention=PAPER),
    # the release's script for models of the Hub: BOS as the tokenizer adds it, in fp32
    "released-open-models": Preset(convention=Convention("T - k + 1, all queries", queries_from)),
    # the release's script for its own models: no BOS, weights and the comparison with epsilon in bfloat16
    "released-own-models": Preset(bos=Bos.NEVER, epsilon=0.30078125, dtype="bfloat16", convention=RELEASED),
}


def preset_of(name: str | None) -> Preset:
    """The preset of that name; the default where `name` is None. Raises InputError for an unknown name."""
    return Preset() if name is None else choice(name, PRESETS, "preset")
