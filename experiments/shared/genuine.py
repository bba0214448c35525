"""The pretrained models that `make models` makes, with the properties that chapters ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sinkinterp.backends.encoder import Silence
from sinkinterp.data.choices import Bos, Scale

from .cases import Model, Named


class Has(StrEnum):
    """What a claim may need of a model."""

    TEXT = "it reads text without an encoder"
    BIASES = "its queries, keys and values have biases"
    WINDOWS = "some of its layers have a window"
    TABLE = "a table of learned positions"


@dataclass(frozen=True)
class Genuine:
    """A pretrained model and its properties."""

    model: Model
    has: frozenset[Has]


# The larger two have fewer sequences, so that a chapter takes minutes. Gemma 3 has no sink without BOS (Table 1).
MODELS = (
    Genuine("local/smollm2-135m-instruct", frozenset({Has.TEXT})),
    Genuine(Named("local/gemma3-270m", most=16, begins=Bos.ALWAYS), frozenset({Has.TEXT, Has.WINDOWS})),
    Genuine(Named("local/qwen2.5-coder-0.5b", most=8), frozenset({Has.TEXT, Has.BIASES})),
    Genuine(Named("local/whisper-tiny.en", Silence()), frozenset({Has.TABLE})),
)


def models_with(*needed: Has, lacking: Sequence[Has] = ()) -> list[Model]:
    """The models that have all that is needed and nothing of what they must lack, in the order of the list."""
    return [each.model for each in MODELS if each.has.issuperset(needed) and each.has.isdisjoint(lacking)]


def text_models(*papers: Model, has: Sequence[Has] = (Has.TEXT,)) -> dict[Scale, list[Model]]:
    """The models of an experiment on text, by scale: what ships, those of `make models` that have this, the paper's."""
    here: dict[Scale, list[Model]] = {Scale.SMOKE: ["sinkinterp/text-softmax-48k"], Scale.REAL: models_with(*has)}
    return here | ({Scale.PAPER: [*papers]} if papers else {})
