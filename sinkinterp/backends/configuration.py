"""What a model's configuration says before its weights are read: its class, and whether it has an encoder."""

from pathlib import Path
from typing import Any

from transformers import (
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedConfig,
)

from ..checks import check_memory
from ..errors import InputError
from . import gguf


def class_of(source: str | Path) -> Any:
    """The class of transformers that reads a model whole: encoder and decoder, where it has both."""
    config = _config_of(source)
    if config is None or not config.is_encoder_decoder:
        return AutoModelForCausalLM
    is_speech = type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    return AutoModelForSpeechSeq2Seq if is_speech else AutoModelForSeq2SeqLM


def has_encoder(folder: Path) -> bool:
    """Whether a folder is that of an encoder-decoder model; False where it has no configuration that can be read."""
    try:
        config = _config_of(folder) if folder.is_dir() else None
    except Exception:  # reading the weights says what is wrong
        return False
    return config is not None and config.is_encoder_decoder


def checked_config(source: str | Path) -> PreTrainedConfig | None:
    """The configuration of a name or a folder; None where there is none.

    Raises InputError where it names an attention kernel of the Hub, which transformers would download and run.
    """
    config = _config_of(source)
    kernel = None if config is None else getattr(config, "_attn_implementation", None)
    if isinstance(kernel, str) and "/" in kernel:
        raise InputError(
            f"the config.json of {source} names the attention kernel {kernel}, which is code of the Hub and is not "
            "run; take that line out"
        )
    return config


def check_fits_memory(config: PreTrainedConfig) -> None:
    """Raises InputError for a model that exceeds the memory even if a layer had one square matrix, in 16 bits."""
    sizes = config.get_text_config()
    layers, width = (getattr(sizes, name, None) for name in ("num_hidden_layers", "hidden_size"))
    if isinstance(layers, int) and isinstance(width, int):
        what = f"the weights of {layers:,} layers of {width:,} dimensions"
        check_memory(2 * layers * width**2, what, "load a smaller model")


def decoder_start(source: str | Path) -> int | None:
    """The first token of every text that the decoder of an encoder-decoder model writes; None for other models."""
    config = _config_of(source)
    has_start = config is not None and config.is_encoder_decoder
    return getattr(config, "decoder_start_token_id", None) if has_start else None


def _config_of(source: str | Path) -> PreTrainedConfig | None:
    """The configuration of a name or a folder; None for a GGUF file, and for a folder without one."""
    if gguf.is_gguf(source) or (Path(source).is_dir() and not (Path(source) / "config.json").is_file()):
        return None
    return AutoConfig.from_pretrained(source, trust_remote_code=False)
