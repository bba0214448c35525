"""SmolLM2 from a GGUF file to a transformers folder, its weights dequantised to float32."""

from pathlib import Path

from tokenizers import pre_tokenizers

from sinkinterp.backends.files.model_files import load_model, load_tokenizer


def convert(file: Path, folder: Path) -> None:
    """Writes a model folder of transformers with its tokenizer. Raises InputError for a file that cannot be read."""
    load_model(file).save_pretrained(folder)
    tokenizer = load_tokenizer(file)
    assert tokenizer is not None, "the file holds no tokenizer"
    # the file names the pre-tokenizer "smollm", which takes digits apart first; transformers reads it as GPT-2's
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
