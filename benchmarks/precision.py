"""How far measurements in bf16 are from those in fp32, on the same texts and weights.

    python -m benchmarks.precision [--sequences 32] [--length 128] [--quick] [--json FILE]

Weights and activations are rounded; scores, log-sum-exps and everything measured from them are fp32 in both. The null
is fp32 beside fp32, with one text in a pass.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

import sinkinterp as si
from benchmarks.console import say
from benchmarks.ways import HAS_REAL, REAL
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import write_file
from sinkinterp.metrics.estimates import difference, estimate, intervals
from sinkinterp.metrics.importance import sink_rate
from sinkinterp.metrics.instruments import LOSS
from sinkinterp.metrics.metric import METRICS as LOSSES
from sinkinterp.metrics.qk import QK_ANGLES
from sinkinterp.report.report import Report
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import Cell, Table

EPSILON = 0.3
ByText = Callable[[Report], Tensor]  # one number a text, and perhaps a layer and head
QUANTITIES: Mapping[str, ByText] = {
    "alpha_1 (0 to 1)": lambda report: report.alpha(),
    f"Sink_1, epsilon {EPSILON}": lambda report: sink_rate(report.alpha(), EPSILON),
    "cosine of queries with key 1": lambda report: report.extra(QK_ANGLES)[..., 0],
    "cosine of queries with other keys": lambda report: report.extra(QK_ANGLES)[..., 1],
    "loss, nats a token": lambda report: report.extra(LOSSES[0]),
}


def main(
    sequences: Annotated[int, typer.Option(min=2, help="How many texts.")] = 32,
    length: Annotated[int, typer.Option(min=4, help="Tokens of each.")] = 128,
    quick: Annotated[bool, typer.Option(help="6 texts of 64 tokens: under a minute, with wide intervals.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Print the table of differences."""
    if not HAS_REAL:
        raise SystemExit(f"{REAL} is not there; `make models` downloads it")
    if quick:
        sequences, length = 6, 64
    say(f"{sequences} texts of {length} tokens, three times: about a minute for 2,000 tokens on one core")
    disable_progress_bar()
    texts = Inputs(length, sequences).token_set(si.load(REAL), REAL)
    table = precision_table(REAL, texts)
    print(table.to_markdown())
    if json_out is not None:
        write_file(json_out, {"title": table.title, "note": table.note, "rows": list(table.records())})


def precision_table(name: str, texts: TokenSet) -> Table:
    """Every quantity in fp32 and bf16, their paired difference, the largest of one head in one text, and the null."""
    single, half = (_measured(name, texts, dtype) for dtype in (torch.float32, torch.bfloat16))
    again = [_measured(name, TokenSet.of(row[None], "one text"), torch.float32) for row in texts.tokens]
    rows = tuple(_rows(single, half, again))
    note = (
        f"{name}, {single.protocol.line()}; differences are bf16 - fp32, paired by text, {intervals(len(texts.tokens))}"
        ". One is a head of a layer in a text; of Sink_1, a text; of the loss, a token. "
        f"torch {version('torch')} on the CPU."
    )
    return Table.of("bf16 beside fp32", note, rows)


def _rows(single: Report, half: Report, again: list[Report]) -> Iterator[Mapping[str, Cell]]:
    for name, by_text in QUANTITIES.items():
        fp32, bf16 = by_text(single), by_text(half)
        null = torch.cat([by_text(report) for report in again])
        means = [values.flatten(1).nanmean(1) if values.ndim > 1 else values for values in (fp32, bf16)]
        yield {
            "quantity": name,
            "fp32": str(estimate(means[0])),
            "bf16": str(estimate(means[1])),
            "difference": str(difference(means[0], means[1], paired=True)),
            "mean size of one": f"{(bf16 - fp32).abs().nanmean():.2g}",
            "largest of one": f"{_largest(bf16 - fp32):.2g}",
            "largest of one, fp32 beside fp32 (null)": f"{_largest(null - fp32):.2g}",
        }


def _largest(values: Tensor) -> float:
    return values.abs().nan_to_num(0).max().item()


def _measured(name: str, texts: TokenSet, dtype: torch.dtype) -> Report:
    began = time.monotonic()
    report = si.measure(
        si.load(name, dtype=dtype), texts, positions=(0,), instruments=((QK_ANGLES,), LOSS), progress=False
    )
    if len(texts.tokens) > 1:
        say(f"{dtype}: {len(texts.tokens)} texts in {time.monotonic() - began:.0f} s, Sink_1 {report.sink_rate()}")
    return report


if __name__ == "__main__":
    typer.run(main)
