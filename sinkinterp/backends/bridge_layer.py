"""One attention layer of a TransformerLens bridge: its call, put together from what its hooks show."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.shapes import Pattern
from ..attention.slots import SinkLogit
from ..errors import InputError
from ..interventions.edit import OUTPUT
from .recorder import Recorder

Hooks = list[tuple[str, Callable[..., Tensor | None]]]
Compare = Callable[[AttentionCall, Pattern], None]  # a call, and the pattern that TransformerLens computed from it

_HOOKS = {  # hook -> what it shows; of several that show q or k, the one that fires last shows what attention uses
    "q.hook_out": "q", "hook_q_normed": "q", "hook_rot_q": "q",
    "k.hook_out": "k", "hook_k_normed": "k", "hook_rot_k": "k",
    "v.hook_out": "v", "hook_cos": "cos", "hook_sin": "sin",
}  # fmt: skip
_HEAD_FIRST = ("hook_q_normed", "hook_k_normed")
FIX = "use the Hugging Face backend: sinkinterp.load(model)"


@dataclass(repr=False)  # TransformerLens prints every hook's function, and the text would hold all tensors
class BridgeLayer:
    """One attention layer during one forward pass: what its hooks have shown, and the call that this makes up."""

    index: int
    attention: Any
    recorder: Recorder
    compare: Compare
    shown: dict[str, Tensor] = field(default_factory=dict)
    rotated: bool = False
    mask: Tensor | None = None
    calls: tuple[AttentionCall, AttentionCall] | None = None  # before and after the edits
    has_pattern: bool = False
    has_output: bool = False

    def hooks(self, bridge: Any) -> Hooks:
        """Names of hooks that this architecture has, and the functions that are called there."""
        prefix = f"blocks.{self.index}.attn."
        functions: dict[str, Callable[..., Tensor | None]] = dict.fromkeys(_HOOKS, self._store)
        functions |= {
            "hook_attn_scores": self._store_mask,
            "hook_pattern": self._compare_pattern,
            "hook_z": self._edit_output,
        }
        return [(prefix + name, f) for name, f in functions.items() if prefix + name in bridge.hook_dict]

    # TransformerLens passes `hook` by name
    def _store(self, tensor: Tensor, hook: Any) -> None:
        name = hook.name.split(".attn.")[1]
        self.rotated |= name == "hook_rot_q"
        self.shown[_HOOKS[name]] = tensor.transpose(1, 2) if name in _HEAD_FIRST else tensor

    def _store_mask(self, tensor: Tensor, hook: Any) -> None:
        if self.calls is None:  # delegated attention (OPT) fires this after the pattern, and shows the pattern
            self.mask = tensor[:, :1] > torch.finfo(tensor.dtype).min / 2

    # delegated attention (OPT) shows its output before its pattern; all others show the pattern first
    def _compare_pattern(self, tensor: Tensor, hook: Any) -> None:
        if self.has_pattern:
            raise InputError(f"layer {self.index} attends twice in one pass; such models cannot be read by layer")
        original, _ = self._both_calls()
        self.compare(original, tensor)
        self.has_pattern = True
        self._forget()

    def _edit_output(self, tensor: Tensor, hook: Any) -> Tensor | None:
        original, edited = self._both_calls()
        self.has_output = True
        self._forget()
        if edited is original and not self.recorder.edits_at(OUTPUT):
            return None
        heads = rearrange(tensor.flatten(2), "batch pos (head d) -> batch head pos d", head=original.q.shape[1])
        z = self.recorder.output(edited, heads if edited is original else edited.output())
        return rearrange(z, "batch head pos d -> batch pos head d").reshape(tensor.shape)

    def _both_calls(self) -> tuple[AttentionCall, AttentionCall]:
        if self.calls is None:
            original = self._call()
            self.calls = original, self.recorder.attend(original)
        return self.calls

    def _forget(self) -> None:
        if self.has_pattern and self.has_output:
            self.calls, self.shown, self.mask = None, {}, None

    def _call(self) -> AttentionCall:
        attention = self.attention.original_component
        q, k, v = self._heads(attention)
        if self.mask is None and getattr(getattr(attention, "config", None), "sliding_window", None):
            raise InputError(f"{type(attention).__name__} shows no mask, and has a window; {FIX}")
        sinks = getattr(attention, "sinks", None)
        return AttentionCall(
            layer=self.index,
            q=q,
            k=k,
            v=v,
            scale=getattr(attention, "scaling", q.shape[-1] ** -0.5),
            mask=self.mask,
            softcap=getattr(attention, "attn_logit_softcapping", None),
            slot=None if sinks is None else SinkLogit(sinks),
        )

    def _heads(self, attention: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `batch head pos d`, after norms and rotation."""
        shown = [self.shown[name] for name in "qkv" if name in self.shown and self.shown[name].ndim == 4]
        if len(shown) != 3:
            raise InputError(f"{type(attention).__name__} shows no queries, keys and values by head; {FIX}")
        q, k, v = (rearrange(x, "batch pos head d -> batch head pos d") for x in shown)
        if "cos" in self.shown and not self.rotated:  # GPT-NeoX: hook_rot_q exists and never fires
            rotate = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
            if rotate is None:
                raise InputError(f"{type(attention).__name__} shows no rotated queries and keys; {FIX}")
            q, k = rotate(q, k, self.shown["cos"], self.shown["sin"])
        return q, k, v
