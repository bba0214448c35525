"""A model that stays edited while its user generates with it, evaluates it, trains it, or caches what it computes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Token
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError
from ..interventions.edit import Edit, Edits, edits_of
from .anatomy.modules import removed_after
from .exclusive import exclusive, lock_of
from .hooks import PATCHED, RECORDING, Recording, inside_compiled, uncompiled
from .huggingface import HuggingFaceSubject
from .layout import Group, Layout, layout_of
from .load import load
from .module.module_subject import ModuleSubject
from .recorder import Recorder, edits_for


@contextmanager
def patched(model: Any, *edits: Edits) -> Iterator[Any]:
    """The model itself, edited until the block ends, then exactly as it was; inner blocks edit last::

        with si.patched(model, si.PatchNormalization(Sigmoid(), layers=[3])):
            model.generate(**inputs)

    `model` is a transformers model, a TransformerLens bridge (`run_with_cache` and `run_with_hooks` see the edits), an
    nnsight model (`trace` and `generate` see them, in this process only), or a PyTorch module of your own, or its
    subject, where `si.load` needs more than the module. Hooks that are added inside the block see
    what the edits made. A pattern that is cached holds the weights that multiply the values, without a slot's column.
    Positions count the real tokens of each sequence from its first: behind padding, position 0 is its first real token.
    It stays so where a cache holds the beginning, has forgotten it, or keeps room for later tokens. An edit names
    positions that every sequence has when its first pass ends: a prompt in chunks ends it with the first chunk. Raises
    InputError for edits that do not fit, and, before the first token is generated, for those that read what a cache
    does not hold. Some models are wrong in transformers itself, also without edits. Static caches of GPT-Neo and of
    Falcon with ALiBi are wrong or refused. With `prefill_chunk_size` above 1, Jamba's Mamba layers forget what came
    before each chunk, and RecurrentGemma raises AttributeError: leave it out there. Until the block ends, whatever
    measures, loads or patches the model in another thread waits: two threads that each patch one model and then measure
    the other's wait for ever.
    """
    given = tuple(edit for several in edits for edit in edits_of(several))
    if not given:
        raise InputError("patched needs at least one edit")
    module = _module_of(model)
    with lock_of(module), ExitStack() as stack:
        try:
            with exclusive(module):
                stack.enter_context(uncompiled(model if isinstance(model, nn.Module) else module))
                _enter(stack, inside_compiled(model), module, given)
            yield model
        finally:
            with exclusive(module):
                stack.close()


def _enter(stack: ExitStack, model: Any, module: nn.Module, edits: tuple[Edit, ...]) -> None:
    """Edits the model until the stack is closed."""
    is_outermost = module not in _PATCHES
    patch = _patch_of(model) if is_outermost else _PATCHES[module]
    patch.subject.check_edits(edits, patch.subject.shape.n_ctx or torch.iinfo(torch.int32).max)
    patch.subject.check_maps(edits)
    if is_outermost:
        _PATCHES[module] = patch
        stack.callback(_PATCHES.pop, module)
        PATCHED.add(module)
        stack.callback(PATCHED.discard, module)
        stack.enter_context(_hooked(patch))
        stack.callback(patch.end_passes)
    stack.callback(setattr, patch, "edits", patch.edits)
    patch.edits = (*patch.edits, *edits)


def _patch_of(model: Any) -> "_Patch":
    if isinstance(model, ModuleSubject):
        return _Patch(model)
    subject = HuggingFaceSubject(model) if isinstance(model, PreTrainedModel) else load(model)
    if not isinstance(subject, HuggingFaceSubject):
        raise InputError(f"{subject.name} does not run in this process, so it cannot stay edited; use measure(edits=)")
    return _Patch(subject)


def _module_of(model: Any) -> nn.Module:
    """The module that a library runs, or the user's own. Raises InputError for anything else."""
    model = inside_compiled(model)
    if getattr(getattr(getattr(model, "model", model), "config", None), "is_encoder_decoder", False):
        raise InputError(
            "patched takes no encoder-decoder model; si.measure(subject, tokens, edits=...) edits its decoder"
        )
    inner = getattr(model, "_module", None) or getattr(model, "original_model", None)
    inner = model.model if isinstance(model, ModuleSubject) else inner
    module = inner if isinstance(inner, nn.Module) and not isinstance(model, PreTrainedModel) else model
    if not isinstance(module, nn.Module):
        what = type(model).__name__
        raise InputError(
            "patched takes a transformers model, a TransformerLens bridge, an nnsight model or a PyTorch module of your"
            f" own; got {what}"
        )
    return module


@dataclass
class _Patch:
    """The edits of all the `patched` blocks around a model, and the recorder that makes them in every forward pass.

    turn: held during a pass, so that threads that run the model inside one block take turns.
    """

    subject: HuggingFaceSubject
    edits: tuple[Edit, ...] = ()
    recorder: Recorder = field(default_factory=Recorder)
    turn: RLock = field(default_factory=RLock)
    recordings_before: list[Token[Recording | None]] = field(default_factory=list)

    def before_pass(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """A forward pre-hook: starts the recorder, and gives the model the edited positions."""
        by_place = _by_name(model, args)
        named = by_place | kwargs
        given = (*args[:1], named.get("input_ids"), named.get("inputs_embeds"), *named.values())
        inputs: Any = next((tensor for tensor in given if tensor is not None), None)
        if not isinstance(inputs, Tensor) or inputs.ndim != 3:  # else these are embeddings
            self.subject.check_ids(inputs)
        cache, mask = named.get("past_key_values"), named.get("attention_mask")
        past = 0 if cache is None else int(cache.get_seq_length())
        batch, n_new = inputs.shape[:2]
        layout = layout_of(mask, batch, past, n_new, named.get("position_ids"), inputs.device)
        if cache is not None and not past:
            sliding = getattr(cache, "is_sliding", [])
            layout = replace(layout, forgets=tuple(sliding) or (False,))
        if not layout.is_plain and not (self.subject.reads_caches and self.subject.takes_position_ids):
            raise InputError(f"{self.subject.name} takes no padding in a patched block; give sequences of one length")
        recomputes = any(getattr(block, "gradient_checkpointing", False) for block in self.subject.modules.blocks)
        if recomputes and model.training and torch.is_grad_enabled():
            raise InputError("gradient checkpointing computes blocks again without edits; train without it")
        if past and not self.subject.reads_caches:
            raise InputError("hooks of a bridge do not show the keys of a cache; leave past_key_values out")
        for group in layout.groups:
            self._check_group(group, layout, is_whole=cache is None and layout.is_plain)
        changed: dict[str, Any] = self._positions(inputs, layout, named.get("position_ids"))
        if changed and mask is None:
            changed["attention_mask"] = torch.ones(batch, layout.n, dtype=torch.long, device=inputs.device)
        if not self.subject.reads_caches:
            changed |= {"use_cache": False}  # `generate` then gives it all tokens at every step
        if changed.keys() & by_place.keys() and not kwargs.keys() & by_place.keys():  # which Python refuses
            args, kwargs = args[len(by_place) :], named
        kwargs |= changed
        self.turn.acquire()
        self.recorder.begin(self.edits, layout)
        self.recordings_before.append(RECORDING.set(Recording(self.recorder, self.subject.modules.layers)))
        return args, kwargs

    def after_pass(self, model: Any, args: tuple[Any, ...], output: Any) -> None:
        """A forward hook, which is also called after an exception: its output is then None."""
        recording = RECORDING.get()
        if recording is None or recording.recorder is not self.recorder:  # the pass was refused
            return
        try:
            if output is not None:
                self.recorder.check(self.subject.shape)
        finally:
            self._end_pass()

    def check_pass(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward pre-hook of a block. Raises InputError outside a pass of the whole model, which alone is edited."""
        recording = RECORDING.get()
        if recording is None or recording.recorder is not self.recorder:
            raise InputError(f"{self.subject.name} is patched as a whole: call the model itself, not a part of it")

    def end_passes(self) -> None:
        """Ends the pass of this thread that KeyboardInterrupt left, which calls no hook."""
        while (recording := RECORDING.get()) is not None and recording.recorder is self.recorder:
            self._end_pass()

    def _end_pass(self) -> None:
        RECORDING.reset(self.recordings_before.pop())
        self.turn.release()

    def _check_group(self, group: Group, layout: Layout, is_whole: bool) -> None:
        """Raises InputError for an edit that does not fit sequences which are as long as they are after this pass."""
        n = len(group.columns)
        try:
            self.subject.check_edits(edits_for(self.edits, group, layout), n)
        except InputError as error:
            if is_whole:
                raise
            row, fix = int(group.rows[0]), "name positions that it has by then, or leave prefill_chunk_size out"
            raise InputError(f"{error}; sequence {row} has {n} tokens when its first pass ends: {fix}") from error

    def _positions(self, inputs: Tensor, layout: Layout, given: Tensor | None) -> dict[str, Tensor]:
        """The positions that edits give to the tokens of a pass; empty where they change none."""
        ids = torch.zeros(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        are_edited = False
        for group in layout.groups:
            edits = edits_for(self.edits, group, layout)
            edited = self.subject.positions(edits, len(group.columns)) if self.subject.takes_position_ids else {}
            are_edited |= bool(edited)
            whole = edited.get("position_ids", torch.arange(len(group.columns), device=inputs.device)[None])
            places = whole[:, group.past :].expand(len(group.rows), -1)
            ids[group.rows[:, None], group.new] = places.to(ids.device)
            plain = torch.arange(group.past, len(group.columns), device=inputs.device)
            here = None if given is None else given.expand(len(inputs), -1).to(ids.device)[group.rows][:, group.new]
            if edited and here is not None and not (here == plain).all():
                raise InputError("an edit sets the positions, and position_ids are not 0, 1, 2, ...; leave them out")
        return {"position_ids": ids} if are_edited else {}


def _by_name(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments that were given without their names, by the names that the model's `forward` has for them."""
    parameters = signature(model.forward).parameters.values()
    return dict(zip((p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD), args, strict=False))


_PATCHES: WeakKeyDictionary[nn.Module, _Patch] = WeakKeyDictionary()


@contextmanager
def _hooked(patch: _Patch) -> Iterator[None]:
    """Inside, every forward pass of the model is shown to the patch's recorder."""
    subject = patch.subject
    with ExitStack() as stack:
        stack.enter_context(subject.shown_to(patch.recorder))
        stack.enter_context(subject.maps_shown_to(patch.recorder))
        before = subject.model.register_forward_pre_hook(patch.before_pass, with_kwargs=True)
        after = subject.model.register_forward_hook(patch.after_pass, always_call=True)
        parts = () if isinstance(subject, ModuleSubject) else subject.modules.blocks  # of one's own module, names alone
        blocks = [block.register_forward_pre_hook(patch.check_pass, prepend=True) for block in parts]
        stack.enter_context(removed_after([before, after, *blocks]))
        yield
