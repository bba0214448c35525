"""What checking the hashes of files costs, beside reading the files without the check.

    python -m benchmarks.hashes [--repeats 25] [--quick]

Every reader runs with the check and right after it without, again and again. Figures are medians of processor time;
the share is the median over these pairs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from benchmarks.console import say
from sinkinterp.backends.load import load
from sinkinterp.data.packing import RECORD, PackedText, Record
from sinkinterp.data.sources import embedded_texts
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import read_record, seal
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure
from sinkinterp.report.readings import DIGEST
from sinkinterp.report.report import Report
from sinkinterp.runs.trained import trained
from sinkinterp.train.recipe import Recipe

CHECKS: Mapping[str, Callable[..., Any]] = {  # what stands in for each check
    "sinkinterp.backends.model_files.verify": lambda *_: None,
    "sinkinterp.data.packing.Corpus.record": lambda corpus: Record(**read_record(corpus.folder / RECORD)),
    "sinkinterp.report.readings._digest": lambda about, tensors: about[DIGEST],
    "sinkinterp.files.verify": lambda *_: None,
}


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Alternated pairs.")] = 25,
    quick: Annotated[bool, typer.Option(help="A minute: 3 pairs, which is noisy.")] = False,
) -> None:
    """Print the table."""
    repeats = 3 if quick else repeats
    say(f"{repeats} pairs of each reading: about {40 + 4 * repeats} s on an idle core, 30 s of them to make the files")
    disable_progress_bar()
    torch.set_num_threads(1)
    table = Table(title="Reading with and without the check of hashes", title_justify="left")
    for column in ("what is read", "with, ms", "without, ms", "share"):
        table.add_column(column, justify="left" if column == "what is read" else "right")
    with tempfile.TemporaryDirectory() as temporary:
        for name, read in track(readers(Path(temporary)).items(), "reading", console=Console(stderr=True)):
            pairs = [(seconds(read), seconds_unchecked(read)) for _ in range(repeats)]
            with_check, without = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
            share = statistics.median(a / b - 1 for a, b in pairs)
            table.add_row(name, f"{with_check:.1f}", f"{without:.1f}", f"{share:+.1%}")
            say(f"{name}: {with_check:.1f} ms with the check, {without:.1f} ms without, {share:+.1%}")
    table.caption = "--quick: the figures are noisy." if quick else None
    Console().print(table)


def readers(folder: Path) -> dict[str, Callable[[], object]]:
    """What is read, by its name."""
    recipe = Recipe(model=VARIANTS["softmax"], steps=2, batch=3)
    large = LMSpec(vocab=50_304, d_model=768, n_heads=12, n_layers=10, n_ctx=2048)
    build(large).save_pretrained(folder / "large")
    seal(folder / "large")
    trained(recipe, folder)
    corpus = replace(PackedText(), length=128)
    report = measure(load("sinkinterp/demo-softmax"), TokenSet.of(torch.arange(16).repeat(999, 1), "some"))
    report.save(folder / "report.safetensors")
    readers: dict[str, Callable[[], object]] = {
        "a checkpoint that ships: demo-softmax": lambda: load("sinkinterp/demo-softmax"),
        "a checkpoint that ships: text-softmax": lambda: load("sinkinterp/text-softmax"),
        "a finished run, found in the cache and loaded": lambda: trained(recipe, folder).subject(),
        "the packed docstrings": lambda: corpus.prepare(folder),
        "a report of 999 sequences": lambda: Report.load(folder / "report.safetensors"),
        "a model of 107M parameters, 427 MB": lambda: load(folder / "large"),
        "the docstrings": lambda: embedded_texts(folder),
    }
    for read in readers.values():
        read()  # once, so that what is made at the first reading is not measured
    return readers


def seconds(read: Callable[[], object]) -> float:
    """Processor time of one reading, of all threads."""
    start = time.process_time()
    read()
    return time.process_time() - start


def seconds_unchecked(read: Callable[[], object]) -> float:
    """Processor time of one reading where no hash is computed."""
    patches = [patch(name, stand_in) for name, stand_in in CHECKS.items()]
    for each in patches:
        each.start()
    try:
        return seconds(read)
    finally:
        for each in patches:
            each.stop()


if __name__ == "__main__":
    typer.run(main)
