"""A text of a few kilobytes, the corpus that is packed from a file, and a tokenizer of bytes."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sinkinterp.data.packing import PackedText
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokenizers import ByteBPE


def text_in(folder: Path) -> Path:
    """A file of 99 texts in a folder."""
    file = folder / "text.txt"
    file.write_text("\n\n".join(f"{i} sinks gather on token {i % 7} of text {i * i}" for i in range(99)))
    return file


def packed(file: Path | str, vocab: int = 300) -> PackedText:
    return PackedText(source=Texts(str(file)), tokenizer=ByteBPE(vocab), length=11)


def byte_tokenizer(begins: str, **specials: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose first 256 tokens are bytes, and whose last one begins a text."""
    alphabet = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet | {begins: 256}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begins, **specials)
