"""Ways to run a model once: the plain forward pass, measurements of ours, and how else attention is looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import sinkinterp as si
from sinkinterp.backends.model_files import load_model
from sinkinterp.backends.named_models import downloaded
from sinkinterp.data.tokens import Tokens
from sinkinterp.interventions import Change, SetTo
from sinkinterp.metrics.instruments import ALL
from sinkinterp.runs.inputs import Inputs

REAL = "smollm2"
HAS_REAL = REAL in downloaded()

Run = Callable[[Tensor], object]
Way = Callable[[PreTrainedModel], Run]


class Case(Protocol):
    """A model, and tokens for it."""

    @property
    def length(self) -> int: ...

    @property
    def device(self) -> str: ...

    def model(self) -> PreTrainedModel: ...

    def tokens(self) -> Tokens: ...


@dataclass(frozen=True)
class RealSetting:
    """A model with its own weights, and as many docstrings as `sinkinterp measure` would read."""

    length: int
    sequences: int
    device: str = "cpu"
    name: str = REAL

    def model(self) -> PreTrainedModel:
        """The weights, in fp32."""
        return load_model(self.name).eval()

    def tokens(self) -> Tokens:
        """`sequence pos`; the same at every call."""
        return _real_tokens(self.name, self.length, self.sequences)


@cache
def _real_tokens(name: str, length: int, sequences: int) -> Tokens:
    return Inputs(length, sequences).token_set(si.load(name), name).tokens


@dataclass(frozen=True)
class Setting:
    """A GPT-2 with random weights, and one random sequence for it; by default that of GPT-2 small."""

    length: int
    layers: int = 12
    heads: int = 12
    width: int = 768
    vocab: int = 50_257
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def model(self) -> PreTrainedModel:
        """The same weights at every call."""
        torch.manual_seed(0)
        config = GPT2Config(
            n_positions=self.length, n_layer=self.layers, n_head=self.heads, n_embd=self.width, vocab_size=self.vocab,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config).eval().to(self.device, self.dtype)

    def tokens(self) -> Tensor:
        """One sequence, `1 pos`; the same at every call."""
        return torch.randint(self.vocab, (1, self.length), generator=torch.Generator().manual_seed(0)).to(self.device)


@dataclass(frozen=True)
class LlamaSetting:
    """A model of Llama's architecture with random weights in bf16, and random sequences for it."""

    name: str
    sequences: int
    length: int
    layers: int
    heads: int
    kv_heads: int
    width: int
    inner: int
    vocab: int = 128_256
    device: str = "cuda"

    def model(self) -> PreTrainedModel:
        """The same weights at every call."""
        torch.manual_seed(0)
        config = LlamaConfig(
            num_hidden_layers=self.layers, num_attention_heads=self.heads, num_key_value_heads=self.kv_heads,
            hidden_size=self.width, intermediate_size=self.inner, vocab_size=self.vocab, bos_token_id=0, eos_token_id=0,
            max_position_embeddings=self.length, dtype=torch.bfloat16,
        )  # fmt: skip
        with torch.device(self.device):
            return LlamaForCausalLM(config).eval().to(torch.bfloat16)

    def tokens(self) -> Tensor:
        """`sequence pos`; the same at every call."""
        drawn = torch.randint(self.vocab, (self.sequences, self.length), generator=torch.Generator().manual_seed(0))
        return drawn.to(self.device)


def plain(model: PreTrainedModel) -> Run:
    """A forward pass, nothing kept but the logits."""
    return torch.no_grad()(lambda tokens: model(tokens, use_cache=False))


def compiled(model: PreTrainedModel, compiler: str = "inductor") -> Run:
    """The forward pass through `torch.compile`."""
    fast = torch.compile(model, backend=compiler)
    return torch.no_grad()(lambda tokens: fast(tokens, use_cache=False))


def first_position(model: PreTrainedModel) -> Run:
    """Importance of the first position, and norms."""
    subject = si.load(model)
    return lambda tokens: si.measure(subject, tokens, positions=(0,))


def all_positions(model: PreTrainedModel) -> Run:
    """Importance of every position, and norms."""
    subject = si.load(model)
    return lambda tokens: si.measure(subject, tokens)


def default_measure(model: PreTrainedModel) -> Run:
    """What `sinkinterp measure` reads by default: every position, norms and all instruments."""
    subject = si.load(model)
    return lambda tokens: si.measure(subject, tokens, instruments=ALL)


def first_position_nnsight(model: PreTrainedModel) -> Run:
    """Importance of the first position, and norms, inside an nnsight trace."""
    subject = si.load(model, backend="nnsight")
    return lambda tokens: si.measure(subject, tokens, positions=(0,))


def patterns_transformers(model: PreTrainedModel) -> Run:
    """Eager attention with `output_attentions=True`."""
    model.set_attn_implementation("eager")
    return torch.no_grad()(lambda tokens: model(tokens, use_cache=False, output_attentions=True))


def patterns_nnsight(model: PreTrainedModel) -> Run:
    """Eager attention, the weights of every layer saved inside a trace."""
    from nnsight import NNsight

    model.set_attn_implementation("eager")
    envoy = NNsight(model)
    return lambda tokens: _saved_patterns(envoy, tokens)


def _saved_patterns(envoy: Any, tokens: Tensor) -> tuple[object, object]:
    import nnsight

    with torch.no_grad(), envoy.trace(tokens, use_cache=False):
        patterns = nnsight.save([])
        for block in _attention_envoys(envoy):
            patterns.append(block.source.attention_interface_1.output[1])
        logits = nnsight.save(envoy.output.logits)
    return logits, patterns


def _attention_envoys(envoy: Any) -> list[Any]:
    """nnsight's envoys of the attention modules of a GPT-2 or a Llama."""
    if hasattr(envoy._module, "transformer"):
        return [block.attn for block in envoy.transformer.h]
    return [block.self_attn for block in envoy.model.layers]


def cache_transformer_lens(model: PreTrainedModel) -> Run:
    """TransformerLens' `run_with_cache`: all activations, patterns among them."""
    from sinkinterp.backends.bridge import bridge_of

    bridge = bridge_of(model)
    return torch.no_grad()(bridge.run_with_cache)


def generation(model: PreTrainedModel) -> Run:
    """16 new tokens, greedily."""
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    return lambda tokens: model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)


def generation_in_a_block(model: PreTrainedModel) -> Run:
    """The same in a block of an edit that zeroes what head 0 of layer 0 returns."""
    run, edit = generation(model), Change(si.sites.OUTPUT, SetTo(0.0), heads=[(0, 0)])

    def edited(tokens: Tensor) -> object:
        with si.patched(model, edit):
            return run(tokens)

    return edited


def patching(model: PreTrainedModel) -> Run:
    """`activation_patching` of residuals at the last position: the first sequence, corrupted by adding 1 to each id."""
    subject, vocab = si.load(model), model.config.vocab_size

    def patched(tokens: Tensor) -> object:
        clean, site = tokens[:1], Change(si.sites.RESIDUAL, positions=[tokens.shape[1] - 1])
        return si.activation_patching(subject, clean, (clean + 1) % vocab, site=site, progress=False)

    return patched
