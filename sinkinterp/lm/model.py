"""The language model: embed, a stack of blocks, unembed; parameters are named as Llama names them."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.output_capturing import capture_outputs

from ..attention.masks import Causal
from ..attention.slots import NoSlots
from ..errors import InputError
from ..spec import Dims, Part, Spec
from .attention import AttentionSpec, SinkAttention
from .block import Branch, PreNorm, SinkBlock
from .ffn import GatedFFN
from .init import Init, TorchInit
from .positions import Position, Rotary
from .sink_token import Nothing, SinkToken

# class names and `model_type` are what checkpoints and transformers' registries store


@dataclass(frozen=True)
class LMSpec(Spec):
    """A decoder-only language model. The default is Llama exactly, at toy size."""

    position: Part = Rotary()
    attention: AttentionSpec = AttentionSpec()
    ffn: Part = GatedFFN()
    branch: Branch = PreNorm()
    before: Nothing | SinkToken = Nothing()
    init: Init = TorchInit()
    vocab: int = 64
    d_model: int = 64
    n_heads: int = 1
    n_layers: int = 1
    n_ctx: int = 16
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.d_model % (2 * self.n_heads):
            raise ValueError(f"d_model must be a multiple of twice n_heads; got {self.d_model} and {self.n_heads}")
        if self.before.count and self.attention.slots != NoSlots():
            raise ValueError("a sink token is the slot of every layer; give the attention NoSlots(), or take Nothing()")

    @property
    def dims(self) -> Dims:
        return Dims(self.d_model, self.n_heads, self.d_model // self.n_heads, self.n_ctx + self.before.count)


class SinkConfig(PreTrainedConfig):
    """A transformers configuration that holds an `LMSpec` as JSON; the sizes that transformers reads are derived."""

    model_type = "sinkinterp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, spec: dict | None = None, **kwargs: Any) -> None:
        lm = LMSpec() if spec is None else LMSpec.from_dict(spec)
        self.spec = lm.to_dict()
        derived = {
            "vocab_size": lm.vocab, "hidden_size": lm.d_model, "num_hidden_layers": lm.n_layers,
            "num_attention_heads": lm.n_heads, "num_key_value_heads": lm.n_heads, "head_dim": lm.dims.d_head,
            "max_position_embeddings": lm.n_ctx, "use_cache": True, "tie_word_embeddings": False,
        }  # fmt: skip
        super().__init__(**kwargs | derived)

    @property
    def lm(self) -> LMSpec:
        return LMSpec.from_dict(self.spec)


class SinkPreTrainedModel(PreTrainedModel):
    """What transformers must know of the family."""

    config: SinkConfig
    config_class = SinkConfig
    base_model_prefix = "model"
    _supports_attention_backend = True
    _no_split_modules: ClassVar[list[str]] = ["SinkBlock"]
    _can_record_outputs: ClassVar[dict[str, type]] = {"hidden_states": SinkBlock, "attentions": SinkAttention}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        self.config.lm.init.draw(module, self.config.lm.n_layers)


class SinkModel(SinkPreTrainedModel):
    """The decoder without its unembedding."""

    def __init__(self, config: SinkConfig) -> None:
        super().__init__(config)
        spec = config.lm
        self.embed_tokens = nn.Embedding(spec.vocab, spec.d_model)
        self.position: Position = spec.position.build(spec.dims)
        self.before = spec.before.build(spec.dims)
        self.layers = nn.ModuleList(SinkBlock(config, i) for i in range(spec.n_layers))
        self.norm = spec.branch.final(nn.RMSNorm(spec.d_model, eps=spec.norm_eps))
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch pos"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#batch pos"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Final-norm residuals. `attention_mask` is 1 for tokens and 0 for padding, `batch key`."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if past + x.shape[1] > self.config.lm.n_ctx:
            raise InputError(
                f"{past + x.shape[1]} tokens exceed this model's context of {self.config.lm.n_ctx}; pass fewer"
            )
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device)[None]
        position_ids = position_ids + self.config.lm.before.count
        shared = {
            "position": self.position, "position_ids": position_ids, "past_key_values": past_key_values,
            "position_bias": self._bias(past, position_ids),
            "attention_mask": self._allowed(past, x.shape[1], attention_mask, x.device),
        }  # fmt: skip
        x = self.position.embed(x, position_ids)
        for layer, slot in zip(self.layers, self.before.slots(self.layers, self.position), strict=True):
            x = layer(x, slot=slot, **shared, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _bias(self, past: int, ids: Int[Tensor, "#batch pos"]) -> Float[Tensor, "#batch #head pos key"] | None:
        """What positions add to scores; tokens in the cache are taken to lie right before the first new one."""
        before = ids[:, :1] + torch.arange(-past, 0, device=ids.device)
        return self.position.bias(ids, torch.cat((before, ids), 1))

    def _allowed(
        self, past: int, n_queries: int, tokens: Tensor | None, device: torch.device
    ) -> Bool[Tensor, "#batch 1 pos key"] | None:
        """Pairs that may attend by index, not by position id; None where that is causal."""
        if tokens is not None and tokens.bool().all():
            tokens = None
        rule = self.config.lm.attention.mask
        if tokens is None and rule == Causal() and past == 0:
            return None
        index = torch.arange(past + n_queries, device=device)
        if past and rule.allows(index[:past, None], index[None, past:]).any():
            raise InputError(f"{past} tokens in the cache should have seen later ones ({rule}); pass them in one go")
        allowed = rule.allows(index[past:, None], index[None, :])[None, None]
        return allowed if tokens is None else allowed & tokens.bool()[:, None, None, :]


class SinkForCausalLM(SinkPreTrainedModel, GenerationMixin):
    """The family as transformers knows it: `AutoModelForCausalLM`, `generate`, `save_pretrained`."""

    def __init__(self, config: SinkConfig) -> None:
        super().__init__(config)
        self.model = SinkModel(config)
        self.lm_head = nn.Linear(config.lm.d_model, config.lm.vocab, bias=False)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, logits_to_keep: int = 0, **kwargs: Any
    ) -> CausalLMOutputWithPast:
        """Logits `batch pos vocab`, and the next-token loss where `labels` are given."""
        kwargs.pop("return_dict", None)
        hidden = self.model(input_ids=input_ids, **kwargs)
        logits = self.lm_head(hidden.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.lm.vocab)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=hidden.past_key_values,
            hidden_states=hidden.hidden_states, attentions=hidden.attentions,
        )  # fmt: skip

    def to_llama(self) -> PreTrainedModel:
        """The same model as transformers' Llama. Raises InputError where the architecture is not Llama's."""
        from .hub import to_llama

        return to_llama(self)


def build(spec: LMSpec, seed: int = 0) -> SinkForCausalLM:
    """A freshly initialised model, the same for the same seed; the caller's random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SinkForCausalLM(SinkConfig(spec=spec.to_dict()))
