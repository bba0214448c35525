"""TransformerLens bridges as subjects. A `BridgeLayer` makes the call of a layer from the tensors that hooks show."""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import OUTPUT, WEIGHT_SITES, AttentionCall, Gap, Pattern, call_of_interface
from ..checks import InputError
from ..data.tokens import Tokens
from . import contract
from .anatomy import ALONE, HeadMap, removed_after
from .attached import Hook, recorded_by, used_alone
from .bridge import FIX, bridge_of
from .hooks import recorded_stream
from .huggingface import HuggingFaceSubject, check_is_decoder
from .recorder import Recorder
from .subject import Logits

_HOOKS = {  # hook -> what it shows; of several that show q or k, the one that fires last shows what attention uses
    "q.hook_out": "q", "hook_q_normed": "q", "hook_rot_q": "q",
    "k.hook_out": "k", "hook_k_normed": "k", "hook_rot_k": "k",
    "v.hook_out": "v", "hook_cos": "cos", "hook_sin": "sin",
}  # fmt: skip
_UNREAD = ("hook_attn_scores", "hook_pattern")  # a call is made up of what other hooks show
_HEAD_FIRST = ("hook_q_normed", "hook_k_normed")


@dataclass(repr=False)  # TransformerLens prints every hook's function, and the text would hold all tensors
class BridgeLayer:
    """One attention layer during one forward pass: the tensors that its hooks have shown, and their call.

    compares: whether the pattern of the call is compared with that of TransformerLens; `distance` is the largest
    difference. shows_edits: whether hooks that come later are shown the edited pattern, and may change it.
    """

    index: int
    attention: Any
    recorder: Recorder
    compares: bool = False
    shows_edits: bool = False
    distance: float = 0.0
    shown: dict[str, Tensor] = field(default_factory=dict)
    calls: tuple[AttentionCall, AttentionCall] | None = None  # before and after the edits
    has_pattern: bool = False
    has_output: bool = False

    def hooks(self, known: Mapping[str, Any]) -> list[tuple[str, Hook]]:
        """Names of hooks, of those that the bridge has, and the functions that are called there."""
        prefix = f"blocks.{self.index}.attn."
        functions: dict[str, Callable[..., Tensor | None]] = dict.fromkeys(_HOOKS, self._store)
        functions |= {"hook_attn_scores": self._store_mask, "hook_pattern": self._compare_pattern}
        functions["hook_z"] = self._edit_output
        return [(prefix + name, Hook(self.recorder, f)) for name, f in functions.items() if prefix + name in known]

    def begin(self) -> None:
        """Starts another forward pass."""
        self.calls, self.shown = None, {}
        self.has_pattern = self.has_output = False

    # TransformerLens passes `hook` by name
    def _store(self, tensor: Tensor, hook: Any) -> None:
        name = hook.name.split(".attn.")[1]
        self.shown[_HOOKS[name]] = tensor.transpose(1, 2) if name in _HEAD_FIRST else tensor
        if name == "hook_rot_q":
            self.shown["rotated"] = tensor

    def _store_mask(self, tensor: Tensor, hook: Any) -> None:
        if self.calls is None:  # delegated attention (OPT) fires this after the pattern, and shows the pattern
            self.shown["mask"] = tensor[:, :1] > torch.finfo(tensor.dtype).min / 2

    # delegated attention (OPT) shows its output before its pattern; all others show the pattern first
    def _compare_pattern(self, tensor: Tensor, hook: Any) -> Tensor | None:
        original, edited = self._both_calls()
        if self.compares:
            self.distance = _distance(original, tensor)
        self.has_pattern, is_used_already = True, self.has_output
        self._forget()
        if edited is original or not self.shows_edits:
            return None
        pattern = _of_tokens(edited).to(tensor.dtype)
        if is_used_already and not torch.is_grad_enabled():
            tensor.copy_(pattern)  # TransformerLens would warn that a tensor which is returned is not used
            return None
        return pattern

    def _edit_output(self, tensor: Tensor, hook: Any) -> Tensor | None:
        original, edited = self._both_calls()
        self.has_output = True
        self._forget()
        if edited is original and not self.recorder.uses(OUTPUT):
            return None
        heads = rearrange(tensor.flatten(2), "batch pos (head d) -> batch head pos d", head=original.q.shape[1])
        z = self.recorder.output(edited, heads if edited is original else self._edited_heads(original, edited, heads))
        return rearrange(z, "batch head pos d -> batch pos head d").reshape(tensor.shape)

    def _edited_heads(self, original: AttentionCall, edited: AttentionCall, heads: Tensor) -> Tensor:
        """What the heads of the edited call return; `heads` is what TransformerLens computed.

        It has used the edited pattern if it was shown it, with the changes of later hooks.
        """
        if not (self.shows_edits and self.has_pattern):
            return edited.output()
        if edited.v is original.v and edited.slot is None:
            return heads
        expected = replace(original, slot=None).mix(_of_tokens(edited))
        what = f"a hook of yours changes blocks.{self.index}.attn.hook_pattern, where an edit changes values too"
        Gap.of(heads, expected).check(1e-3, what, "take one of them off")
        return edited.output()

    def _both_calls(self) -> tuple[AttentionCall, AttentionCall]:
        if self.calls is None:
            original = self._call()
            self.calls = original, self.recorder.edited_call(original)
        return self.calls

    def _forget(self) -> None:
        if self.has_pattern and self.has_output:
            self.calls, self.shown = None, {}

    def _call(self) -> AttentionCall:
        attention = self.attention.original_component
        q, k, v = self._heads(attention)
        mask = self.shown.get("mask")
        if mask is None and getattr(getattr(attention, "config", None), "sliding_window", None):
            raise InputError(f"{type(attention).__name__} shows no mask, and has a window; {FIX}")
        scale, sinks = getattr(attention, "scaling", None), getattr(attention, "sinks", None)
        softcap = getattr(attention, "attn_logit_softcapping", None)
        return call_of_interface(self.index, q, k, v, mask, scale, softcap=softcap, s_aux=sinks)

    def _heads(self, attention: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `batch head pos d`, after norms and rotation."""
        shown = [self.shown[name] for name in "qkv" if name in self.shown and self.shown[name].ndim == 4]
        if len(shown) != 3:
            raise InputError(f"{type(attention).__name__} shows no queries, keys and values by head; {FIX}")
        q, k, v = (rearrange(x, "batch pos head d -> batch head pos d") for x in shown)
        if "cos" in self.shown and "rotated" not in self.shown:  # GPT-NeoX: hook_rot_q exists and never fires
            rotate = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
            if rotate is None:
                raise InputError(f"{type(attention).__name__} shows no rotated queries and keys; {FIX}")
            q, k = rotate(q, k, self.shown["cos"], self.shown["sin"])
        return q, k, v


Layers = Sequence[BridgeLayer]


class TransformerLensSubject(HuggingFaceSubject):
    """A `TransformerBridge` with raw weights, as `bridge_of` builds it.

    Raises InputError for processed weights, where the hooks do not make up the call, or where the contract fails.
    """

    libraries: tuple[str, ...] = ("transformer-lens",)
    reads_caches = False
    contract_fix = FIX

    def __init__(self, bridge: Any, name: str | None = None) -> None:
        if bridge.compatibility_mode or getattr(bridge, "_weights_processed", False):
            raise InputError("compatibility mode folds weights; boot the bridge without enable_compatibility_mode()")
        self.bridge = bridge
        super().__init__(bridge.original_model, name)

    def lens(self) -> Any:
        """The bridge itself, with the tokenizer of the subject where it has none."""
        if self.bridge.tokenizer is None and self.tokenizer is not None:
            sizes = self.bridge.cfg.d_vocab, self.bridge.cfg.d_vocab_out
            for _ in range(2):  # a bridge reads its settings from the second one
                self.bridge.tokenizer = copy.deepcopy(self.tokenizer)
            self.bridge.cfg.d_vocab, self.bridge.cfg.d_vocab_out = sizes
        return self.bridge

    def _read_model(self, model: PreTrainedModel) -> None:
        super()._read_model(model)
        self._recorded(contract.sample_tokens(self.shape.vocab), Recorder(), {}, compares=True)

    @property
    def _embedding(self) -> nn.Embedding:
        return self.bridge.embed.original_component

    def _pass(self, tokens: Tokens, recorder: Recorder, **inputs: Any) -> Logits:
        with recorded_stream(self.modules, recorder):
            return self._recorded(tokens, recorder, inputs)

    def maps(self) -> Iterable[HeadMap]:
        for layer in self.shape.attention_layers:
            attention: Any = self.modules.blocks[layer].attn  # fused maps are taken apart when a bridge boots
            for site, part in zip(WEIGHT_SITES, (attention.q, attention.k, attention.v), strict=True):
                yield HeadMap(part.original_component, layer, site, ALONE, self.shape.d_head)

    def _recorded(
        self, tokens: Tokens, recorder: Recorder, inputs: Mapping[str, Tensor], compares: bool = False
    ) -> Logits:
        """The logits of a pass that shows the recorder the call of every attention layer.

        Raises InputError where a call does not give the pattern that TransformerLens computed. `compares`, and hooks of
        the user's own on what attention computes, ask for that.
        """
        hooked = [n for n, point in self.bridge.hook_dict.items() if point.fwd_hooks and n.endswith(_UNREAD)]
        with recorded_by(recorder), self._layers_shown(recorder, compares=compares or bool(hooked)) as layers:
            logits = self._run_model(tokens, gradients=recorder.gradients, **inputs)
        if not layers or not all(layer.has_pattern and layer.has_output for layer in layers):
            raise InputError(f"{self.name} shows no pattern; boot it with eager attention (bridge_of), or {FIX}")
        if not all(layer.distance <= contract.weight_tolerance(self.dtype) for layer in layers):
            fix = "take them off, and give the change as an edit" if hooked else FIX
            why = f"what hooks show does not give its own pattern{' under ' * bool(hooked)}{', '.join(hooked)}"
            raise InputError(f"{self.name} under TransformerLens cannot be measured: {why}; {fix}")
        return logits

    @contextmanager
    def _layers_shown(self, recorder: Recorder, compares: bool = False, shows_edits: bool = False) -> Iterator[Layers]:
        """In the block, the recorder is shown the call of every attention layer."""
        blocks = [(i, block) for i, block in enumerate(self.modules.blocks) if hasattr(block, "attn")]
        layers = [BridgeLayer(i, block.attn, recorder, compares, shows_edits) for i, block in blocks]
        try:
            known = self.bridge.hook_dict  # made anew whenever it is asked for
            with self.bridge.hooks(fwd_hooks=[hook for layer in layers for hook in layer.hooks(known)]):
                yield layers
        finally:
            for layer in layers:
                layer.attention._pattern = None  # TransformerLens keeps the last one of every layer

    @contextmanager
    def shown_to(self, recorder: Recorder) -> Iterator[None]:
        def begin_layers(*_: Any) -> None:
            for layer in layers:
                layer.begin()

        with (
            recorded_stream(self.modules, recorder, comes_first=True),
            self._layers_shown(recorder, shows_edits=True) as layers,
            removed_after([self.modules.blocks[0].register_forward_pre_hook(Hook(recorder, begin_layers))]),
        ):
            yield


def _of_tokens(call: AttentionCall) -> Pattern:
    """The pattern without the slot's column."""
    return call.pattern()[..., -call.k.shape[2] :]


def _distance(call: AttentionCall, pattern: Pattern) -> float:
    ours = _of_tokens(call)
    return (ours - pattern).abs().max().item() if ours.shape == pattern.shape else torch.inf


def make_subject(model: Any, name: str | None) -> TransformerLensSubject:
    """The subject of a bridge, or of the copy of a model of transformers that a bridge runs."""
    if isinstance(model, PreTrainedModel):
        check_is_decoder(model, name or type(model).__name__)
    with used_alone(model):
        bridge = bridge_of(model) if isinstance(model, PreTrainedModel) else model
    return TransformerLensSubject(bridge, name or type(model).__name__)
