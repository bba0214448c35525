"""Which classes of transformers are causal language models, and what their owner does with others."""

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.models.auto import modeling_auto as auto

from ...checks import InputError

_ENCODED = {**auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
_CAUSAL = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
_WEIGHTS = "(model(..., output_attentions=True).attentions), with attn_implementation='eager'"


def check_causal(kind: Any, config: PreTrainedConfig, name: str) -> None:
    """Raises InputError for a class of transformers that is not a causal language model, and for an encoder's config.

    The message says what the model is and which class to load. Classes of other packages are tried.
    """
    if not kind.__module__.startswith("transformers.") or not issubclass(kind, PreTrainedModel):
        return
    names = _ENCODED if config.is_encoder_decoder else _CAUSAL
    sees_later = not config.is_encoder_decoder and _sees_later_tokens(config)
    what = name if kind.__name__ in name else f"{name}, a {kind.__name__},"
    reads_tokens = issubclass(kind, GenerationMixin) and kind.main_input_name == "input_ids"  # CTC generates from sound
    if sees_later or (config.model_type not in names and not reads_tokens):
        why = "is not a causal language model, so its first token has no sink to measure"
        raise InputError(f"{what} {why}; draw its maps: si.attention_map{_WEIGHTS}")
    if not issubclass(kind, GenerationMixin):
        fix = f"load it as {names[config.model_type]}, or measure its attention alone: si.sinks{_WEIGHTS}"
        raise InputError(f"{what} does not predict tokens; {fix}")


def check_causal_folder(config: PreTrainedConfig, name: str) -> None:
    """As `check_causal`, of the class that config.json names. A base model with a tied head is whole."""
    kind = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    is_base = kind is not None and kind.__name__ == auto.MODEL_MAPPING_NAMES.get(config.model_type)
    is_whole = is_base and getattr(config, "tie_word_embeddings", False) and config.model_type in _CAUSAL
    if isinstance(kind, type) and not config.is_encoder_decoder and not (is_whole and not _sees_later_tokens(config)):
        check_causal(kind, config, name)


def _sees_later_tokens(config: PreTrainedConfig) -> bool:
    """Whether a configuration says that tokens see later ones, as in BERT and EmbeddingGemma."""
    sizes = config.get_text_config()
    both_ways = getattr(sizes, "use_bidirectional_attention", None) in (True, "all")
    may_encode = sizes.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES  # GPT-NeoX says is_decoder=False as well
    return both_ways or (may_encode and not getattr(sizes, "is_decoder", True))
