"""Edits that the methods of a TransformerLens bridge see, and QK angles. python examples/inside_transformer_lens.py"""

import torch
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import AutoModelForCausalLM, GPT2Config

import sinkinterp as si
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.interventions import ZeroKeyBias

model = AutoModelForCausalLM.from_config(GPT2Config(n_embd=48, n_layer=3, n_head=4), attn_implementation="eager")
bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)  # or boot_transformers("gpt2")
tokens = torch.randint(50_000, (5, 16))
sigmoid = si.PatchNormalization(Sigmoid(), heads=[(1, 2)])
for name, edit in {"p1 <-> p5": si.SwapPositions(0, 4), "b_K = 0": ZeroKeyBias(), "sigmoid in 1.2": sigmoid}.items():
    with si.patched(bridge, edit):
        _, cache = bridge.run_with_cache(tokens)
    print(f"{name:15} {si.sinks(cache, epsilon=0.1).texts()[0]}")
print("mean cosine with the first key:", si.qk_cosines(bridge, tokens).nanmean())
