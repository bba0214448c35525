"""Families whose attention modules compute attention themselves, outside transformers' attention interface.

While such a model is recorded, one method of each of its attention modules is replaced by a function of this file. It
makes the same queries, keys, values, mask and bias, and leaves the rest to `Attend`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from ..attention import HeadOutput
from ..checks import refuse_first
from .attached import computed_by

# Returns what the heads of one layer return, of q, k, v, a mask (pairs that may attend, or an additive one), the scale
# and a key bias. It shows the recorder their call. The bias is added to scaled scores, up to a constant for each query:
# one row for all queries, as transformers stores ALiBi.
Attend = Callable[..., HeadOutput]


@dataclass(frozen=True)
class Family:
    """method: that of the attention module which is replaced. function: what replaces it, of the module and `Attend`.

    feed_forward: inside a block, the last module of the feed-forward branch, where its `mlp` also adds the residual.
    note: what a reader of numbers must know of a module's attention; empty for nothing.
    """

    method: str
    function: Callable[..., Any]
    feed_forward: str | None = None
    note: Callable[[Any], str] = lambda module: ""


def is_known(model: nn.Module) -> bool:
    """Whether the file of a model has an attention module of these families."""
    return _name_of(model).partition(".")[0] in {name.partition(".")[0] for name in FAMILIES}


def family_of(block: nn.Module) -> Family | None:
    """The family of a block; None where its attention goes through transformers' interface, or is unknown."""
    return next((family for _, _, family in _attention_of([block])), None)


def note_of(blocks: Sequence[nn.Module]) -> str:
    """What a reader of numbers must know of the attention of these blocks; empty for nothing."""
    return next((note for _, module, family in _attention_of(blocks) if (note := family.note(module))), "")


def replaced(blocks: Sequence[nn.Module], attend: Attend) -> AbstractContextManager[None]:
    """Here, the attention modules of these blocks leave attention to `attend`, whose first argument is the layer."""
    functions, method = {}, "forward"
    for layer, module, family in _attention_of(blocks):
        functions[module], method = partial(family.function, module, partial(attend, layer)), family.method
    return computed_by(functions, method)


def _attention_of(blocks: Sequence[nn.Module]) -> Iterator[tuple[int, nn.Module, Family]]:
    """The blocks that attend in code of their own: their number, the first such module, and its family."""
    for layer, block in enumerate(blocks):
        known = (module for module in block.modules() if _name_of(module) in FAMILIES)
        if (module := next(known, None)) is not None:
            yield layer, module, FAMILIES[_name_of(module)]


def _name_of(module: nn.Module) -> str:
    return f"{type(module).__module__.rpartition('.')[2]}.{type(module).__name__}"


_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def _bert(
    module: Any, attend: Attend, hidden_states: Tensor, attention_mask: Tensor | None = None,
    sinusoidal_pos: Any = None, past_key_values: Any = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    q, k, v = _projected(module, hidden_states, ("query", "key", "value"), (module.num_attention_heads, -1))
    if sinusoidal_pos is not None:
        qkv = (q, k, v) if module.rotary_value else (q, k)
        q, k, *rotated = module.apply_rotary_position_embeddings(sinusoidal_pos, *qkv)
        v = rotated[0] if rotated else v
    k, v = _with_past(module, past_key_values, k, v)
    return _merged(attend(q, k, v, attention_mask, q.shape[-1] ** -0.5)), None


def _projected(module: Any, x: Tensor, names: Sequence[str], heads: tuple[int, int]) -> Iterator[Tensor]:
    """Queries, keys and values by head, from the linear maps of these names. heads: their number and d_head, or -1."""
    return (getattr(module, name)(x).unflatten(2, heads).transpose(1, 2) for name in names)


def _with_past(module: Any, cache: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values behind those that a cache holds."""
    return (k, v) if cache is None else getattr(cache, "self_attention_cache", cache).update(k, v, module.layer_idx)


def _git(
    module: Any, attend: Attend, hidden_states: Tensor, attention_mask: Tensor | None, past: Any = None, **_: Any
) -> tuple[Tensor, None]:
    return _bert(module, attend, hidden_states, attention_mask, past_key_values=past)


def _bloom(
    module: Any, attend: Attend, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Tensor | None,
    layer_past: Any = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    k, v = _with_past(module, layer_past, k, v)
    bias = alibi.unflatten(0, (len(q), -1))[:1]  # batch head 1 key, alike for all sequences
    z = attend(q, k, v, attention_mask, module.inv_norm_factor, bias)
    return module.dense(_merged(z)) + residual, None


def _divided(
    by: str, module: Any, attend: Attend, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None
) -> tuple[Tensor, None]:
    return attend(query, key, value, attention_mask, 1 / getattr(module, by)), None


def _diffllama(
    module: Any, attend: Attend, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None, past_key_values: Any = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    q, k, v = _projected(module, hidden_states, _PROJECTIONS, (-1, module.head_dim))
    q, k = sys.modules[type(module).__module__].apply_rotary_pos_emb(q, k, *position_embeddings)
    k, v = _with_past(module, past_key_values, k, v)
    both = torch.cat([half.repeat(1, 2, 1, 1) for half in v.chunk(2, dim=1)], -1)  # every head reads two values
    first, second = attend(q, k, both, attention_mask, module.scaling).transpose(1, 2).chunk(2, dim=2)
    products = ((module.lambda_q1, module.lambda_k1), (module.lambda_q2, module.lambda_k2))
    one, two = ((a * b).sum(-1, dtype=torch.float32).exp().to(q.dtype) for a, b in products)
    z = first - (one - two + module.lambda_init) * second
    return module.o_proj(((1 - module.lambda_init) * module.groupnorm(z)).flatten(2)), None


def _falcon(
    module: Any, attend: Attend, hidden_states: Tensor, alibi: Tensor | None, attention_mask: Tensor,
    layer_past: Any = None, position_embeddings: Any = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    q, k, v = (x.transpose(1, 2) for x in module._split_heads(module.query_key_value(hidden_states)))
    bias = None
    if alibi is None:
        q, k = sys.modules[type(module).__module__].apply_rotary_pos_emb(q, k, *position_embeddings)
    else:
        times = 2 if _adds_alibi_twice(module) else 1
        bias = times * alibi[:1] * module.inv_norm_factor
        attention_mask = attention_mask > torch.finfo(attention_mask.dtype).min / 2  # the mask holds the bias too
    k, v = _with_past(module, layer_past, k, v)
    repeats = k.shape[1] // module.num_kv_heads
    z = attend(q, k[:, ::repeats], v[:, ::repeats], attention_mask, module.inv_norm_factor, bias)
    return module.dense(_merged(z)), None


def _adds_alibi_twice(module: Any) -> bool:
    """Tells if this is Falcon's eager attention, which adds ALiBi to the mask and to the scores."""
    return module.config.alibi and module.config._attn_implementation == "eager"


def _falcon_note(module: Any) -> str:
    return "eager Falcon adds ALiBi twice, sdpa once" if _adds_alibi_twice(module) else ""


def _gpt_neo(
    module: Any, attend: Attend, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
) -> tuple[Tensor, None]:
    return attend(query, key, value, _and_its_own(module, query, key, attention_mask), scale=1.0), None


def _mpt(
    module: Any, attend: Attend, hidden_states: Tensor, position_bias: Tensor, past_key_values: Any = None,
    attention_mask: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    qkv = module.Wqkv(hidden_states)
    if module.clip_qkv:
        qkv = qkv.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (x.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for x in qkv.chunk(3, dim=2))
    k, v = _with_past(module, past_key_values, k, v)
    allowed = None if attention_mask is None else ~attention_mask
    bias = position_bias[None, ..., -k.shape[2] :].to(q.dtype)
    return module.out_proj(_merged(attend(q, k, v, allowed, module.softmax_scale, bias))), None


def _openai_gpt(
    module: Any, attend: Attend, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, *_: Any
) -> list[Tensor]:
    scale = v.shape[-1] ** -0.5 if module.scale else 1.0
    return [attend(q, k.mT, v, _and_its_own(module, q, k.mT, attention_mask), scale)]


def _xglm(
    module: Any, attend: Attend, hidden_states: Tensor, past_key_values: Any = None,
    attention_mask: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    q, k, v = _projected(module, hidden_states, _PROJECTIONS, (module.num_heads, -1))
    k, v = _with_past(module, past_key_values, k, v)
    return module.out_proj(_merged(attend(q, k, v, attention_mask, module.scaling))), None


def _merged(z: HeadOutput) -> Tensor:
    """Returns what heads return, side by side: `batch pos (head d_value)`."""
    return z.transpose(1, 2).flatten(2)


def _and_its_own(module: Any, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """An additive mask together with the module's own, a table of pairs that may attend."""
    n, keys = q.shape[2], k.shape[2]
    allowed = module.bias[:, :, keys - n : keys, :keys].bool()
    return allowed if mask is None else torch.where(allowed, mask, torch.finfo(mask.dtype).min)


FAMILIES: Mapping[str, Family] = {  # by the file and class of the attention module
    "modeling_big_bird.BigBirdSelfAttention": Family("forward", _bert),
    "modeling_bloom.BloomAttention": Family("forward", _bloom, "mlp.dense_4h_to_h"),
    "modeling_codegen.CodeGenAttention": Family("_attn", partial(_divided, "scale_attn")),
    "modeling_diffllama.DiffLlamaAttention": Family("forward", _diffllama),
    "modeling_falcon.FalconAttention": Family("forward", _falcon, note=_falcon_note),
    "modeling_git.GitSelfAttention": Family("forward", _git),
    "modeling_gptj.GPTJAttention": Family("_attn", partial(_divided, "scale_attn")),
    "modeling_gpt_neo.GPTNeoSelfAttention": Family("_attn", _gpt_neo),
    "modeling_gpt_neox_japanese.GPTNeoXJapaneseAttention": Family("_attn", partial(_divided, "norm_factor")),
    "modeling_megatron_bert.MegatronBertSelfAttention": Family("forward", _bert),
    "modeling_mpt.MptAttention": Family("forward", _mpt, "ffn.down_proj"),
    "modeling_mvp.MvpAttention": Family("forward", _xglm),
    "modeling_openai.Attention": Family("_attn", _openai_gpt),
    "modeling_rembert.RemBertSelfAttention": Family("forward", _bert),
    "modeling_roformer.RoFormerSelfAttention": Family("forward", _bert),
    "modeling_trocr.TrOCRAttention": Family("forward", _xglm),
    "modeling_xglm.XGLMAttention": Family("forward", _xglm),
}


def mask_of_chosen(module: Any, n_keys: int, mask: Tensor | None, extra: Mapping[str, Any]) -> Tensor | None:
    """The mask without the pairs that a module has not chosen; the mask itself where attention is dense.

    extra: the keyword arguments of the attention interface. Raises InputError for a module that chooses blocks of keys
    (MiniMax-M3), and for one that attends to summaries of many tokens (DeepSeek-V4).
    """
    faults = {
        "chooses blocks of keys": extra.get("block_indices") is not None,
        "attends to summaries of many tokens": getattr(module, "compressor", None) is not None,
    }
    refuse_first(faults, type(module).__name__, "keys cannot be read by token")
    indices: Int[Tensor, "batch query chosen"] | None = extra.get("indices")
    if indices is None:
        return mask
    chosen: Bool[Tensor, "batch 1 query key"] = torch.zeros(
        *indices.shape[:2], n_keys, dtype=torch.bool, device=indices.device
    ).scatter(-1, indices.long(), value=True)[:, None]
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)
