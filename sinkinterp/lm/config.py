"""The spec of a language model, how its weights are initialised, and the transformers configuration that stores it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig

from ..attention.slots import NoSlots
from ..checks import refusing
from ..spec import Dims, Limits, Spec
from .attention import AttentionSpec
from .block import FFN, GatedFFN, NormPlacement, Nothing, PreNorm, SinkToken, SwishDown
from .position_schemes import Alibi, BucketIndex, Learned, NoPosition, Rotary, Sinusoidal, T5Relative


@dataclass(frozen=True)
class Init(Spec):
    """How every module of a model with `depth` blocks is initialised."""

    def draw(self, module: nn.Module, depth: int) -> None:
        """Draws the weights of this module, without those of its children, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class TorchInit(Init):
    """PyTorch's defaults, with embeddings from N(0, 1). The release effectively uses these on several GPUs."""

    def draw(self, module: Any, depth: int) -> None:
        if isinstance(module, nn.Linear | nn.Embedding | nn.RMSNorm):
            module.reset_parameters()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class LMSpec(Spec):
    """A decoder-only language model. The default is exactly Llama, at toy size.

    branch: where each residual branch has its norm. before: a sink token before the first token, or nothing.
    Checkpoints and the keys of runs store the names of these fields.
    """

    limits: ClassVar[Limits] = {**dict.fromkeys(("vocab", "d_model", "n_heads", "n_layers", "n_ctx"), 1), "norm_eps": 0}

    position: NoPosition | Sinusoidal | Learned | Rotary | T5Relative | BucketIndex | Alibi = Rotary()
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
        self._check()

    @refusing
    def _check(self) -> Iterator[str]:
        if self.d_model % (2 * self.n_heads):
            yield f"d_model must be a multiple of twice n_heads; got {self.d_model} and {self.n_heads}"
        if self.before.count and self.attention.slots != NoSlots():
            yield "a sink token is the slot of every layer; give the attention NoSlots(), or take Nothing()"

    @property
    def dims(self) -> Dims:
        return Dims(self.d_model, self.n_heads, self.d_model // self.n_heads, self.n_ctx + self.before.count)


class SinkConfig(PreTrainedConfig):
    """A transformers configuration that stores an `LMSpec` as JSON. Sizes that transformers reads come from the spec.

    Checkpoints and transformers' registries store `model_type`.
    """

    model_type = "sinkinterp"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, spec: dict | None = None, **kwargs: Any) -> None:
        lm = LMSpec() if spec is None else LMSpec.from_dict(spec)
        self.spec = lm.to_dict()
        sizes = {
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
        super().__init__(**kwargs | sizes)

    @property
    def lm(self) -> LMSpec:
        return LMSpec.from_dict(self.spec)
