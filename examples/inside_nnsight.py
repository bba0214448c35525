"""Edits that an nnsight trace sees, and QK angles of its model. python examples/inside_nnsight.py"""

import torch
from nnsight import NNsight
from transformers import AutoModelForCausalLM, GPT2Config

import sinkinterp as si
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.interventions import ZeroKeyBias

config = GPT2Config(n_embd=48, n_layer=3, n_head=4, initializer_range=0.3)
model = NNsight(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
tokens = torch.randint(50_000, (5, 16))
sigmoid = si.PatchNormalization(Sigmoid(), heads=[(1, 2)])
for name, edit in {"p1 <-> p5": si.SwapPositions(0, 4), "b_K = 0": ZeroKeyBias(), "sigmoid in 1.2": sigmoid}.items():
    with si.patched(model, edit), model.trace(tokens, output_attentions=True):
        attentions = model.output.attentions.save()
    print(f"{name:15} {si.sinks(attentions, epsilon=0.1).texts()[0]}")
print("mean cosine with the first key:", si.qk_cosines(model, tokens).nanmean())
