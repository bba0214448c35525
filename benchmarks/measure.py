"""What measuring costs: CPU time over that of the plain SDPA forward pass, GPT-2-small shape, one thread.

    python benchmarks/measure.py [--length 2048] [--repeats 5]

Random weights, one sequence. Every way runs right after a plain forward, again and again; its ratio is the median over
these pairs. The plain forward against itself shows the noise of the machine.
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

PLAIN = "plain SDPA forward"


def cpu_seconds(way: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    way()
    return time.process_time() - start


def ways(length: int) -> dict[str, Callable[[], object]]:
    """The plain forward pass and what is compared with it."""
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
        PLAIN: lambda: forward("sdpa"),
        "measure, first position": lambda: measure(subject, tokens, positions=(0,)),
        "measure, all positions": lambda: measure(subject, tokens),
        "eager forward, patterns kept": lambda: forward("eager", output_attentions=True),
    }


def main(
    length: Annotated[int, typer.Option(help="Tokens of the sequence.")] = 2048,
    repeats: Annotated[int, typer.Option(help="Pairs for every way.")] = 9,
) -> None:
    """Print the table of ratios."""
    torch.set_num_threads(1)
    todo = ways(length)
    for way in todo.values():
        way()
    pairs = {name: [(cpu_seconds(todo[PLAIN]), cpu_seconds(way)) for _ in range(repeats)] for name, way in todo.items()}
    table = Table(title=f"T={length}, GPT-2-small shape, fp32, one thread, {repeats} alternated pairs a row")
    for heading in ("way", "median CPU s", "ratio, median of pairs", "ratio of fastest"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, runs in pairs.items():
        plain, seconds = zip(*runs, strict=True)
        ratio = statistics.median(own / other for other, own in runs)
        table.add_row(name, f"{statistics.median(seconds):.2f}", f"{ratio:.3f}", f"{min(seconds) / min(plain):.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
