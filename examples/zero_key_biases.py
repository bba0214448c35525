"""Zeroing b_K changes no pattern without rotary positions: a null control. python examples/zero_key_biases.py [MODEL]

b_K adds the same number to all scores of a query, and softmax cancels it. A rotation makes it depend on the key's
position.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

import sinkinterp as si
from sinkinterp.data.tokens import random_tokens
from sinkinterp.interventions import ZeroKeyBias, ZeroQueryBias
from sinkinterp.metrics.estimates import estimate

SIZES = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
SIZES |= {"bos_token_id": None, "eos_token_id": None}


def random_model(config):
    """A model with random weights and random biases: transformers sets biases to zero."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return model


models = {"GPT-2, random": GPT2Config(**SIZES), "Qwen2 (rotary), random": Qwen2Config(**SIZES, num_key_value_heads=2)}
subjects = [si.load(name) for name in sys.argv[1:]] or [si.load(random_model(c), name=n) for n, c in models.items()]
for subject in subjects:
    tokens = random_tokens(subject.shape.vocab, length=32, sequences=25).tokens
    patterns = {"pattern": lambda call: call.pattern()}
    before = subject.run(tokens, reads=patterns)["pattern"]
    for label, edit in {"b_K = 0": ZeroKeyBias(), "b_Q = 0": ZeroQueryBias()}.items():
        change = (subject.run(tokens, reads=patterns, edits=[edit])["pattern"] - before).abs()
        print(f"{subject.name:24} {label}: largest change of a weight {estimate(change.amax((1, 2, 3, 4)))}")
