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
from . import contract
from .huggingface import HuggingFaceSubject, Pass
from .subject import CallRead, ResidualRead, Tokens
from .watching import evaluating, residual_hooks

Hooks = list[tuple[str, Callable[..., None]]]
Answer = Callable[[AttentionCall, Tensor], dict[str, Tensor]]

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

    def _pass(
        self, tokens: Tokens, calls: Mapping[str, CallRead], residuals: Mapping[str, ResidualRead], **positions: Tensor
    ) -> Pass:
        streams: list[dict[str, Tensor]] = []
        with residual_hooks(self._blocks, residuals, streams):
            rows, logits = self._watched(
                tokens, lambda call, pattern: {name: read(call) for name, read in calls.items()}, **positions
            )
        return rows, streams, logits

    def _watched(
        self, tokens: Tokens, answer: Answer, **positions: Tensor
    ) -> tuple[dict[int, dict[str, Tensor]], Tensor]:
        """What `answer` gave for the call and the pattern of every attention layer, and the logits."""
        layers = [_Layer(i, block.attn, answer) for i, block in enumerate(self._blocks) if hasattr(block, "attn")]
        try:
            with self._bridge.hooks(fwd_hooks=[hook for layer in layers for hook in layer.hooks(self._bridge)]):
                logits = self._forward(tokens, None, **positions)
        finally:
            for layer in layers:
                layer.attention._pattern = None  # TransformerLens keeps the last one, T x T for every layer
        rows = {layer.index: layer.answers for layer in layers if layer.answers is not None}
        if not rows or len(rows) < len(layers):
            raise InputError(f"{self.name} shows no pattern; boot it with eager attention (bridge_of), or {_OTHERWISE}")
        return rows, logits

    def _check_patterns(self) -> None:
        """Raises InputError where a call does not give the pattern that TransformerLens computed."""
        rows, _ = self._watched(contract.tokens_for(self.shape.vocab), _distance)
        worst = max(row["distance"].item() for row in rows.values())
        if not worst <= contract.TOLERANCE.get(self.dtype, 0.1):
            raise InputError(
                f"{self.name} under TransformerLens cannot be measured: the queries, keys and masks that its hooks "
                f"show do not give its own pattern; {_OTHERWISE}"
            )


@dataclass
class _Layer:
    """One attention layer during one forward pass: what its hooks have shown, then what was answered."""

    index: int
    attention: Any
    answer: Answer
    shown: dict[str, Tensor] = field(default_factory=dict)
    rotated: bool = False
    mask: Tensor | None = None
    answers: dict[str, Tensor] | None = None

    def hooks(self, bridge: Any) -> Hooks:
        """Names and functions of the hooks to read, of those that this architecture has."""
        prefix = f"blocks.{self.index}.attn."
        functions = dict.fromkeys(_SITES, self._show)
        functions |= {"hook_attn_scores": self._mask, "hook_pattern": self._finish}
        return [(prefix + site, f) for site, f in functions.items() if prefix + site in bridge.hook_dict]

    # TransformerLens passes `hook` by name
    def _show(self, tensor: Tensor, hook: Any) -> None:
        site = hook.name.split(".attn.")[1]
        self.rotated |= site == "hook_rot_q"
        self.shown[_SITES[site]] = tensor.transpose(1, 2) if site in _HEAD_FIRST else tensor

    def _mask(self, tensor: Tensor, hook: Any) -> None:
        if self.answers is None:  # delegated attention (OPT) fires this after the pattern, and shows the pattern
            self.mask = tensor[:, :1] > torch.finfo(tensor.dtype).min / 2

    def _finish(self, tensor: Tensor, hook: Any) -> None:
        if self.answers is not None:
            raise InputError(f"layer {self.index} attends twice in one pass; such models cannot be read by layer")
        self.answers = self.answer(self._call(), tensor)
        self.shown, self.mask = {}, None

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

    Raises InputError where TransformerLens knows no such architecture, or computes other logits than transformers.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    own, name = copy.deepcopy(model), type(model).__name__
    own.set_attn_implementation("eager")
    try:
        bridge = build_bridge_from_module(own, name, hf_config=own.config)
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"TransformerLens cannot run {name}: {str(error).splitlines()[0]}; {_OTHERWISE}") from error
    tokens = contract.tokens_for(model.get_input_embeddings().num_embeddings).to(model.device)
    with torch.no_grad(), evaluating(model), evaluating(own):
        theirs, ours = (m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False) for m in (model, own))
    if not (theirs.logits - ours.logits).abs().max() <= contract.TOLERANCE.get(model.dtype, 0.1):
        raise InputError(f"{name} under TransformerLens gives other logits than under transformers; {_OTHERWISE}")
    return bridge


def _distance(call: AttentionCall, pattern: Tensor) -> dict[str, Tensor]:
    ours = call.pattern()[..., -call.k.shape[2] :]
    return {"distance": (ours - pattern).abs().max() if ours.shape == pattern.shape else torch.tensor(torch.inf)}
