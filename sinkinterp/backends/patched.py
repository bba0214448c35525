"""A model that stays edited while its user generates with it, evaluates it, trains it, or caches its activations."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..attention import Edit
from ..checks import InputError, check_count, refusing
from ..interventions.changes import Edits, edits_of
from .anatomy import removed_after
from .attached import (
    PATCHES,
    RECORDING,
    Attached,
    computed_by,
    inside_compiled,
    recorded_by,
    thread_and_task,
    uncompiled,
    used_alone,
)
from .huggingface import KEPT, HuggingFaceSubject
from .load import load, subject_of
from .module_subject import ModuleSubject
from .recorder import Group, Layout, Recorder, edits_for, layout_of
from .subject import Subject

CACHE = "past_key_values"  # transformers' argument


@contextmanager
def patched(model: Any, *more: Any, edits: Edits = ()) -> Iterator[Any]:
    """The model itself, edited until the block ends, then exactly as it was::

        with si.patched(model, si.PatchNormalization(Sigmoid(), layers=[3])):
            model.generate(**inputs)

    `model` is a transformers model, a TransformerLens bridge (`run_with_cache` and `run_with_hooks` see the edits), an
    nnsight model (`trace` and `generate` see them, in this process only) or a PyTorch module of your own. A subject of
    one of these is patched, too, and a name gives its subject. Edits come one after the other or in `edits`. Hooks that
    are added inside the block see what the edits made. A pattern that is cached holds the weights that multiply the
    values, without a slot's column.

    Positions count the real tokens of each sequence from its first: behind padding, position 0 is its first real token.
    It stays so where a cache holds the beginning, has forgotten it, or keeps room for later tokens. A cache that was
    filled before the block keeps what it holds, as with hooks of your own. Edits change the tokens that are read in the
    block, and how these tokens see cached ones. An edit names positions that every sequence has when its first pass
    ends: a prompt in chunks ends it with the first chunk. Raises InputError for edits that do not fit, and, before the
    first token is generated, for those that read what a cache does not hold.

    Blocks of a model nest, inner ones edit last, and they end in reverse order. They belong to the thread and the
    asyncio task that enter them: until they end, the model's passes in others are refused. So are measurements of the
    model: give them `edits`.
    """
    every = tuple(edit for several in (edits, *more) for edit in edits_of(several))
    check_count(every, "edits of patched")
    model = load(model) if isinstance(model, str | Path) else model
    given = inside_compiled(model)
    module = _module_of(given)
    with ExitStack() as stack:
        stack.enter_context(used_alone(module))
        stack.enter_context(uncompiled([*(model if isinstance(model, nn.Module) else module).modules()]))
        patch = PATCHES.get(module)
        if patch is None:
            subject: Any = subject_of(given)
            patch = _Patch(subject)
            patch.check(every)
            stack.enter_context(patch.attached())
        patch.check_owner()
        stack.enter_context(patch.block(every))
        yield model


def _attention_of(model: nn.Module) -> str | None:
    """The attention implementation that the configuration of a model names; None without one."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def _module_of(model: Any) -> nn.Module:
    """The module that a subject or a library runs, or the user's own. Raises InputError for anything else."""
    inner = getattr(model, "_module", None) or getattr(model, "original_model", None)
    inner = model.model if isinstance(model, Subject) else inner
    module = inner if isinstance(inner, nn.Module) and not isinstance(model, PreTrainedModel) else model
    has_encoder = getattr(getattr(getattr(module, "model", module), "config", None), "is_encoder_decoder", False)
    if has_encoder or not isinstance(module, nn.Module):
        what = f"a {type(module).__name__}{', which has an encoder: give edits= to si.measure' if has_encoder else ''}"
        raise InputError(f"patched takes a decoder of transformers, a library over it, or a PyTorch module; got {what}")
    return module


@dataclass(eq=False)
class _Block:
    """The edits of a block, and the caches that passes in it have filled from the beginning."""

    edits: tuple[Edit, ...]
    caches: WeakSet[Any] = field(default_factory=WeakSet)


@dataclass(eq=False)
class _Patch(Attached):
    """What runs in place of a model's `forward` inside blocks: it makes their edits, the outermost ones first.

    owner: the thread and the task that entered them. attention: the implementation that the model's configuration then
    names. own: the forward of the model, which `inspect.signature` reads as `__wrapped__`.
    """

    subject: HuggingFaceSubject
    owner: tuple[int, Any] = field(default_factory=thread_and_task)
    blocks: list[_Block] = field(default_factory=list)
    attention: str | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def check(self, edits: tuple[Edit, ...]) -> None:
        """Raises InputError for edits that do not fit the model."""
        self.subject.check_edits(edits, self.subject.shape.n_ctx or torch.iinfo(torch.int32).max)
        self.subject.check_maps(edits)

    def check_owner(self) -> None:
        """Raises InputError in another thread or task than the one that entered the block."""
        if thread_and_task() != self.owner:
            what = f"{self.subject.name} is inside si.patched(...) of another thread or task"
            raise InputError(f"{what}; enter the block there, or wait for its end")

    @contextmanager
    def attached(self) -> Iterator[None]:
        """In the block, it runs in place of the model's `forward`."""
        subject, model = self.subject, self.subject.model
        parts = () if isinstance(subject, ModuleSubject) else subject.modules.blocks  # of one's own, names alone
        with subject.shown_to(self.recorder), subject.maps_shown_to(self.recorder):
            self.__wrapped__ = model.forward
            checks = [block.register_forward_pre_hook(self.check_whole, prepend=True) for block in parts]
            with removed_after(checks), computed_by({model: self}):
                self.attention = _attention_of(model)
                PATCHES[model] = self
                try:
                    yield
                finally:
                    del PATCHES[model]

    @contextmanager
    def block(self, edits: tuple[Edit, ...]) -> Iterator[None]:
        """In the block, its passes also make these edits."""
        if self.blocks:
            with computed_by({self.subject.model: self.__wrapped__}):  # these passes are those of no block
                self.check(edits)
        block = _Block(edits)
        self.blocks.append(block)
        try:
            yield
        finally:
            is_last, at = self.blocks[-1:] == [block], self.blocks.index(block) if block in self.blocks else 0
            del self.blocks[at:]
        if not is_last:
            raise InputError(f"blocks of si.patched({self.subject.name}) end in reverse order; end inner ones first")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One edited forward pass."""
        model, modules = self.subject.model, self.subject.modules
        self.check_owner()
        edits = tuple(edit for block in self.blocks for edit in block.edits)
        layout, args, kwargs = self._prepared(edits, model, args, kwargs)
        self.recorder.begin(edits, layout)
        with recorded_by(self.recorder, modules.layers, modules.n_kv_heads):
            output = self.__wrapped__(*args, **kwargs)
        self.recorder.check(self.subject.shape)
        cache = kwargs.get(CACHE) or getattr(output, CACHE, None)
        if cache is not None and (cache in self.blocks[-1].caches or layout.n == layout.n_new):
            self.blocks[-1].caches.add(cache)
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
        cache, mask = named.get(CACHE), named.get("attention_mask")
        past = 0 if cache is None else int(cache.get_seq_length())
        batch, n_new = inputs.shape[:2]
        layout = layout_of(mask, batch, past, n_new, named.get("position_ids"), inputs.device)
        if cache is not None and not past:
            layout = replace(layout, forgets=self._forgets(getattr(cache, "is_sliding", [])))
        self._check_pass(layout, past)
        for group in layout.groups:
            self._check_group(edits, group, layout, is_whole=cache is None and layout.is_plain)
        is_known = not past or cache in self.blocks[-1].caches
        changed: dict[str, Any] = self._positions(edits, inputs, layout, named.get("position_ids"), is_known)
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
    def _check_pass(self, layout: Layout, past: int) -> Iterator[str]:
        subject, attention = self.subject, _attention_of(self.subject.model)
        if attention != self.attention:
            yield f"{subject.name} was set to {attention!r} attention inside si.patched(...); set it before the block"
        if not layout.is_plain and not (subject.reads_caches and subject.takes_position_ids):
            yield f"{subject.name} takes no padding in a patched block"
        recomputes = any(getattr(block, "gradient_checkpointing", False) for block in subject.modules.blocks)
        if recomputes and subject.model.training and torch.is_grad_enabled():
            yield "gradient checkpointing computes blocks again without edits"
        if past and not subject.reads_caches:
            yield "hooks of a bridge do not show the keys of a cache"

    def check_whole(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward pre-hook of a block. Raises InputError outside a pass of the whole model, which alone is edited."""
        if RECORDING.get() is None:
            raise InputError(f"{self.subject.name} is patched as a whole: call the model itself, not a part of it")

    def _check_group(self, edits: Sequence[Edit], group: Group, layout: Layout, is_whole: bool) -> None:
        """Raises InputError for an edit that does not fit sequences which are as long as they are after this pass."""
        n = len(group.columns)
        try:
            self.subject.check_edits(edits_for(edits, group, layout), n)
        except InputError as error:
            if is_whole:
                raise
            row = int(group.rows[0])
            fix = "name positions that it has by then, or pass the whole prompt at once, without prefill_chunk_size"
            raise InputError(f"{error}; sequence {row} has {n} tokens when its first pass ends: {fix}") from error

    def _positions(
        self, edits: Sequence[Edit], inputs: Tensor, layout: Layout, given: Tensor | None, is_known: bool
    ) -> dict[str, Tensor]:
        """The positions that edits give to the tokens of a pass; empty where they change none.

        is_known: whether the cache was filled under these edits. Raises InputError where it was not, and holds a token
        that an edit moves.
        """
        ids, are_edited = torch.zeros(inputs.shape[:2], dtype=torch.long, device=inputs.device), False
        for group in layout.groups:
            plain = torch.arange(len(group.columns), device=inputs.device)
            moved = edits_for(edits, group, layout) if self.subject.takes_position_ids else ()
            edited = self.subject.positions(moved, len(plain))
            places = edited["position_ids"][0].to(ids.device) if edited else plain
            if not is_known and not places[: group.past].equal(plain[: group.past]):
                what = "an edit moves positions that a cache from before this block of si.patched holds"
                raise InputError(f"{what}; fill the cache inside the block")
            ids[group.rows[:, None], group.new] = places[group.past :]
            if edited and given is not None:
                asked = given.expand(len(inputs), -1).to(ids.device)[group.rows][:, group.new]
                if (asked != plain[group.past :]).any():
                    what = "an edit sets the positions, and position_ids are not 0, 1, 2, ..."
                    raise InputError(f"{what}; leave them out")
            are_edited |= bool(edited)
        return {"position_ids": ids} if are_edited else {}


def _by_name(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Arguments that were given without their names, by the names that the model's `forward` has for them."""
    parameters = signature(model.forward).parameters.values()
    return dict(zip((p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD), args, strict=False))
