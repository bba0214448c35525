"""A model that stays edited while its user generates with it, evaluates it, trains it, or caches its activations."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from threading import get_ident
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import Edit
from ..checks import InputError, check_count, refusing
from ..interventions.edit import Edits, edits_of
from .anatomy.modules import removed_after
from .exclusive import BLOCKS, Attached, Block, computed_by, edits_around, exclusive, holds, is_recorded_by, recorded_by
from .hooks import inside_compiled, uncompiled
from .huggingface import KEPT, HuggingFaceSubject
from .load import load, subject_of
from .module.module_subject import ModuleSubject
from .recorder import Group, Layout, Recorder, edits_for, layout_of

P = ParamSpec("P")
R = TypeVar("R")


def patched(model: Any, *more: Any, edits: Edits = ()) -> AbstractContextManager[Any]:
    """The model itself, edited until the block ends, then exactly as it was; inner blocks edit last::

        with si.patched(model, si.PatchNormalization(Sigmoid(), layers=[3])):
            model.generate(**inputs)

    `model` is a transformers model, a TransformerLens bridge (`run_with_cache` and `run_with_hooks` see the edits), an
    nnsight model (`trace` and `generate` see them, in this process only), or a PyTorch module of your own, or what
    `si.load` makes or made of them: inside the block a subject's `generate(text)` and `subject(text)` are edited, and a
    name gives its subject. Edits come one after the other or in `edits`. Hooks that are added inside the block see
    what the edits made, and `si.measure` makes these edits before its own. A pattern that is cached holds the weights
    that multiply the values, without a slot's column.
    Positions count the real tokens of each sequence from its first: behind padding, position 0 is its first real token.
    It stays so where a cache holds the beginning, has forgotten it, or keeps room for later tokens. A cache that was
    filled before the block keeps what it holds, as with hooks of your own: edits change the tokens that are read in the
    block, and how these see cached ones. An edit names positions that every sequence has when its first pass ends: a
    prompt in chunks ends it with the first chunk. Raises InputError for edits that do not fit, and, before the first
    token is generated, for those that read what a cache does not hold. Edits belong to the thread or task that enters
    the block, and to those that it starts with its context: asyncio tasks, `asyncio.to_thread`,
    `contextvars.copy_context().run`. Blocks may overlap and end in any order, and each ends its own edits. Until the
    last one ends, threads and tasks outside of all blocks of the model may load, measure and patch it. Their own passes
    of it are refused, and so are, from all, copies of it and other attention implementations.
    """
    return _patched(model, tuple(edit for several in (edits, *more) for edit in edits_of(several)))


def with_block_edits(function: Callable[P, R]) -> Callable[P, R]:
    """A function of a model and `edits`, which in blocks of the model makes their edits first, as outside of them."""

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        if not BLOCKS.get():
            return function(*args, **named)
        given: Any = args[0] if args else named.get("model")
        model: Any = _inner(given)
        parts = [given, model, *(getattr(model, name, None) for name in ("_module", "original_model", "model"))]
        around = [edit for block in BLOCKS.get() if any(block.model is x for x in parts) for edit in block.edits]
        if not around:
            return function(*args, **named)
        outside = copy_context()
        outside.run(BLOCKS.set, ())
        told: Any = named | {"edits": (*around, *edits_of(named.get("edits", ())))}
        return outside.run(partial(function, *args, **told))

    return called


def _inner(model: Any) -> Any:
    """What a subject of a library runs; anything else as it is."""
    if isinstance(model, HuggingFaceSubject) and not isinstance(model, ModuleSubject):
        return vars(model).get("bridge", model.model)
    return model


@contextmanager
def _patched(model: Any, edits: tuple[Edit, ...]) -> Iterator[Any]:
    check_count(edits, "edits of patched")
    subject = load(model) if isinstance(model, str | Path) else model
    model = _inner(subject)
    module = _module_of(model)
    block = Block(module, edits)
    with ExitStack() as stack:
        stack.callback(_leave, block)  # also where Ctrl-C comes before the lock is held
        try:
            with exclusive(module):
                _enter(block, model, module)
            yield subject
        finally:
            with exclusive(module):
                _leave(block)


def _enter(block: Block, model: Any, module: nn.Module) -> None:
    """Adds a block to those around its model, whose hooks the first one adds. Raises InputError as `patched` does."""
    with ExitStack() as stack:
        stack.enter_context(uncompiled([*(model if isinstance(model, nn.Module) else module).modules()]))
        if (patch := _PATCHES.get(module)) is None:
            subject: Any = subject_of(inside_compiled(model))
            patch = _Patch(subject)
        Context().run(patch.check, block.edits)  # as a measurement, whose passes are those of no block
        if not patch.blocks:
            stack.enter_context(patch.attached())
            patch.attention = _attention_of(module)
            _PATCHES[module] = patch
            stack.callback(_PATCHES.pop, module)
        if not patch.blocks or model is not module:
            patch.undo.push(stack.pop_all())
        patch.blocks.append(block)
        BLOCKS.set((*BLOCKS.get(), block))


def _leave(block: Block) -> None:
    """Ends the edits of a block, and leaves its model as it was where no other block is open."""
    patch = None if block.model is None else _PATCHES.get(block.model)
    block.model = None
    BLOCKS.set(tuple(other for other in BLOCKS.get() if other.model is not None))
    if patch is not None:
        patch.blocks = [other for other in patch.blocks if other.model is not None]
        if not patch.blocks:
            patch.undo.close()


def _leave_other_threads() -> None:
    """In a forked process, which does not have the other threads: ends the blocks that they entered."""
    for patch in [*_PATCHES.values()]:
        for block in [*patch.blocks]:
            if block.thread != get_ident() and block not in BLOCKS.get():
                _leave(block)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_other_threads)


def _attention_of(model: nn.Module) -> str | None:
    """The attention implementation that the configuration of a model names; None without one."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _module_of(model: Any) -> nn.Module:
    """The module that a library runs, or the user's own. Raises InputError for anything else."""
    model = inside_compiled(model)
    has_encoder = getattr(getattr(getattr(model, "model", model), "config", None), "is_encoder_decoder", False)
    inner = getattr(model, "_module", None) or getattr(model, "original_model", None)
    inner = model.model if isinstance(model, ModuleSubject) else inner
    module = inner if isinstance(inner, nn.Module) and not isinstance(model, PreTrainedModel) else model
    if has_encoder or not isinstance(module, nn.Module):
        what = f"a {type(model).__name__}{', which has an encoder: give edits= to si.measure' if has_encoder else ''}"
        raise InputError(f"patched takes a decoder of transformers, a library over it, or a PyTorch module; got {what}")
    return module


@dataclass(eq=False)
class _Patch(Attached):
    """What runs in place of a model's `forward` while blocks are open: it makes the edits of those around a pass.

    blocks: those that are open. attention: the implementation that the model's configuration then names. undo: what
    leaves the model as it was. The recorder serves one pass at a time, which holds the lock of the model.
    """

    subject: HuggingFaceSubject
    blocks: list[Block] = field(default_factory=list)
    attention: str | None = None
    undo: ExitStack = field(default_factory=ExitStack)
    recorder: Recorder = field(default_factory=Recorder)

    def check(self, edits: tuple[Edit, ...]) -> None:
        """Raises InputError for edits that do not fit the model."""
        self.subject.check_edits(edits, self.subject.shape.n_ctx or torch.iinfo(torch.int32).max)
        self.subject.check_maps(edits)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """In the block, it runs in place of the model's `forward`."""
        subject = self.subject
        with subject.shown_to(self.recorder), subject.maps_shown_to(self.recorder):
            self.__wrapped__ = subject.model.forward  # where `inspect.signature` looks
            parts = () if isinstance(subject, ModuleSubject) else subject.modules.blocks  # of one's own, names alone
            checks = [block.register_forward_pre_hook(self.check_pass, prepend=True) for block in parts]
            with removed_after(checks), computed_by({subject.model: self}):
                yield

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One forward pass. In a block it is edited; elsewhere it is refused, unless it is a measurement's."""
        model = self.subject.model
        if not edits_around(model):
            if not holds(model):  # of a thread or task in no block; a measurement holds it
                fix = "use contextvars.copy_context().run"
                raise InputError(f"{self.subject.name} is inside si.patched(...) of another thread; {fix}")
            return self.__wrapped__(*args, **kwargs)
        with exclusive(model):
            edits = edits_around(model)
            self._check_edits(edits)
            layout, args, kwargs = self._prepared(edits, model, args, kwargs)
            self.recorder.begin(edits, layout)
            modules = self.subject.modules
            with recorded_by(self.recorder, modules.layers, modules.n_kv_heads):
                output = self.__wrapped__(*args, **kwargs)
            self.recorder.check(self.subject.shape)
            return output

    def _prepared(
        self, edits: Sequence[Edit], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Layout, tuple[Any, ...], dict[str, Any]]:
        """The layout of a pass, and its arguments with edited positions. Raises InputError for bad ones."""
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
            layout = replace(layout, forgets=self._forgets(getattr(cache, "is_sliding", [])))
        self._check_layout(layout, past)
        for group in layout.groups:
            self._check_group(edits, group, layout, is_whole=cache is None and layout.is_plain)
        changed: dict[str, Any] = self._positions(edits, inputs, layout, named.get("position_ids"))
        if changed and mask is None:
            changed["attention_mask"] = torch.ones(batch, layout.n, dtype=torch.long, device=inputs.device)
        if not self.subject.reads_caches:
            changed |= {"use_cache": False}  # `generate` then gives it all tokens at every step
        kept = named.get(KEPT)
        if isinstance(kept, int) and kept:  # as positions: for a number, Gemma 4 gives its last layers no other rows
            changed[KEPT] = torch.arange(max(n_new - kept, 0), n_new, device=inputs.device)
        if changed.keys() & by_place.keys() and not kwargs.keys() & by_place.keys():  # which Python refuses
            args, kwargs = args[len(by_place) :], named
        kwargs |= changed
        return layout, args, kwargs

    def _forgets(self, sliding: Sequence[bool]) -> tuple[bool, ...]:
        """Which layers will forget keys; those that take the keys of another layer have no part of a cache."""
        sources = (self.subject.key_sources.get(layer, layer) for layer in range(self.subject.shape.n_layers))
        return tuple(source < len(sliding) and sliding[source] for source in sources)

    @refusing
    def _check_layout(self, layout: Layout, past: int) -> Iterator[str]:
        subject = self.subject
        if not layout.is_plain and not (subject.reads_caches and subject.takes_position_ids):
            yield f"{subject.name} takes no padding in a patched block; give sequences of one length"
        recomputes = any(getattr(block, "gradient_checkpointing", False) for block in subject.modules.blocks)
        if recomputes and subject.model.training and torch.is_grad_enabled():
            yield "gradient checkpointing computes blocks again without edits; train without it"
        if past and not subject.reads_caches:
            yield "hooks of a bridge do not show the keys of a cache; leave past_key_values out"

    def check_pass(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward pre-hook of a block. Raises InputError outside a pass of the whole model, which alone is edited."""
        if edits_around(self.subject.model) and not is_recorded_by(self.recorder):
            raise InputError(f"{self.subject.name} is patched as a whole: call the model itself, not a part of it")

    @refusing
    def _check_edits(self, edits: Sequence[Edit]) -> Iterator[str]:
        """Why the pass would not be edited."""
        name, now = self.subject.name, _attention_of(self.subject.model)
        if not edits:
            yield f"the si.patched block of {name} ended while this pass waited; wait inside the block"
        if now != self.attention:
            yield f"{name} was set to {now!r} attention inside si.patched(...); set it before the block"

    def _check_group(self, edits: Sequence[Edit], group: Group, layout: Layout, is_whole: bool) -> None:
        """Raises InputError for an edit that does not fit sequences which are as long as they are after this pass."""
        n = len(group.columns)
        try:
            self.subject.check_edits(edits_for(edits, group, layout), n)
        except InputError as error:
            if is_whole:
                raise
            row, fix = int(group.rows[0]), "name positions that it has by then, or leave prefill_chunk_size out"
            raise InputError(f"{error}; sequence {row} has {n} tokens when its first pass ends: {fix}") from error

    def _positions(
        self, edits: Sequence[Edit], inputs: Tensor, layout: Layout, given: Tensor | None
    ) -> dict[str, Tensor]:
        """The positions that edits give to the tokens of a pass; empty where they change none."""
        ids = torch.zeros(inputs.shape[:2], dtype=torch.long, device=inputs.device)
        are_edited = False
        for group in layout.groups:
            moved = edits_for(edits, group, layout) if self.subject.takes_position_ids else ()
            edited = self.subject.positions(moved, len(group.columns))
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
