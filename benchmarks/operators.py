"""How many operators a measurement launches, over those of the plain pass. The count is exact on every machine.

    python -m benchmarks.operators

On a GPU small models wait for launches, so this ratio bounds what measuring costs there. An operator counts unless it
returns a view. Models have 6 layers and random weights; 3 sequences of 17 tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import sinkinterp as si

LAYERS, VOCAB, TEXTS, LENGTH = 6, 101, 3, 17
_SMALL: Mapping[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: GPT2LMHeadModel(
        GPT2Config(n_layer=LAYERS, n_embd=32, n_head=4, vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)
    ),
    "Llama": lambda: LlamaForCausalLM(LlamaConfig(**_SMALL)),
    "Mistral, a window of 5": lambda: MistralForCausalLM(MistralConfig(sliding_window=5, **_SMALL)),
}
WAYS: Mapping[str, int | None] = {"first position": 0, "all positions": None}


@dataclass
class Operators(TorchDispatchMode):
    """Counts the operators that run in the block and do not return a view."""

    count: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = operator.is_view and operator.name() != "aten::lift_fresh"
        self.count += not is_view and operator.name() != "aten::_unsafe_view"
        return operator(*args, **(kwargs or {}))


def counted(run: Callable[[], Any]) -> int:
    """How many operators a function runs."""
    with torch.no_grad(), Operators() as operators:
        run()
    return operators.count


def counts(name: str) -> tuple[int, dict[str, int]]:
    """The operators of a model's plain pass, and those of each way to measure it."""
    model, tokens = MODELS[name]().eval(), torch.randint(0, VOCAB, (TEXTS, LENGTH))
    subject = si.load(model)
    si.measure(subject, tokens, positions=0)  # the first of a process also sets libraries up
    ways = {way: counted(lambda at=at: si.measure(subject, tokens, positions=at)) for way, at in WAYS.items()}  # type: ignore[misc]
    return counted(lambda: model(tokens)), ways


def main() -> None:
    """Prints a line for each model and way."""
    for name in MODELS:
        plain, ways = counts(name)
        for way, count in ways.items():
            print(f"{name}, {way}: {count} operators, {count / plain:.2f} times the {plain} of the plain pass")


if __name__ == "__main__":
    main()
