"""TransformerLens bridges over transformers models."""

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from ..attention import Gap, tolerance_of
from ..checks import check_installed, refusal
from . import contract
from .attached import eval_mode

FIX = "use the Hugging Face backend: sinkinterp.load(model)"


def bridge_of(model: PreTrainedModel, tokenizer: Any = None) -> Any:
    """A `TransformerBridge` over a deep copy of a transformers model, with eager attention; booting rewires in place.

    A model of our own family goes through its Llama export, where it is Llama. Raises InputError where TransformerLens
    knows no such architecture, or computes other logits than transformers.
    """
    check_installed("transformer_lens", "pip install transformer-lens, or leave backend='transformer_lens' out")
    with refusal("this TransformerLens takes no model that is loaded", "use 4.3 or newer", (ImportError,)):
        from transformer_lens.model_bridge.sources import build_bridge_from_module
    name, export = type(model).__name__, getattr(model, "to_llama", None)
    model = model if export is None else export()
    copied = copy.deepcopy(model)
    copied.set_attn_implementation("eager")
    about = {"hf_config": copied.config, "tokenizer": copy.deepcopy(tokenizer)}
    # its own refusals, weights that it cannot take, and tokenizers in memory, which it reads again by their names
    kinds = (ValueError, RuntimeError, AssertionError, KeyError, OSError)
    with refusal(f"TransformerLens cannot run {name}", FIX, kinds):
        bridge = build_bridge_from_module(copied, type(copied).__name__, **about)
    if tokenizer is not None:  # a bridge puts BOS before every text, else; `run` reads what the tokenizer gives
        bridge.cfg.default_prepend_bos = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    tokens = contract.sample_tokens(model.get_input_embeddings().num_embeddings).to(model.device)
    with torch.no_grad(), eval_mode(model), eval_mode(copied):
        given = {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        before, after = (m(tokens, **given).logits for m in (model, copied))
    what = f"{name} under TransformerLens gives other logits than under transformers"
    Gap.of(after, before).check(tolerance_of(model.dtype), what, FIX)
    return bridge
