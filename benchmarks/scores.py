"""What exact weights cost, and how exact they are, where scores are large.

    python -m benchmarks.scores [--length 512] [--repeats 5] [--quick] [--json FILE]

A weight is exp(score - log-sum-exp), and a kernel rounds its log-sum-exp at the size of the scores. Calls whose
log-sum-exps exceed `LARGE` get their weights by whole rows. Here this is timed beside the kernel's log-sum-exps at
every size, and both are compared with eager attention. An error is the largest of an importance, 0 to 1, beside eager
attention in fp64. The genuine model is Qwen2.5-Coder. The others are random, and scores are large in all their heads.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from unittest import mock

import torch
import typer
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import sinkinterp as si
from benchmarks.console import say
from benchmarks.costs import time_ratio
from benchmarks.ways import Case, RealSetting, Run, Way, all_positions, first_position
from sinkinterp.attention import call
from sinkinterp.backends.named_models import downloaded
from sinkinterp.files import write_file
from sinkinterp.metrics.importance import PAPER
from sinkinterp.table import Cell, Table

GENUINE = "qwen2.5-coder-0.5b"
WAYS: Mapping[str, tuple[Way, int | None]] = {"first": (first_position, 0), "all": (all_positions, None)}


@dataclass(frozen=True)
class Biased:
    """A Qwen2 with random weights, whose queries and keys have biases of this size."""

    size: float
    length: int
    layers: int = 4
    width: int = 896
    heads: int = 14
    device: str = "cpu"

    def model(self) -> PreTrainedModel:
        """The same weights at every call."""
        torch.manual_seed(0)
        config = Qwen2Config(
            hidden_size=self.width, intermediate_size=4 * self.width, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=2, vocab_size=5003, bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.bias", "k_proj.bias")):
                nn.init.normal_(parameter, std=self.size)
        return model

    def tokens(self) -> Tensor:
        """One sequence, `1 pos`; the same at every call."""
        return torch.randint(5003, (1, self.length), generator=torch.Generator().manual_seed(0))


def main(
    length: Annotated[int, typer.Option(min=2, help="Tokens of the sequence.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Alternated pairs for every ratio of times.")] = 5,
    quick: Annotated[bool, typer.Option(help="Small random models, 200 tokens, 1 pair: a few seconds.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Print the table of times and errors."""
    torch.set_num_threads(1)
    cases: dict[str, Case] = {f"random, biases of {size}": Biased(size, length) for size in (1, 30, 300)}
    if GENUINE in downloaded():
        cases = {"Qwen2.5-Coder-0.5B": RealSetting(length, 1, name=GENUINE)} | cases
    if quick:
        cases, repeats = {f"biases of {size}": Biased(size, 200, 2, 32, 4) for size in (1, 300)}, 1
    say(f"{len(cases)} models of {length} tokens: a minute or two each on an idle core")
    table = Table.of("Exact weights of large scores", f"T={length}, n=1, fp32, one thread", rows(cases, repeats))
    print(table.to_markdown())
    if json_out is not None:
        write_file(json_out, {"title": table.title, "note": table.note, "rows": list(table.records())})


def rows(cases: Mapping[str, Case], repeats: int) -> list[Mapping[str, Cell]]:
    """A row for each model, of the first position and of all."""
    return [row for name, case in cases.items() for row in _rows(name, case, repeats)]


def _rows(name: str, case: Case, repeats: int) -> Iterator[Mapping[str, Cell]]:
    model, tokens = case.model(), case.tokens()
    subject = si.load(model)
    largest = subject.run(tokens, reads={"size": _size}, logits=False)["size"].max().item()
    ours = _importance(subject, tokens)
    with mock.patch.object(call, "LARGE", math.inf):
        kernels = _importance(subject, tokens)
    eager = _eager(model, tokens)
    exact = _eager(model.double(), tokens)
    for at, (way, _) in WAYS.items():
        shown = {"the kernel's log-sum-exps": kernels[at], "ours": ours[at], "eager": eager[..., : ours[at].shape[-1]]}
        errors = {f"error, {what}": f"{_largest(x - exact[..., : x.shape[-1]]):.1e}" for what, x in shown.items()}
        yield {
            "model": name,
            "largest log-sum-exp": f"{largest:,.0f}",
            "positions": at,
            "time over that by the kernel's": f"{time_ratio(way, case, repeats, by_log_sums(way)):.3f}",
            **errors,
        }


def by_log_sums(way: Way) -> Way:
    """The way with the kernel's log-sum-exps at every size of scores."""

    def made(model: PreTrainedModel) -> Run:
        run = way(model)

        def patched(tokens: Tensor) -> object:
            with mock.patch.object(call, "LARGE", math.inf):
                return run(tokens)

        return patched

    return made


def _importance(subject: si.Subject, tokens: Tensor) -> dict[str, Tensor]:
    """Importance of the first position, and of all."""
    return {
        name: si.measure(subject, tokens, positions=at, convention=PAPER, progress=False).importance
        for name, (_, at) in WAYS.items()
    }


@torch.no_grad()
def _eager(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Importance by eager attention, `sequence layer head position`."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(tokens, output_attentions=True, use_cache=False).attentions, 1)
    model.set_attn_implementation(before)
    return attentions.double().sum(3) / torch.arange(tokens.shape[1], 0, -1)


def _size(attended: call.AttentionCall) -> Tensor:
    return attended.log_normaliser().abs().amax((1, 2))[:, None]


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item()


if __name__ == "__main__":
    typer.run(main)
