"""A transformers model that stays edited while its user generates with it, evaluates it or trains it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from ..errors import InputError
from ..interventions.edit import Edit
from .hooks import RECORDER, attending, stream_hooks
from .huggingface import HuggingFaceSubject
from .projections import edited_weights
from .recorder import Recorder


@dataclass
class _Patch:
    """What is being done to a model, by all the `patched` blocks around it."""

    subject: HuggingFaceSubject
    edits: tuple[Edit, ...] = ()


_PATCHES: WeakKeyDictionary[PreTrainedModel, _Patch] = WeakKeyDictionary()


@contextmanager
def patched(model: Any, *edits: Edit) -> Iterator[Any]:
    """The transformers model itself, edited until the block ends, then exactly as it was; inner blocks edit last.

        with si.patched(model, si.PatchNormalization(Sigmoid(), layers=[3])):
            model.generate(**inputs)

    Positions count from the start of the sequence, also where a cache holds its beginning. Raises InputError for edits
    that do not fit, for padded batches (positions would count padding), and for caches that forget or preallocate keys.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"patched takes a transformers model; got {type(model).__name__}. For others: measure(edits=)")
    if not edits:
        raise InputError("patched needs at least one edit")
    outermost = model not in _PATCHES
    patch = _Patch(HuggingFaceSubject(model)) if outermost else _PATCHES[model]
    before = patch.edits
    patch.subject.check_edits(edits, patch.subject.shape.n_ctx or torch.iinfo(torch.int32).max)
    with ExitStack() as stack:
        stack.enter_context(edited_weights(patch.subject.shape, patch.subject.weights, edits))
        if outermost:
            _PATCHES[model] = patch
            stack.callback(_PATCHES.pop, model)
            stack.enter_context(_recorded(patch))
        patch.edits = (*before, *edits)
        try:
            yield model
        finally:
            patch.edits = before


@contextmanager
def _recorded(patch: _Patch) -> Iterator[None]:
    """Every forward pass of the model is shown to a recorder that reads nothing and makes the patch's edits."""
    subject, recorder, tokens = patch.subject, Recorder(), []

    def entering(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        inputs = next(t for t in (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if t is not None)
        cache, mask = kwargs.get("past_key_values"), kwargs.get("attention_mask")
        past = 0 if cache is None else cache.get_seq_length()
        length = past + inputs.shape[1]
        if mask is not None and (mask.ndim != 2 or not mask.bool().all()):
            raise InputError("a patched model takes no padding; give it sequences of one length")
        subject.check_edits(patch.edits, length)
        recorder.begin(patch.edits, past)
        positions = subject.positions(patch.edits, length)
        if positions:
            ones = torch.ones(inputs.shape[0], length, dtype=torch.long, device=inputs.device)
            kwargs |= {"position_ids": positions["position_ids"][:, past:], "attention_mask": ones}
        tokens.append(RECORDER.set(recorder))
        return args, kwargs

    def leaving(model: Any, args: tuple[Any, ...], output: Any) -> None:
        if tokens:  # none where the pass was refused
            RECORDER.reset(tokens.pop())
        if output is not None:  # None after an exception
            recorder.check(subject.shape)

    with ExitStack() as stack:
        stack.enter_context(stream_hooks(subject.sites, recorder))
        stack.enter_context(attending(subject.model, subject.recorded_attention))
        for handle in (
            subject.model.register_forward_pre_hook(entering, with_kwargs=True),
            subject.model.register_forward_hook(leaving, always_call=True),
        ):
            stack.callback(handle.remove)
        yield
