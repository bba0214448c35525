"""Which causal architectures can be measured: each is built tiny, with random weights, and compared with transformers.

A row of the table is one family: the name that transformers gives to a configuration.
"""

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..attention.call import AttentionCall
from ..attention.shapes import Pattern
from ..backends.contract import sample_tokens
from ..backends.load import load
from ..backends.subject import Subject
from ..errors import InputError
from ..table import Cell, Table
from .measure import measure
from .parity import TOLERANCE, dense_patterns, eager_copy

FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
MEASURED, NO_ORACLE, REFUSED = "measured", "measured, not compared", "refused"
NOT_BUILT, DIFFERS, ERROR = "not built", "DIFFERS", "ERROR"
MOST_PARAMETERS = 20_000_000  # of a model that counts as tiny
_VOCAB = 97

_HEAD = 16
# what configurations call their sizes; those that a configuration has are set
_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "encoder_hash_byte_group_vocab"), _VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "linear_key_head_dim", "linear_value_head_dim"), _HEAD),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 40),
    **dict.fromkeys(("ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "shared_intermediate_size"), 40),
    **dict.fromkeys(("ffn_hidden_size", "expert_ffn_hidden_size"), 40),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k", "zero_expert_num"), 2
    ),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 32),
    **dict.fromkeys(("v_head_dim", "index_head_dim"), _HEAD),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("mamba_d_ssm", "attention_hidden_size"), 128),
    **dict.fromkeys(("mamba_dt_rank", "hidden_size_per_layer_input", "index_topk", "index_n_heads"), 4),
    "num_kv_shared_layers": 0,
    "attention_head_dim": 32,
    "sliding_window": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WITH_LATENT_KEYS = {"num_key_value_heads": 4, "head_dim": _SIZES["qk_rope_head_dim"]}  # as DeepSeek has them
_HYBRID = ["linear_attention", "full_attention"] * 2
_MORE: Mapping[str, Mapping[str, Any]] = {  # what else a family needs to attend, or to be built
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "granitemoehybrid": {"layer_types": _HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"num_hidden_layers": 2, "layer_types": _HYBRID[:2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"layer_types": ["hybrid"] * 4, "num_experts_per_tok": 1},
}


def sweep(
    families: Iterable[str] = FAMILIES,
    seconds: int = 60,
    on_family: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """A row for every family: whether it is measured, and if not, why not. `seconds` is the most that one may take."""
    families = tuple(families)
    rows = []
    for i, family in enumerate(families):
        rows.append(_row(family, seconds))
        on_family(i + 1, len(families))
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts), key=str))
    note = f"{len(rows)} families: {counts}; tiny random weights, fp32; compared with eager attention, to {TOLERANCE}"
    return Table("Which causal architectures of transformers can be measured?", note, tuple(rows))


def is_sound(table: Table) -> bool:
    """Whether no family of a table of `sweep` ends in an error or in other numbers."""
    return not {DIFFERS, ERROR} & set(table.column("verdict"))


def tiny_model(family: str) -> PreTrainedModel:
    """A model of a family with peaked attention. Raises whatever transformers raises where the guess does not fit."""
    config = _tiny(AutoConfig.for_model(family), _MORE.get(family, {}))
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are left")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "att" in name and parameter.ndim > 1:
                parameter.mul_(4)
        tokens = sample_tokens(_VOCAB)
        model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    return model


def _tiny(config: PretrainedConfig, more: Mapping[str, Any]) -> PretrainedConfig:
    """A configuration of the same class with small sizes, those of its parts included."""
    fields = config.to_dict()
    sizes = {**_SIZES, **(_WITH_LATENT_KEYS if "qk_rope_head_dim" in fields else {})}
    chosen = {name: value for name, value in sizes.items() if name in fields}
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    small = {name: _tiny(part, {}) for name, part in parts.items() if isinstance(part, PretrainedConfig)}
    if fields.get("is_decoder") is False:
        chosen["is_decoder"] = True
    return type(config)(**{**chosen, **small, **more})


def _row(family: str, seconds: int) -> dict[str, Cell]:
    try:
        with _time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = tiny_model(family)
            except Exception as error:  # a guess at a configuration can fail in any way
                return _verdict(family, NOT_BUILT, _first_line(error))
            return _measured(family, model)
    except InputError as refusal:
        return _verdict(family, REFUSED, str(refusal))
    except TimeoutError as limit:
        return _verdict(family, NOT_BUILT, str(limit))
    except Exception as error:  # what this table looks for
        return _verdict(family, ERROR, f"{type(error).__name__}: {_first_line(error)}")


def _measured(family: str, model: PreTrainedModel) -> dict[str, Cell]:
    """The row of a model that runs. Raises InputError where it is refused."""
    subject, tokens = load(model, name=family), sample_tokens(_VOCAB)
    measure(subject, tokens)
    ours = subject.run(tokens, calls={"pattern": _on_tokens}).calls["pattern"]
    try:
        theirs = dense_patterns(model, tokens)
        is_comparable = ours.shape == theirs.shape and _eager_runs_alike(model)
    except Exception:  # some models return no patterns
        is_comparable = False
    if not is_comparable:
        return _verdict(family, NO_ORACLE, "transformers returns no patterns of what it computes", subject)
    shares = ours / ours.sum(-1, keepdim=True)  # Granite SWA returns weights before its sinks scale them
    difference = min((pattern - theirs).abs().max().item() for pattern in (ours, shares))
    return _verdict(family, MEASURED if difference <= TOLERANCE else DIFFERS, f"difference {difference:.0e}", subject)


def _on_tokens(call: AttentionCall) -> Pattern:
    """The pattern without a slot's column."""
    return call.pattern()[..., -call.k.shape[2] :]


@torch.no_grad()
def _eager_runs_alike(model: PreTrainedModel) -> bool:
    """Whether the model returns the same logits with eager attention."""
    tokens, eager = sample_tokens(_VOCAB), eager_copy(model)
    ours, theirs = (m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits for m in (model, eager))
    return bool((ours - theirs).abs().max() <= TOLERANCE * ours.abs().max())


def _verdict(family: str, verdict: str, why: str, subject: Subject | None = None) -> dict[str, Cell]:
    has_updates = None if subject is None else "yes" if subject.shape.mlp_layers else "no"
    return {"family": family, "verdict": verdict, "feed-forward updates": has_updates, "why": why}


def _first_line(error: Exception) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Inside, a TimeoutError is raised after these seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
