"""A transformers model that stays edited while its user generates with it, evaluates it or trains it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..interventions.edit import Edit, edits_of
from .hooks import RECORDING, Recording, attention_set_to, recorded_stream
from .huggingface import HuggingFaceSubject
from .projections import edited_weights
from .recorder import Recorder


@contextmanager
def patched(model: Any, *edits: Edit) -> Iterator[Any]:
    """The transformers model itself, edited until the block ends, then exactly as it was; inner blocks edit last::

        with si.patched(model, si.PatchNormalization(Sigmoid(), layers=[3])):
            model.generate(**inputs)

    Positions count from the start of the sequence, also where a cache holds its beginning. Raises InputError for edits
    that do not fit, for padded batches (positions would count padding), and for caches that forget or preallocate keys.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"patched takes a transformers model; got {type(model).__name__}. For others: measure(edits=)")
    edits_of(edits)
    if not edits:
        raise InputError("patched needs at least one edit")
    is_outermost = model not in _PATCHES
    patch = _Patch(HuggingFaceSubject(model)) if is_outermost else _PATCHES[model]
    edits_before = patch.edits
    patch.subject.check_edits(edits, patch.subject.shape.n_ctx or torch.iinfo(torch.int32).max)
    with ExitStack() as stack:
        stack.enter_context(edited_weights(patch.subject.shape, patch.subject.weights, edits))
        if is_outermost:
            _PATCHES[model] = patch
            stack.callback(_PATCHES.pop, model)
            stack.enter_context(_hooked(patch))
        patch.edits = (*edits_before, *edits)
        try:
            yield model
        finally:
            patch.edits = edits_before


@dataclass
class _Patch:
    """The edits of all the `patched` blocks around a model, and the recorder that makes them in every forward pass."""

    subject: HuggingFaceSubject
    edits: tuple[Edit, ...] = ()
    recorder: Recorder = field(default_factory=Recorder)
    recordings_before: list[Token[Recording | None]] = field(default_factory=list)

    def before_pass(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """A forward pre-hook: starts the recorder, and gives the model the edited positions."""
        inputs = next(t for t in (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if t is not None)
        cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
        past = 0 if cache is None else cache.get_seq_length()
        if mask is not None and (mask.ndim != 2 or not mask.bool().all()):
            raise InputError("a patched model takes no padding; give it sequences of one length")
        self.subject.check_edits(self.edits, past + inputs.shape[1])
        self.recorder.begin(self.edits, past)
        kwargs |= self._positions(inputs, past)
        self.recordings_before.append(RECORDING.set(Recording(self.recorder, self.subject.modules.layers)))
        return args, kwargs

    def after_pass(self, model: Any, args: tuple[Any, ...], output: Any) -> None:
        """A forward hook, which is also called after an exception: its output is then None."""
        if self.recordings_before:  # none where the pass was refused
            RECORDING.reset(self.recordings_before.pop())
        if output is not None:
            self.recorder.check(self.subject.shape)

    def _positions(self, inputs: Tensor, past: int) -> dict[str, Tensor]:
        length = past + inputs.shape[1]
        positions = self.subject.positions(self.edits, length)
        if not positions:
            return {}
        ones = torch.ones(inputs.shape[0], length, dtype=torch.long, device=inputs.device)
        return {"position_ids": positions["position_ids"][:, past:], "attention_mask": ones}


_PATCHES: WeakKeyDictionary[PreTrainedModel, _Patch] = WeakKeyDictionary()


@contextmanager
def _hooked(patch: _Patch) -> Iterator[None]:
    """Inside, every forward pass of the model is shown to the patch's recorder."""
    subject = patch.subject
    with ExitStack() as stack:
        stack.enter_context(recorded_stream(subject.modules, patch.recorder))
        stack.enter_context(attention_set_to(subject.model, subject.recorded_attention))
        for handle in (
            subject.model.register_forward_pre_hook(patch.before_pass, with_kwargs=True),
            subject.model.register_forward_hook(patch.after_pass, always_call=True),
        ):
            stack.callback(handle.remove)
        yield
