"""Tiny random models with peaked attention, so that agreement means something."""

from copy import deepcopy
from dataclasses import dataclass, fields
from functools import cache

import torch
import transformers

from sinkinterp.attention.sites import Edit
from sinkinterp.backends.load import load
from sinkinterp.backends.subject import Subject
from sinkinterp.report.report import Report

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
CONFIGS = {
    "gpt2": transformers.GPT2Config(**GPT2, bos_token_id=None, eos_token_id=None),
    "llama": transformers.LlamaConfig(**SIZES, num_key_value_heads=4),
    "llama with grouped queries": transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "mistral with a window": transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=5),
    "opt": transformers.OPTConfig(**SIZES, ffn_dim=40, word_embed_proj_dim=48),
    "llama with biases": transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True),
    "qwen2": transformers.Qwen2Config(**SIZES, num_key_value_heads=2),
    "qwen3 with normed queries": transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12),
    "qwen3-moe": transformers.Qwen3MoeConfig(
        **SIZES, num_key_value_heads=2, head_dim=12, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
    "gemma3": transformers.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=12, sliding_window=5),
    "jamba with mamba layers": transformers.JambaConfig(
        **SIZES, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False
    ),
    "pythia": transformers.GPTNeoXConfig(**SIZES),
    "gemma2 with softcap": transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=12, sliding_window=5),
    "gpt-oss with sink logits": transformers.GptOssConfig(
        **SIZES, num_key_value_heads=2, head_dim=12, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}  # fmt: skip
OTHERS = {  # of single tests
    "deepseek-v3 with wide values": transformers.DeepseekV3Config(
        **SIZES, num_key_value_heads=4, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8,
        v_head_dim=20, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=8,
    ),
}  # fmt: skip
if hasattr(transformers, "Gemma4TextConfig"):  # not in 5.2, which kvpress needs
    OTHERS["gemma4 with shared keys"] = transformers.Gemma4TextConfig(  # as E2B and E4B are published
        vocab_size=VOCAB, vocab_size_per_layer_input=VOCAB, hidden_size=48, hidden_size_per_layer_input=8,
        intermediate_size=40, num_hidden_layers=6, num_kv_shared_layers=2, num_attention_heads=4, num_key_value_heads=2,
        layer_types=["sliding_attention", "full_attention"] * 3, head_dim=12, global_head_dim=20, sliding_window=5,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
LEARNED_POSITIONS = ("gpt2", "opt")
ATTENTION_LAYERS = dict.fromkeys(CONFIGS, (0, 1, 2)) | {"jamba with mamba layers": (1,)}


@dataclass(frozen=True, repr=False)
class ShiftPositions(Edit):
    """Tokens from position `start` on move `by` positions later, also beyond what a table has."""

    by: int
    start: int = 1

    def position_ids(self, ids):
        return ids + self.by * (torch.arange(len(ids), device=ids.device) >= self.start)


PEAKED = ("q_proj", "k_proj", "c_attn", "query_key_value", "wpe", "sinks")


def peaked(model: transformers.PreTrainedModel, parts: tuple[str, ...] = PEAKED) -> transformers.PreTrainedModel:
    """The model, with larger queries, keys and positions, and with biases."""
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if any(part in parameter_name for part in parts):
                parameter.mul_(8)
            if parameter_name.endswith("bias"):
                parameter.normal_(std=0.3)  # transformers draws none
    return model


def model_of(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return peaked(transformers.AutoModelForCausalLM.from_config(deepcopy((CONFIGS | OTHERS)[name])).eval())


@cache
def subject_of(name: str, backend: str = "huggingface") -> Subject:
    """One subject for all tests that leave it as it was: what checks it when it is made takes long."""
    return load(model_of(name), backend=backend)


def tokens_of(length: int = 17) -> torch.Tensor:
    return torch.randint(VOCAB, (5, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def bare_logits(model: transformers.PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Those of a model that we have no part in."""
    return model.eval()(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits


def state_of(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def has_weights(model: transformers.PreTrainedModel, state: dict[str, torch.Tensor]) -> bool:
    return all(tensor.equal(state[name]) for name, tensor in model.state_dict().items())


def everything_of(model: torch.nn.Module) -> tuple:
    """All that a user could find changed in a model."""
    modules = [*model.modules()]
    hooks = [hook for m in modules for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    kept = [(module.training, sorted(vars(module))) for module in modules]
    weights = [value.cpu().flatten().view(torch.uint8).numpy().tobytes() for value in model.state_dict().values()]
    return hooks, kept, getattr(getattr(model, "config", None), "_attn_implementation", None), weights


def assert_equal_reports(ours: Report, theirs: Report) -> None:
    tensors = [field.name for field in fields(theirs) if isinstance(getattr(theirs, field.name), torch.Tensor)]
    assert len(tensors) >= 6 and ours.attention_layers == theirs.attention_layers
    assert (ours.slot_importance is None) == (theirs.slot_importance is None)
    for name in tensors:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-5)
