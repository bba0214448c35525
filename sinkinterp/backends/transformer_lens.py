"""TransformerLens bridges as subjects. `bridge_layer` puts the call of every layer together from its hooks."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention.call import AttentionCall
from ..attention.shapes import Pattern
from ..data.tokens import Tokens
from ..errors import InputError
from ..interventions.edit import HeadWeights
from . import contract
from .bridge_layer import FIX, BridgeLayer, Compare
from .hooks import eval_mode, recorded_stream
from .huggingface import HuggingFaceSubject
from .projections import Role, weights_of_linear
from .recorder import Recorder
from .subject import Logits


class TransformerLensSubject(HuggingFaceSubject):
    """A `TransformerBridge` with raw weights, as `bridge_of` builds it.

    Raises InputError for processed weights, where the hooks do not make up the call, or where the contract fails.
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

    def _check_contract(self, bare: Logits) -> None:
        try:
            super()._check_contract(bare)
        except InputError as error:
            raise InputError(f"{error}; {FIX}") from error

    @property
    def _embedding(self) -> nn.Embedding:
        return self._bridge.embed.original_component

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Logits:
        with recorded_stream(self.modules, recorder):
            return self._recorded(tokens, recorder, positions)

    def weights(self, layer: int, role: Role) -> HeadWeights | None:
        attention: Any = self.modules.blocks[layer].attn  # fused maps are taken apart when a bridge boots
        linear = (attention.q, attention.k, attention.v)[role].original_component
        return weights_of_linear(linear, self.shape.d_head)

    def _recorded(
        self, tokens: Tokens, recorder: Recorder, positions: Mapping[str, Tensor], compare: Compare = lambda *_: None
    ) -> Logits:
        """The logits of a pass that shows the recorder, and then `compare`, the call of every attention layer."""
        blocks = [(i, block) for i, block in enumerate(self.modules.blocks) if hasattr(block, "attn")]
        layers = [BridgeLayer(i, block.attn, recorder, compare) for i, block in blocks]
        try:
            with self._bridge.hooks(fwd_hooks=[hook for layer in layers for hook in layer.hooks(self._bridge)]):
                logits = self._forward(tokens, None, gradients=recorder.gradients, **positions)
        finally:
            for layer in layers:
                layer.attention._pattern = None  # TransformerLens keeps the last one of every layer
        if not layers or not all(layer.has_pattern and layer.has_output for layer in layers):
            raise InputError(f"{self.name} shows no pattern; boot it with eager attention (bridge_of), or {FIX}")
        return logits

    def _check_patterns(self) -> None:
        """Raises InputError where a call does not give the pattern that TransformerLens computed."""
        distances: list[float] = []
        tokens = contract.sample_tokens(self.shape.vocab)
        self._recorded(tokens, Recorder(), {}, lambda call, pattern: distances.append(_distance(call, pattern)))
        if not max(distances) <= contract.weight_tolerance(self.dtype):
            raise InputError(
                f"{self.name} under TransformerLens cannot be measured: the queries, keys and masks that its hooks "
                f"show do not give its own pattern; {FIX}"
            )


def bridge_of(model: PreTrainedModel) -> Any:
    """A `TransformerBridge` over a deep copy of a transformers model, with eager attention; booting rewires in place.

    A model of our own family goes through its Llama export, where it is Llama. Raises InputError where TransformerLens
    knows no such architecture, or computes other logits than transformers.
    """
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    name, export = type(model).__name__, getattr(model, "to_llama", None)
    model = model if export is None else export()
    copied = copy.deepcopy(model)
    copied.set_attn_implementation("eager")
    try:
        bridge = build_bridge_from_module(copied, type(copied).__name__, hf_config=copied.config)
    except (ValueError, RuntimeError) as error:  # its own kinds of refusal, and weights of a shape that it lacks
        raise InputError(f"TransformerLens cannot run {name}: {str(error).splitlines()[0]}; {FIX}") from error
    tokens = contract.sample_tokens(model.get_input_embeddings().num_embeddings).to(model.device)
    with torch.no_grad(), eval_mode(model), eval_mode(copied):
        before, after = (
            m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits for m in (model, copied)
        )
    if not (before - after).abs().max() <= contract.TOLERANCE.get(model.dtype, 0.1):
        raise InputError(f"{name} under TransformerLens gives other logits than under transformers; {FIX}")
    return bridge


def _distance(call: AttentionCall, pattern: Pattern) -> float:
    ours = call.pattern()[..., -call.k.shape[2] :]
    return (ours - pattern).abs().max().item() if ours.shape == pattern.shape else torch.inf
