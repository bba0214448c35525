"""Which causal architectures can be measured: each is built tiny, with random weights, and compared with transformers.

`python -m tools.families NAMES --markdown docs/families.md`; without names, all. A row of the table is one family: the
name that transformers gives to a configuration. Sizes are guessed from the configuration. Exit code 1 at an error.
"""

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.shapes import Pattern
from sinkinterp.backends.contract import sample_tokens
from sinkinterp.backends.load import load
from sinkinterp.backends.subject import Subject
from sinkinterp.checks import InputError, nearest
from sinkinterp.cli.terminal import print_table, print_written, say
from sinkinterp.data.progress import progress_bars
from sinkinterp.files import write_file
from sinkinterp.measurement.measure import measure
from sinkinterp.measurement.parity import TOLERANCE, dense_patterns, eager_copy
from sinkinterp.table import Cell, Table

VOCAB = 97
_HEAD, _ROTATED = 16, 8
_MOST_PARAMETERS = 20_000_000  # of a model that counts as tiny

# what configurations call their sizes, by the size; those that a configuration has are set
_NAMES: Mapping[int, str] = {
    0: "pad_token_id",
    1: "n_group topk_group num_expert_group n_shared_experts mamba_n_groups n_groups bos_token_id",
    2: "num_kv_shared_layers num_key_value_heads num_kv_heads linear_num_key_heads num_experts_per_tok "
    "num_experts_per_token moe_topk moe_k top_k zero_expert_num eos_token_id",
    4: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head n_heads "
    "num_heads attention_heads decoder_attention_heads encoder_attention_heads linear_num_heads linear_num_value_heads "
    "num_experts num_local_experts n_routed_experts moe_num_experts mamba_dt_rank hidden_size_per_layer_input "
    "index_topk index_n_heads",
    5: "sliding_window",
    _ROTATED: "qk_rope_head_dim qk_nope_head_dim rotary_dim mamba_d_state ssm_state_size state_size mamba_chunk_size "
    "chunk_size mamba_n_heads mamba_num_heads",
    _HEAD: "head_dim global_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim v_head_dim "
    "index_head_dim mamba_d_head mamba_head_dim",
    32: "kv_lora_rank q_lora_rank attention_head_dim",
    40: "intermediate_size moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size ffn_dim "
    "decoder_ffn_dim encoder_ffn_dim ffn_hidden_size expert_ffn_hidden_size",
    64: "hidden_size n_embd d_model emb_dim max_position_embeddings n_positions max_seq_len model_max_length",
    VOCAB: "vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab",
    128: "mamba_d_ssm attention_hidden_size",
}
_SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}
_WITH_LATENT_KEYS = {"num_key_value_heads": 4, "head_dim": _ROTATED}  # as DeepSeek has them
_ROTATION = {"rope_type": "default", "rope_theta": 1e4}
_QWEN4 = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": _HEAD, "indexer_budget": 4,
    "indexer_compress_ratio": 2, "hc_lowrank": 8, "layer_types": ["linear_attention", "indexed_attention"] * 2,
}  # fmt: skip
_GEMMA3N = {"activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0]}
_GEMMA4 = {"layer_types": ["sliding_attention", "full_attention"] * 2}  # as E2B and E4B, whose last layers share keys
_HYBRID = ["linear_attention", "full_attention"] * 2
_MORE: Mapping[str, Mapping[str, Any]] = {  # what else a family needs to attend, or to be built
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "big_bird": {"attention_type": "original_full"},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _ROTATION)},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma3n_text": _GEMMA3N,
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "gemma4_unified": {"text_config": _GEMMA4},
    "gemma4_unified_text": _GEMMA4,
    "got_ocr2": {"text_config": {"tie_word_embeddings": True}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "granitemoehybrid": {"layer_types": _HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {"layer_types": _HYBRID},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": {"text_config": _QWEN4},
    "reformer": {"axial_pos_shape": [8, 8], "axial_pos_embds_dim": [32, 32]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"layer_types": ["hybrid"] * 4, "num_experts_per_tok": 1},
}


def tiny_config(family: str) -> PretrainedConfig:
    """A family's own settings at small sizes. Raises whatever transformers raises where these do not fit."""
    return _tiny(AutoConfig.for_model(family), _MORE.get(family, {}))


def tiny_model(family: str) -> PreTrainedModel:
    """A model of a family with peaked attention. Raises as `tiny_config` does."""
    config = tiny_config(family)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are left")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "att" in name and parameter.ndim > 1:
                parameter.mul_(4)
        tokens = sample_tokens(VOCAB)
        model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
    return model


def _tiny(config: PretrainedConfig, more: Mapping[str, Any]) -> PretrainedConfig:
    """A configuration of the same class with small sizes, those of its parts included."""
    fields = config.to_dict()
    sizes = {**_SIZES, **(_WITH_LATENT_KEYS if "qk_rope_head_dim" in fields else {})}
    chosen = {name: value for name, value in sizes.items() if name in fields}
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    small = {
        name: _tiny(part, more.get(name, {})) for name, part in parts.items() if isinstance(part, PretrainedConfig)
    }
    if fields.get("is_decoder") is False:
        chosen["is_decoder"] = True
    return type(config)(**{**chosen, **more, **small})


_NO_ATTENTION = "a recurrence without attention"
_HEADS = "its layers have 128 heads or 64, and reads have one number of heads"
_BIAS = "its bias of positions depends on what the query says, not on distance alone"
_CODES = "reads several streams of audio codes, not one text"
_DRAFTS = "drafts for another model, whose keys it reads"
REASONS: Mapping[str, str] = {  # of the families that cannot be read or built
    "blt": "bytes are read in patches, by three stacks of blocks of different lengths",
    "cpmant": "attends to 32 learned prompt tokens that are not in the text",
    "deepseek_v4": "attends to summaries of many tokens",
    "dots3_note": _HEADS,
    "dots3_note_text": _HEADS,
    "falcon_mamba": _NO_ATTENTION,
    "gemma3n": "its images and sounds need libraries that are not installed; gemma3n_text is read",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "hrm_text": "a block runs several times in one pass",
    "inkling2_text": _BIAS,
    "inkling_text": _BIAS,
    "longcat_flash": "a block attends twice",
    "mamba": _NO_ATTENTION,
    "mamba2": _NO_ATTENTION,
    "mllama": "blocks that attend to an image are left out of a pass on text",
    "musicgen": _CODES,
    "musicgen_melody": _CODES,
    "prophetnet": "reads a second stream for every token that it predicts ahead",
    "reformer": "attends to tokens of the same hash alone",
    "rwkv": _NO_ATTENTION,
    "xlm": "its configuration is not causal, and it attends in its own code",
    "xlnet": "is not causal: it reads tokens in permuted order, in two streams",
    "xlstm": _NO_ATTENTION,
}

FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
MEASURED, NO_ORACLE, REFUSED = "measured", "measured, not compared", "refused"
NOT_BUILT, DIFFERS, ERROR = "not built", "DIFFERS", "ERROR"


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
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(map(str, verdicts))))
    note = (
        f"{len(rows)} families of transformers {version('transformers')}: {counts}; tiny random weights, fp32; "
        f"compared with eager attention, to {TOLERANCE} or the rounding of scores"
    )
    return Table.of("Which causal architectures of transformers can be measured?", note, tuple(rows))


def is_sound(table: Table) -> bool:
    """Whether no family of a table of `sweep` ends in an error or in other numbers."""
    return not {DIFFERS, ERROR} & set(table.frame["verdict"].tolist())


def _row(family: str, seconds: int) -> dict[str, Cell]:
    try:
        with _time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = tiny_model(family)
            except Exception as error:  # a guess at a configuration can fail in any way
                return _verdict(family, NOT_BUILT, REASONS.get(family, _first_line(error)))
            return _measured(family, model)
    except InputError as refusal:
        return _verdict(family, REFUSED, REASONS.get(family, str(refusal)))
    except TimeoutError as limit:
        return _verdict(family, NOT_BUILT, str(limit))
    except Exception as error:  # what this table looks for
        return _verdict(family, ERROR, f"{type(error).__name__}: {_first_line(error)}")


def _measured(family: str, model: PreTrainedModel) -> dict[str, Cell]:
    """The row of a model that runs. Raises InputError where it is refused."""
    subject, tokens = load(model, name=family), sample_tokens(VOCAB)
    measure(subject, tokens)
    trace = subject.run(tokens, reads={"pattern": _on_tokens, "rounding": _rounding})
    ours, limit = trace["pattern"], max(TOLERANCE, trace["rounding"].max().item())
    try:
        theirs = dense_patterns(model, tokens)
        is_comparable = ours.shape == theirs.shape and _eager_runs_alike(model)
    except Exception:  # some models return no patterns
        is_comparable = False
    if not is_comparable:
        return _verdict(family, NO_ORACLE, "transformers returns no patterns of what it computes", subject)
    shares = ours / ours.sum(-1, keepdim=True)  # Granite SWA returns weights before its sinks scale them
    difference = min((pattern - theirs).abs().max().item() for pattern in (ours, shares))
    return _verdict(family, MEASURED if difference <= limit else DIFFERS, f"difference {difference:.0e}", subject)


def _on_tokens(call: AttentionCall) -> Pattern:
    """The pattern without a slot's column."""
    return call.pattern()[..., -call.k.shape[2] :]


def _rounding(call: AttentionCall) -> Float[Tensor, "sequence 1"]:
    """How far weights may be off by the rounding of the largest score: Gemma 4 does not scale scores down."""
    scores = call.scores()
    return 4 * torch.finfo(scores.dtype).eps * scores.abs().flatten(1).amax(1, keepdim=True)


@torch.no_grad()
def _eager_runs_alike(model: PreTrainedModel) -> bool:
    """Whether the model returns the same logits with eager attention."""
    tokens, eager = sample_tokens(VOCAB), eager_copy(model)
    ours, theirs = (m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits for m in (model, eager))
    return bool((ours - theirs).abs().max() <= TOLERANCE * ours.abs().max())


def _verdict(family: str, verdict: str, why: str, subject: Subject | None = None) -> dict[str, Cell]:
    updates = None if subject is None else "whole" if subject.shape.mlp_layers else "refused"
    return {"family": family, "verdict": verdict, "feed-forward updates": updates, "why": why}


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


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Families of transformers. Default: all.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
) -> None:
    """Build every causal architecture of transformers tiny and say which can be measured; exit code 1 at an error."""
    unknown = sorted(set(names or ()) - set(FAMILIES))
    if unknown:
        near = nearest(unknown[0], FAMILIES) or "; give names such as gpt2 or bloom"
        raise typer.BadParameter(f"transformers has no causal family {unknown[0]!r}{near}")
    say("measuring families of models")
    with progress_bars() as progress:
        table = sweep(names or FAMILIES, on_family=progress("families"))
    print_table(table)
    if markdown is not None:
        write_file(markdown, table.to_markdown())
        print_written(markdown)
    if not is_sound(table):
        raise typer.Exit(1)


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    app()
