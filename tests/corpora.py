"""A text of a few kilobytes, and the corpus that is packed from a file."""

from pathlib import Path

from sinkinterp.data.packing import PackedText
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokenisers import ByteBPE


def text_in(folder: Path) -> Path:
    """A file of 99 texts in a folder."""
    file = folder / "text.txt"
    file.write_text("\n\n".join(f"{i} sinks gather on token {i % 7} of text {i * i}" for i in range(99)))
    return file


def packed(file: Path | str, vocab: int = 300) -> PackedText:
    return PackedText(source=Texts(str(file)), tokenizer=ByteBPE(vocab), length=11)
