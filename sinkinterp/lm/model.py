"""The language model: embed, a stack of blocks, unembed. Its spec, its first weights and its configuration.

Parameters have Llama's names. It can be exported to transformers' Llama where the architecture is Llama's. Checkpoints
and transformers' registries store the names of the model classes.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from ..attention import Causal, NoSlots
from ..checks import InputError, check_context, check_memory
from ..spec import Dims, Limits, Spec
from .attention import AttentionSpec, Bias, Position, PositionIds, Rotary, Scheme, SinkAttention
from .block import FFN, GatedFFN, NormPlacement, Nothing, PreNorm, SinkBlock, SinkToken, SwishDown


class Init(Spec):
    """How every module of a model with `depth` blocks is initialised."""

    def draw(self, module: nn.Module, depth: int) -> None:
        """Draws the weights of this module, without those of its children, in place."""
        raise NotImplementedError


class TorchInit(Init):
    """PyTorch's defaults, with embeddings from N(0, 1). The release effectively uses these on several GPUs."""

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.reset_parameters()


class WrittenInit(Init):
    """The initialisation that the release writes: N(0, 0.4 / fan_in) for linear layers and embeddings.

    The down projection of SwiGLU is drawn from N(0, 1 / width / depth^2); no other feed-forward layer depends on depth.
    """

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, SwishDown):
            nn.init.normal_(module.weight, std=module.in_features**-0.5 / depth)
        elif isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=(0.4 / module.weight.shape[1]) ** 0.5)
        elif isinstance(module, nn.RMSNorm):
            module.reset_parameters()


class LMSpec(Spec):
    """A decoder-only language model. The default is exactly Llama, at toy size.

    branch: where each residual branch has its norm. before: a sink token before the first token, or nothing.
    Checkpoints and the keys of runs store the names of these fields.
    """

    limits: ClassVar[Limits] = {**dict.fromkeys(("vocab", "d_model", "n_heads", "n_layers", "n_ctx"), 1), "norm_eps": 0}

    position: Scheme = Rotary()
    attention: AttentionSpec = AttentionSpec()
    ffn: FFN | GatedFFN = GatedFFN()
    branch: NormPlacement = PreNorm()
    before: Nothing | SinkToken = Nothing()
    init: Init = TorchInit()
    vocab: int = 64
    d_model: int = 64
    n_heads: int = 1
    n_layers: int = 1
    n_ctx: int = 16
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % (2 * self.n_heads):
            raise InputError(f"d_model must be a multiple of twice n_heads; got {self.d_model} and {self.n_heads}")
        if self.before.count and self.attention.slots != NoSlots():
            raise InputError("a sink token is the slot of every layer; give the attention NoSlots(), or take Nothing()")

    @property
    def dims(self) -> Dims:
        return Dims(self.d_model, self.n_heads, self.d_model // self.n_heads, self.n_ctx + self.before.count)


def _sizes_of(lm: LMSpec) -> dict[str, Any]:
    """Sizes by their names in transformers' configurations."""
    return {
        "vocab_size": lm.vocab,
        "hidden_size": lm.d_model,
        "num_hidden_layers": lm.n_layers,
        "num_attention_heads": lm.n_heads,
        "num_key_value_heads": lm.n_heads,
        "head_dim": lm.dims.d_head,
        "max_position_embeddings": lm.n_ctx,
        "use_cache": True,
        "tie_word_embeddings": False,
    }


class SinkConfig(PreTrainedConfig):
    """A transformers configuration that stores an `LMSpec` as JSON. Sizes that transformers reads come from the spec.

    Checkpoints and transformers' registries store `model_type`.
    """

    model_type = "sinkinterp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, spec: dict | None = None, **kwargs: Any) -> None:
        lm = LMSpec() if spec is None else LMSpec.from_dict(spec)
        self.spec = lm.to_dict()
        super().__init__(**kwargs | _sizes_of(lm))

    @property
    def lm(self) -> LMSpec:
        return LMSpec.from_dict(self.spec)


IGNORED = -100  # the label of tokens that transformers' losses leave out
BLOCK = {"cpu": 2**20}  # logits in a block: what stays in the cache of a core
LARGE_BLOCK = 2**27


def blocked_loss(
    hidden: Float[Tensor, "batch pos d_model"],
    unembed: Float[Tensor, "vocab d_model"],
    labels: Int[Tensor, "batch pos"],
    count: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Cross-entropy of the labels but the first of each sequence, given the positions before, in nats.

    The sum over labels that are not IGNORED, divided by their number or by `count`. Equals transformers' loss of causal
    models, with its gradient. It cannot be differentiated twice where the logits are more than a block.
    """
    rows = hidden.flatten(0, 1)
    targets = F.pad(labels, (0, 1), value=IGNORED)[:, 1:].flatten()
    block = max(1, BLOCK.get(rows.device.type, LARGE_BLOCK) // len(unembed))
    count = torch.as_tensor((targets != IGNORED).sum() if count is None else count, device=rows.device)
    if len(targets) <= block:
        return F.cross_entropy(F.linear(rows, unembed).float(), targets, ignore_index=IGNORED, reduction="sum") / count
    return _InBlocks.apply(rows, unembed, targets, count, block)


class _InBlocks(torch.autograd.Function):
    """Computes the gradient together with the loss, while the logits of a block exist."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, unembed: Tensor, targets: Tensor, count: Tensor, block: int) -> Tensor:
        loss = torch.zeros((), device=hidden.device)
        hidden_grad = torch.empty_like(hidden, dtype=torch.float32)
        unembed_grad = torch.zeros_like(unembed, dtype=torch.float32)
        for x, target, x_grad in zip(*(rows.split(block) for rows in (hidden, targets, hidden_grad)), strict=True):
            counts = (target != IGNORED)[:, None]
            index = target[:, None].masked_fill(~counts, 0)
            logits = (x @ unembed.T).float()
            shifted = logits.sub_(logits.amax(-1, keepdim=True))  # in place: log_softmax takes three times as long
            at_target = shifted.gather(1, index)
            exps = shifted.exp_()
            total = exps.sum(-1, keepdim=True)
            loss -= ((at_target - total.log()) * counts).sum()
            logits_grad = exps.mul_(counts / total).scatter_add_(1, index, -counts.to(exps.dtype)).to(x.dtype)
            x_grad.copy_(logits_grad @ unembed)
            unembed_grad += logits_grad.T @ x
        ctx.save_for_backward(hidden_grad, unembed_grad, count)
        ctx.dtypes = hidden.dtype, unembed.dtype
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        *sums, count = ctx.saved_tensors  # of float32: with a large count their means would be too small for float16
        means = (total.mul(outer / count).to(dtype) for total, dtype in zip(sums, ctx.dtypes, strict=True))
        return *means, None, None, None


Allowed = Bool[Tensor, "#batch 1 pos key"]


class SinkPreTrainedModel(PreTrainedModel):
    """What transformers must know of the family."""

    config: SinkConfig
    config_class = SinkConfig
    base_model_prefix = "model"
    _supports_attention_backend = True
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["SinkBlock"]
    _can_record_outputs: ClassVar[dict[str, type]] = {"hidden_states": SinkBlock, "attentions": SinkAttention}

    def __init__(self, config: SinkConfig) -> None:
        super().__init__(config)
        self.lm = config.lm  # kept, because the configuration reads it from JSON every time

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Transformers' method; the spec follows, so that the model can be saved and loaded."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.lm = self.base_model.lm = replace(self.lm, vocab=embeddings.num_embeddings)
        self.config.spec = self.lm.to_dict()
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        self.lm.init.draw(module, self.lm.n_layers)


class SinkModel(SinkPreTrainedModel):
    """The decoder without its unembedding."""

    def __init__(self, config: SinkConfig) -> None:
        super().__init__(config)
        spec = self.lm
        check_size(spec)
        self.embed_tokens = nn.Embedding(spec.vocab, spec.d_model)
        self.position: Position = spec.position.build(spec.dims)
        self.before: Any = spec.before.build(spec.dims)
        self.layers = nn.ModuleList(SinkBlock(config, i) for i in range(spec.n_layers))
        self.norm = spec.branch.final(nn.RMSNorm(spec.d_model, eps=spec.norm_eps))
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch pos"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: PositionIds | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """The residual stream after the final norm. `attention_mask` is 1 for tokens and 0 for padding, `batch key`."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if past_key_values is not None and past_key_values.is_compileable:
            raise InputError("a static cache gives keys of tokens that are not there yet; pass a DynamicCache")
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        position_ids = self._position_ids(past, x, position_ids)
        kwargs |= {
            "position": self.position,
            "position_ids": position_ids,
            "position_bias": self._bias(past, position_ids),
            "attention_mask": self._allowed(past, x.shape[1], attention_mask, x.device),
            "past_key_values": past_key_values,
        }
        x = self.position.embed(x, position_ids)
        for layer, slot in zip(self.layers, self.before.slots(self.layers, self.position), strict=True):
            x = layer(x, slot=slot, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=past_key_values)

    def _position_ids(self, past: int, x: Tensor, position_ids: PositionIds | None) -> PositionIds:
        """The position of every token; a sink token takes position 0. Raises InputError beyond the context."""
        total = past + x.shape[1]
        check_context(total, self.lm.n_ctx, "this model", "pass fewer")
        if position_ids is None:
            position_ids = torch.arange(past, total, device=x.device)[None]
        return position_ids + self.lm.before.count

    def _bias(self, past: int, ids: PositionIds) -> Bias | None:
        """What positions add to scores. Tokens in the cache count as lying directly before the first new token."""
        cached_ids = ids[:, :1] + torch.arange(-past, 0, device=ids.device)
        return self.position.bias(ids, torch.cat((cached_ids, ids), 1))

    def _allowed(self, past: int, n_queries: int, tokens: Tensor | None, device: torch.device) -> Allowed | None:
        """Which query may attend to which key, by index in the sequence, not by position id; None if causal.

        `tokens` is the attention mask of `forward`. Raises InputError if the mask shows cached tokens a new token.
        """
        if tokens is not None and tokens.bool().all():
            tokens = None
        mask = self.lm.attention.mask
        if tokens is None and mask == Causal() and past == 0:
            return None
        index = torch.arange(past + n_queries, device=device)
        if past and mask.allows(index[:past, None], index[None, past:]).any():
            raise InputError(f"{past} tokens in the cache should have seen later ones ({mask}); pass them in one go")
        allowed = mask.allows(index[past:, None], index[None, :])[None, None]
        return allowed if tokens is None else allowed & tokens.bool()[:, None, None, :]


class SinkForCausalLM(SinkPreTrainedModel, GenerationMixin):
    """The family as transformers knows it: `AutoModelForCausalLM`, `generate`, `save_pretrained`."""

    def __init__(self, config: SinkConfig) -> None:
        super().__init__(config)
        self.model = SinkModel(config)
        self.lm_head = nn.Linear(self.lm.d_model, self.lm.vocab, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits `batch pos vocab`, and the next-token loss if `labels` are given.

        The loss is the mean over labels, or their sum divided by `num_items_in_batch`, which transformers' Trainer
        gives. With `skip_logits` and labels there is only the loss: `lm_head` is not called, and its output is never
        held, which saves time and memory.
        """
        hidden = self.model(input_ids=input_ids, **kwargs)
        logits, loss = None, None
        if skip_logits and labels is not None:
            loss = blocked_loss(hidden.last_hidden_state, self.lm_head.weight, labels, num_items_in_batch)
        else:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden.last_hidden_state[:, kept])
            if labels is not None:
                loss = self.loss_function(logits, labels, self.lm.vocab, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=hidden.past_key_values,
            hidden_states=hidden.hidden_states,
            attentions=hidden.attentions,
        )

    def to_llama(self) -> PreTrainedModel:
        """The same model as transformers' Llama. Raises InputError unless the architecture is Llama's."""
        from transformers import LlamaConfig, LlamaForCausalLM  # here: our type registers while they may be loading

        spec, ffn = self.lm, GatedFFN(getattr(self.lm.ffn, "width", 1))
        as_llama = replace(spec, attention=AttentionSpec(), branch=PreNorm(), before=Nothing(), ffn=ffn)
        if not isinstance(spec.position, Rotary) or not isinstance(spec.ffn, GatedFFN) or spec != as_llama:
            raise InputError("only rotary positions, plain causal softmax attention and SwiGLU are Llama")
        config = LlamaConfig(
            **_sizes_of(spec),
            intermediate_size=spec.ffn.width,
            rms_norm_eps=spec.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": spec.position.base},
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng():
            llama = LlamaForCausalLM(config)
        llama.load_state_dict(self.state_dict())
        return llama.to(self.dtype)


def build(spec: LMSpec, seed: int = 0) -> SinkForCausalLM:
    """A freshly initialised model, the same for the same seed. The caller's random state does not change."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SinkForCausalLM(SinkConfig(spec=spec.to_dict()))


@lru_cache(256)
def parameter_count(spec: LMSpec) -> int:
    """How many parameters a model has. It makes one block alone. 2**62 for tensors beyond 64 bits."""
    try:
        with torch.device("meta"):
            block = SinkBlock(SinkConfig(spec=spec.to_dict()), 0)
            norm = spec.branch.final(nn.RMSNorm(spec.d_model))
            parts = (spec.position.build(spec.dims), spec.before.build(spec.dims), norm)
    except RuntimeError:
        return 2**62
    others = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
    of_block, of_others = (sum(weight.numel() for weight in module.parameters()) for module in (block, others))
    return 2 * spec.vocab * spec.d_model + spec.n_layers * of_block + of_others


def check_size(spec: LMSpec) -> None:
    """Raises InputError, with the estimate, for a model whose weights in fp32 exceed the memory of this machine."""
    count = parameter_count(spec)
    what = f"about {count:.2g} parameters ({spec.n_layers} layers, d_model {spec.d_model}, {spec.vocab} symbols)"
    check_memory(4 * count, what, "lower model.n_layers, model.d_model, model.vocab or model.ffn.width")


AutoConfig.register(SinkConfig.model_type, SinkConfig, exist_ok=True)
AutoModelForCausalLM.register(SinkConfig, SinkForCausalLM, exist_ok=True)
