"""What measuring costs: CPU time over that of the plain SDPA forward pass, GPT-2-small shape, one thread.

    python benchmarks/measure.py [--length 2048] [--repeats 5]

Random weights, one sequence; the ways are run in turn and each ratio is the median over turns of its time over that
turn's plain forward. The plain forward against itself shows the noise of the machine.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel

from sinkinterp.adapters.huggingface import HuggingFaceSubject
from sinkinterp.measurement import measure


def cpu_seconds(way: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    way()
    return time.process_time() - start


def ways(length: int) -> dict[str, Callable[[], object]]:
    """The plain forward pass, itself again, and what is compared with it."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=length)).eval()
    subject = HuggingFaceSubject(model)
    tokens = torch.randint(model.config.vocab_size, (1, length))

    def forward(implementation: str, **options: bool) -> None:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            model(tokens, use_cache=False, **options)
        model.set_attn_implementation("sdpa")

    return {
        "plain SDPA forward": lambda: forward("sdpa"),
        "plain SDPA forward, again": lambda: forward("sdpa"),
        "measure, first position": lambda: measure(subject, tokens, positions=(0,)),
        "measure, all positions": lambda: measure(subject, tokens),
        "eager forward, patterns kept": lambda: forward("eager", output_attentions=True),
    }


def main(
    length: Annotated[int, typer.Option(help="Tokens of the sequence.")] = 2048,
    repeats: Annotated[int, typer.Option(help="Turns of all ways.")] = 5,
) -> None:
    """Print the table of ratios."""
    torch.set_num_threads(1)
    todo = ways(length)
    for way in todo.values():
        way()
    turns = [{name: cpu_seconds(way) for name, way in todo.items()} for _ in range(repeats)]
    table = Table(title=f"T={length}, GPT-2-small shape, fp32, one thread, median of {repeats} alternated turns")
    for heading in ("way", "CPU seconds", "ratio to the plain forward", "lowest", "highest"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name in todo:
        ratios = sorted(turn[name] / turn["plain SDPA forward"] for turn in turns)
        seconds = statistics.median(turn[name] for turn in turns)
        table.add_row(name, f"{seconds:.2f}", *(f"{r:.3f}" for r in (statistics.median(ratios), ratios[0], ratios[-1])))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
