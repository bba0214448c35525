"""GGUF files to transformers folders, their weights dequantised to float32."""

from pathlib import Path

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase

from sinkinterp.backends.model_files import load_model, load_tokenizer


def convert(file: Path, folder: Path) -> None:
    """Writes a model folder of transformers with its tokenizer. Raises InputError for a file that cannot be read."""
    _convert(file, folder).save_pretrained(folder)


def convert_smollm2(file: Path, folder: Path) -> None:
    """`convert` for SmolLM2, whose pre-tokenizer takes digits apart; transformers reads it as GPT-2's."""
    tokenizer = _convert(file, folder)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)


def _convert(file: Path, folder: Path) -> PreTrainedTokenizerBase:
    """Writes the model, and returns the tokenizer that the file holds."""
    load_model(file).save_pretrained(folder)
    tokenizer = load_tokenizer(file)
    assert tokenizer is not None, "the file holds no tokenizer"
    return tokenizer
