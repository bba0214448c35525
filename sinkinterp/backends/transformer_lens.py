"""TransformerLens bridges as subjects: the call of every layer, put together from the hooks that fire in it."""

import copy
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..attention.slots import SinkLogit
from ..errors import InputError
from ..interventions.edit import HeadWeights
from . import contract
from .hooks import evaluating, stream_hooks
from .huggingface import Fetch, HuggingFaceSubject
from .projections import apart
from .recorder import Recorder
from .subject import Tokens

Hooks = list[tuple[str, Callable[..., Tensor | None]]]
Compare = Callable[[AttentionCall, Tensor], None]

_SITES = {  # hook -> what it shows; of several that show q or k, the one that fires last is what attention consumes
    "q.hook_out": "q", "hook_q_normed": "q", "hook_rot_q": "q",
    "k.hook_out": "k", "hook_k_normed": "k", "hook_rot_k": "k",
    "v.hook_out": "v", "hook_cos": "cos", "hook_sin": "sin",
}  # fmt: skip
_HEAD_FIRST = ("hook_q_normed", "hook_k_normed")
_OTHERWISE = "use the Hugging Face backend: sinkinterp.load(model)"


class TransformerLensSubject(HuggingFaceSubject):
    """A `TransformerBridge` with raw weights, as `bridge_of` builds it.

    Raises InputError for processed weights, where the hooks do not make up the call, or where a contract is broken.
    """

    libraries: tuple[str, ...] = ("transformer-lens",)

    def __init__(self, bridge: Any, name: str | None = None) -> None:
        if bridge.compatibility_mode or getattr(bridge, "_weights_processed", False):
            raise InputError(
                "compatibility mode folds and centres weights, so norms are no longer the model's; "
                "boot the bridge again without enable_compatibility_mode() or process_weights()"
            )
        self._bridge = bridge
        super().__init__(bridge.original_model, name)
        self._check_patterns()

    @property
    def _embedding(self) -> nn.Embedding:
        return self._bridge.embed.original_component

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Fetch:
        with stream_hooks(self.sites, recorder):
            logits = self._recorded(tokens, recorder, positions)
        return lambda: logits

    def weights(self, layer: int, role: int) -> HeadWeights | None:
        attention: Any = self.sites.blocks[layer].attn  # fused maps are taken apart when a bridge boots
        linear = (attention.q, attention.k, attention.v)[role].original_component
        return apart(linear, self.shape.d_head)

    def _recorded(
        self, tokens: Tokens, recorder: Recorder, positions: Mapping[str, Tensor], compare: Compare = lambda *both: None
    ) -> Tensor:
        """The logits; `recorder` is shown the call of every attention layer, `compare` that call beside its pattern."""
        layers = [
            _Layer(i, block.attn, recorder, compare)
            for i, block in enumerate(self.sites.blocks)
            if hasattr(block, "attn")
        ]
        try:
            with self._bridge.hooks(fwd_hooks=[hook for layer in layers for hook in layer.hooks(self._bridge)]):
                logits = self._forward(tokens, None, gradients=recorder.gradients, **positions)
        finally:
            for layer in layers:
                layer.attention._pattern = None  # TransformerLens keeps the last one, T x T for every layer
        if not layers or not all(layer.has_pattern and layer.has_output for layer in layers):
            raise InputError(f"{self.name} shows no pattern; boot it with eager attention (bridge_of), or {_OTHERWISE}")
        return logits

    def _check_patterns(self) -> None:
        """Raises InputError where a call does not give the pattern that TransformerLens computed."""
        distances: list[float] = []
        tokens = contract.tokens_for(self.shape.vocab)
        self._recorded(tokens, Recorder(), {}, lambda call, pattern: distances.append(_distance(call, pattern)))
        if not max(distances) <= contract.TOLERANCE.get(self.dtype, 0.1):
            raise InputError(
                f"{self.name} under TransformerLens cannot be measured: the queries, keys and masks that its hooks "
                f"show do not give its own pattern; {_OTHERWISE}"
            )


@dataclass(repr=False)  # TransformerLens writes out every hook's function, whose text would hold all tensors
class _Layer:
    """One attention layer during one forward pass: what its hooks have shown, and the call they make up."""

    index: int
    attention: Any
    recorder: Recorder
    compare: Compare
    shown: dict[str, Tensor] = field(default_factory=dict)
    rotated: bool = False
    mask: Tensor | None = None
    calls: tuple[AttentionCall, AttentionCall] | None = None  # as the model made it, and as the edits leave it
    has_pattern: bool = False
    has_output: bool = False

    def hooks(self, bridge: Any) -> Hooks:
        """Names and functions of the hooks to read, of those that this architecture has."""
        prefix = f"blocks.{self.index}.attn."
        functions: dict[str, Callable[..., Tensor | None]] = dict.fromkeys(_SITES, self._show)
        functions |= {"hook_attn_scores": self._mask, "hook_pattern": self._finish, "hook_z": self._write}
        return [(prefix + site, f) for site, f in functions.items() if prefix + site in bridge.hook_dict]

    # TransformerLens passes `hook` by name
    def _show(self, tensor: Tensor, hook: Any) -> None:
        site = hook.name.split(".attn.")[1]
        self.rotated |= site == "hook_rot_q"
        self.shown[_SITES[site]] = tensor.transpose(1, 2) if site in _HEAD_FIRST else tensor

    def _mask(self, tensor: Tensor, hook: Any) -> None:
        if self.calls is None:  # delegated attention (OPT) fires this after the pattern, and shows the pattern
            self.mask = tensor[:, :1] > torch.finfo(tensor.dtype).min / 2

    # delegated attention (OPT) shows its output before its pattern; all others show the pattern first
    def _finish(self, tensor: Tensor, hook: Any) -> None:
        if self.has_pattern:
            raise InputError(f"layer {self.index} attends twice in one pass; such models cannot be read by layer")
        own, _ = self._seen()
        self.compare(own, tensor)
        self.has_pattern = True
        self._forget()

    def _write(self, tensor: Tensor, hook: Any) -> Tensor | None:
        own, seen = self._seen()
        self.has_output = True
        self._forget()
        if seen is own and not self.recorder.edits_at("output"):
            return None
        heads = rearrange(tensor.flatten(2), "batch pos (head d) -> batch head pos d", head=own.q.shape[1])
        z = self.recorder.output(seen, heads if seen is own else seen.output())
        return rearrange(z, "batch head pos d -> batch pos head d").reshape(tensor.shape)

    def _seen(self) -> tuple[AttentionCall, AttentionCall]:
        if self.calls is None:
            own = self._call()
            self.calls = own, self.recorder.attend(own)
        return self.calls

    def _forget(self) -> None:
        if self.has_pattern and self.has_output:
            self.calls, self.shown, self.mask = None, {}, None

    def _call(self) -> AttentionCall:
        own = self.attention.original_component
        heads = [self.shown[name] for name in "qkv" if name in self.shown and self.shown[name].ndim == 4]
        if len(heads) != 3:
            raise InputError(f"{type(own).__name__} shows no queries, keys and values by head; {_OTHERWISE}")
        q, k, v = (rearrange(x, "batch pos head d -> batch head pos d") for x in heads)
        if "cos" in self.shown and not self.rotated:  # GPT-NeoX: hook_rot_q exists and never fires
            rotate = getattr(sys.modules[type(own).__module__], "apply_rotary_pos_emb", None)
            if rotate is None:
                raise InputError(f"{type(own).__name__} shows no rotated queries and keys; {_OTHERWISE}")
            q, k = rotate(q, k, self.shown["cos"], self.shown["sin"])
        if self.mask is None and getattr(own.config, "sliding_window", None):
            raise InputError(f"{type(own).__name__} shows no mask, and has a window; {_OTHERWISE}")
        sinks = getattr(own, "sinks", None)
        return AttentionCall(
            self.index, q, k, v, getattr(own, "scaling", q.shape[-1] ** -0.5), self.mask,
            softcap=getattr(own, "attn_logit_softcapping", None), slot=None if sinks is None else SinkLogit(sinks),
        )  # fmt: skip


def bridge_of(model: PreTrainedModel) -> Any:
    """A `TransformerBridge` over a deep copy of a transformers model, with eager attention; booting rewires in place.

    A model of our own family goes through its Llama export, where it is Llama. Raises InputError where TransformerLens
    knows no such architecture, or computes other logits than transformers.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    name, export = type(model).__name__, getattr(model, "to_llama", None)
    model = model if export is None else export()
    own = copy.deepcopy(model)
    own.set_attn_implementation("eager")
    try:
        bridge = build_bridge_from_module(own, type(own).__name__, hf_config=own.config)
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"TransformerLens cannot run {name}: {str(error).splitlines()[0]}; {_OTHERWISE}") from error
    tokens = contract.tokens_for(model.get_input_embeddings().num_embeddings).to(model.device)
    with torch.no_grad(), evaluating(model), evaluating(own):
        theirs, ours = (m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False) for m in (model, own))
    if not (theirs.logits - ours.logits).abs().max() <= contract.TOLERANCE.get(model.dtype, 0.1):
        raise InputError(f"{name} under TransformerLens gives other logits than under transformers; {_OTHERWISE}")
    return bridge


def _distance(call: AttentionCall, pattern: Tensor) -> float:
    ours = call.pattern()[..., -call.k.shape[2] :]
    return (ours - pattern).abs().max().item() if ours.shape == pattern.shape else torch.inf
