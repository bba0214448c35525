"""Tiny random encoder-decoder models, whose encoder and decoder differ in depth and heads."""

from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from backends.zoo import peaked
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from sinkinterp.backends.encoder import EncoderInput, TokenIds

VOCAB, DEPTH, HEADS, SOURCE = 101, 3, 4, (5, 9, 2, 77, 13, 40, 8, 31, 60, 3, 19)
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
SIZES = IDS | {
    "vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": DEPTH, "encoder_attention_heads": 3,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28,
}  # fmt: skip
WHISPER = SIZES | {"num_mel_bins": 8, "max_source_positions": 50, "max_target_positions": 40}
T5 = IDS | {
    "vocab_size": VOCAB, "d_model": 24, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_decoder_layers": DEPTH,
    "num_heads": HEADS,
}  # fmt: skip
_GEMMA = transformers.T5GemmaModuleConfig(
    vocab_size=VOCAB, hidden_size=24, intermediate_size=20, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
    num_key_value_heads=2, head_dim=6, sliding_window=5, max_position_embeddings=40,
)  # fmt: skip
MODELS = {
    "whisper": lambda: transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER)),
    "bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(**SIZES, max_position_embeddings=40)
    ),
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**SIZES, max_position_embeddings=40)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
    "t5gemma": lambda: transformers.T5GemmaForConditionalGeneration(
        transformers.T5GemmaConfig(encoder=_GEMMA, decoder=_GEMMA)
    ),
}
TEXT_MODELS = tuple(name for name in MODELS if name != "whisper")
LEARNED_POSITIONS = ("whisper", "bart")


def model_of(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return peaked(MODELS[name]().eval(), ("q_proj", "k_proj", "embed_positions"))  # T5 begins with peaked attention


def tokens_of(length: int = 17) -> torch.Tensor:
    return torch.randint(3, VOCAB, (5, length), generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Mel(EncoderInput):
    """A spectrogram of noise."""

    description = "noise"

    def features(self, model):
        return {"input_features": torch.randn(1, 8, 100, generator=torch.Generator().manual_seed(3))}


def source_of(name: str) -> EncoderInput:
    return Mel() if name == "whisper" else TokenIds(SOURCE)


def save_bart(folder: Path, marks_texts: bool = True) -> Path:
    """A model with a tokenizer of words, which puts <s> before and </s> behind a text if it marks texts."""
    model_of("bart").save_pretrained(folder)
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"word{i}": i for i in range(3, VOCAB)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if marks_texts:
        words.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    return folder
