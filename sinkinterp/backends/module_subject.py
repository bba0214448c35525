"""A PyTorch module of the user's own as a subject, found by what flows through it in one pass."""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, wraps
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import MLP, POSITION_EMBEDDING, TOKEN_EMBEDDING, AttentionCall, Gap
from ..checks import InputError, accepting, instance_of, refusal
from ..data.tokens import Tokens
from . import contract
from .anatomy import StreamModules, Tap
from .attached import RECORDING, computed_by, eval_mode, used_alone
from .huggingface import HuggingFaceSubject
from .module_anatomy import SDPA, Listener, Operand, Place, Record, anatomy_of, recording, with_axes
from .recorder import Recorder
from .subject import Logits

_TOLERANCE = 1e-5  # of a module's output, relative to its largest entry


Change = Callable[[Tensor], Tensor]
AGAIN = "; if it keeps rotations or masks of the longest input, run it once on as many tokens, else load it again"


class Showing(Listener):
    """A mode inside which the pass of a module is shown to a recorder.

    positions: `#sequence pos`, which tokens are given in place of their own.
    """

    def __init__(self, subject: "ModuleSubject", recorder: Recorder, positions: Tensor | None) -> None:
        anatomy, name = subject.anatomy, subject.name
        self.anatomy, self.recorder = anatomy, recorder
        self.results: dict[Place, list[Change]] = defaultdict(list)
        self.operands: dict[Place, list[tuple[int, Change]]] = defaultdict(list)
        for place in anatomy.residuals:
            self.results[place].append(self._residual)
        if recorder.edits_at(TOKEN_EMBEDDING):
            edited = partial(recorder.edited, TOKEN_EMBEDDING)
            self.results[anatomy.tokens].append(partial(_as_recorded, edited, anatomy.are_tokens_batch_first))
        if positions is not None:
            for turn in anatomy.turns:
                table = subject.tensor(turn.source) if turn.is_table else None
                moved = partial(_moved, name, turn, table, positions)
                self.operands[turn.place].append((turn.index, moved))
        learned = anatomy.positions
        if learned is not None and recorder.edits_at(POSITION_EMBEDDING):
            rows = partial(_as_recorded, partial(recorder.edited, POSITION_EMBEDDING), learned.pos_axis == 1)
            self.operands[learned.place].append((learned.index, lambda x: rows(with_axes(x, 3))))
        mlps = subject.modules.taps.get(MLP, [None] * len(anatomy.updates))
        for block, (update, mlp) in enumerate(zip(anatomy.updates, mlps, strict=True)):
            if update is not None and mlp is not None:
                edited = partial(recorder.update, MLP, block, factor=update.factor)
                shown = partial(_as_recorded, edited, anatomy.is_batch_first)
                self.operands[update.place].append((update.index, shown))
        super().__init__(name)

    def operate(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(args)
        for index, change in self.operands.get(place, ()):
            given[index] = self._changed(change, given[index])
        out = place[1](*given, **kwargs)
        for change in self.results.get(place, ()):
            out = self._changed(change, out)
        return out

    def attend(self, call: AttentionCall, *args: Any, **kwargs: Any) -> Tensor:
        if self.n_attended >= len(self.anatomy.layers):
            raise self._differs("attends more often")
        call = replace(call, layer=self.anatomy.layers[self.n_attended])
        edited = self._last_call = self.recorder.edited_call(call)
        is_ours = edited is not call or edited.is_fused
        return self.recorder.output(edited, edited.output() if is_ours else SDPA(*args, **kwargs))

    def check(self) -> None:
        """Raises InputError where the pass ran other operations than the recorded one, so that places are wrong."""
        changed = {function for _, function, _ in (*self.results, *self.operands)}
        recorded, now = (
            {place: n for place, n in counts.items() if place[0] < len(self.anatomy.layers) and place[1] in changed}
            for counts in (self.anatomy.counts, self.counts)  # after the last call may be a loss
        )
        if recorded != now:
            raise self._differs("runs other operations")

    def _differs(self, what: str) -> InputError:
        return InputError(f"{self.name} {what} than when it was loaded{AGAIN}")

    def _changed(self, change: Change, x: Any) -> Tensor:
        if not isinstance(x, Tensor):
            raise self._differs("runs other operations")
        try:
            return change(x)
        except TypeError as error:  # of which Python would say that tensors cannot be added
            raise RuntimeError(f"an edit or a read failed: {error}") from error

    def _residual(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[-1] != self.anatomy.d_model:
            raise self._differs("runs other operations")
        kept = x.clone()  # what reads and edits keep must not change when the module adds to the stream in place
        edited = _as_recorded(self.recorder.residual, self.anatomy.is_batch_first, kept)
        return x if edited is kept else edited.clone()


def _as_recorded(show: Change, is_batch_first: bool, x: Tensor) -> Tensor:
    """Returns what the recorder makes of a tensor, which it is shown with its sequences first."""
    given = x if is_batch_first else x.transpose(0, 1)
    edited = show(given)
    if edited is given:
        return x
    return edited if is_batch_first else edited.transpose(0, 1)


def _moved(name: str, turn: Operand, table: Tensor | None, positions: Tensor, x: Tensor) -> Tensor:
    """The rows of an operand, or of the table that it is read from, at the positions of each sequence."""
    x = with_axes(x if table is None else table, turn.rank).narrow(turn.batch_axis, 0, 1)
    if (last := int(positions.max())) >= (rows := x.shape[turn.pos_axis]):
        raise InputError(f"{name} has {rows} positions for {positions.shape[1]} tokens, and {last} is outside them")
    moved = x.movedim(turn.pos_axis, 0)[positions].movedim(1, turn.pos_axis + 1)
    return moved.movedim(0, turn.batch_axis).squeeze(turn.batch_axis + 1)


@dataclass(frozen=True)
class AttentionOf:
    """How the modules named `module` attend, such as "blocks.*.sa".

    computes: a function that takes the module and what its `forward` takes, returns what that returns, and calls
    `torch.nn.functional.scaled_dot_product_attention` on queries `batch head pos d_head`. It must return what the
    module does, up to 1e-5 of its largest entry.
    """

    module: str
    computes: Callable[..., Any]

    def __post_init__(self) -> None:
        instance_of(self.module, str, "AttentionOf takes the name of modules")
        instance_of(self.computes, Callable, "AttentionOf takes a function")


def described(
    model: nn.Module, attention: AttentionOf | None, name: str = "", checks: bool = False
) -> AbstractContextManager[None]:
    """In the block, the modules that are described compute attention as the description says.

    checks: whether InputError is raised where they then return something else than they did. Raises InputError also
    where no module has such a name.
    """
    if attention is None:
        return nullcontext()
    depth, functions = attention.module.count("."), dict[nn.Module, Callable[..., Any]]()
    for path, module in model.named_modules():
        if path.count(".") == depth and fnmatchcase(path, attention.module):
            computes = partial(attention.computes, module)
            functions[module] = partial(_checked, f"{name}: {path}", module.forward, computes) if checks else computes
    if not functions:
        raise InputError(f"AttentionOf: {type(model).__name__} has no modules {attention.module!r}")
    return computed_by(functions)


def _checked(where: str, original: Callable[..., Any], described: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    out = described(*args, **kwargs)
    theirs, ours = (x[0] if isinstance(x, tuple) else x for x in (original(*args, **kwargs), out))
    Gap.of(ours, theirs).check(_TOLERANCE, f"{where}: attention as described is not the module's")
    return out


Forward = Callable[[Any, Tensor], Tensor]
_FORWARD = "give parts=ModuleParts(forward=lambda m, ids: ...)"


@dataclass(frozen=True)
class ModuleParts:
    """What is where in a module of your own, for what `si.load` does not find or finds several times.

    forward: a function of the module and token ids that returns the logits, `sequence pos vocab`; by default they are
    what the module returns, or the first such tensor. blocks: the name of the list of blocks, such as "transformer.h".
    positions: the name of the table of positions, such as "transformer.wpe". attention: how modules attend that do not
    call `torch.nn.functional.scaled_dot_product_attention`.
    """

    forward: Forward | None = None
    blocks: str | None = None
    positions: str | None = None
    attention: AttentionOf | None = None

    def __post_init__(self) -> None:
        instance_of(self.attention, AttentionOf | None, "attention of ModuleParts is AttentionOf(MODULE, function)")
        for name in (self.blocks, self.positions):
            instance_of(name, str | None, "blocks and positions of ModuleParts are names")


_BATCHES, _LENGTHS = (11, 13, 17, 19, 23), (7, 5, 3, 4, 6)
_TARGETS = ("targets", "labels", "target", "y")  # what modules call the tokens that they compute a loss for


class ModuleSubject(HuggingFaceSubject):
    """A causal language model that is any PyTorch module, read and edited while it runs, by no hooks of its modules.

    Its attention calls go through `scaled_dot_product_attention`, or are described by `parts`. Its additions show its
    blocks, updates and positions; `parts` chooses among several. Raises InputError where something is not found or
    ambiguous, for scripted modules, and where the contract fails.
    """

    takes_position_ids = False

    def __init__(self, model: nn.Module, name: str | None = None, parts: ModuleParts = ModuleParts()) -> None:
        self.model: Any = model
        self.name = name or type(model).__name__
        if parts.forward is not None:
            accepting(parts.forward, "forward", model, None)
        self._forward_of, self._described = parts.forward, parts.attention
        with used_alone(model):
            self._find(parts.blocks, parts.positions)

    def _find(self, blocks: str | None, positions: str | None) -> None:
        _check_plain(self.model, self.name)
        self._check_ready()
        self.revision, self.implementation, self.attention_note = "", "sdpa", ""
        tokens = _probe(self.model).to(self.device)
        with torch.no_grad(), eval_mode(self.model):
            self._forward_of = self._forward_of or _forward_of(self.model, tokens, self.name)
            self.logits(tokens)  # fills what the module keeps for later passes, such as rotations
            longer = torch.zeros(1, tokens.shape[1] + 1, dtype=torch.long, device=self.device)
            self._grows = self._record_of(longer).counts != self._record_of(longer).counts
            anatomy = self.anatomy = anatomy_of(self._record_of(tokens), blocks, positions)
            tokens = contract.sample_tokens(self._embedding.num_embeddings).to(self.device)
            bare = self.logits(tokens)
            with described(self.model, self._described, self.name, checks=True):
                self.logits(tokens)
        updates = [None if update is None else Tap(self.model, update.factor) for update in anatomy.updates]
        tables = (self.model,) if anatomy.positions else ()
        self.modules = StreamModules(self.model, tables, [self.model] * len(updates), {MLP: updates})
        self._check_contract(bare)
        if self._abilities.idle:  # weights of zeros may be the reason, or the module drops what attention returns
            with _zeros_filled(self.model):
                idle = self._abilities_found(self.logits(tokens)[:, :3]).idle
            if idle:
                why = f"a change of the attention call of block {min(idle)} is lost"
                raise InputError(f"{self.name} cannot be edited: {why}")

    @property
    def dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point())

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def backend(self) -> str:
        return "torch module"

    def __repr__(self) -> str:
        anatomy = self.anatomy
        blocks = f"blocks {anatomy.blocks}" if anatomy.blocks else "blocks by what is added to the stream"
        names = [source.removesuffix(".weight") for source in (anatomy.table, self._positions_source)]
        places = f"{blocks}, tokens {names[0]}, positions {names[1] or 'not added to tokens'}"
        return f"{super().__repr__()[:-1]}; {places}>"

    @property
    def _positions_source(self) -> str:
        """The name of the parameter or buffer that learned positions are read from; empty without one."""
        return "" if self.anatomy.positions is None else self.anatomy.positions.source

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Logits:
        tokens = tokens.to(self.device)
        with torch.set_grad_enabled(recorder.gradients), eval_mode(self.model):
            if self._grows:  # it keeps rotations or masks of the longest input
                self.logits(tokens[:1])
            with self._recording(recorder, **positions):
                return self.logits(tokens)

    @contextmanager
    def _recording(self, recorder: Recorder, position_ids: Tensor | None = None) -> Iterator[None]:
        """In the block, one pass of the module is shown to the recorder."""
        showing = Showing(self, recorder, position_ids)
        with described(self.model, self._described, self.name), showing:
            yield
        showing.check()

    @contextmanager
    def shown_to(self, recorder: Recorder) -> Iterator[None]:
        run = self.model.forward

        @wraps(run)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if RECORDING.get() is not recorder:
                return run(*args, **kwargs)
            ids = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
            with self._recording(recorder, **self.positions(recorder.edits, ids.shape[1])):
                return run(*args, **kwargs)

        with computed_by({self.model: forward}):
            yield

    def _record_of(self, tokens: Tensor) -> Record:
        """Returns what the module does for these tokens."""
        fix = "give parts=ModuleParts(attention=AttentionOf(MODULE, function))"
        refused = refusal(f"{self.name} cannot be watched", fix)  # flex_attention fails in any way
        with refused, described(self.model, self._described), recording(self.name, self.model, tokens) as record:
            self.logits(tokens)
        return record

    def logits(self, tokens: Tensor) -> Logits:
        """The logits that the module returns for these tokens."""
        assert self._forward_of is not None
        logits = _logits_in(self._forward_of(self.model, tokens), tokens)
        if logits is None or logits.shape[1] != tokens.shape[1]:
            raise InputError(f"{self.name} returns no logits (sequence, pos, vocab); {_FORWARD}")
        return logits

    @property
    def _takes_ids(self) -> bool:
        return bool(self.anatomy.turns)

    def tensor(self, name: str) -> Tensor:
        """The parameter or buffer of this name as it is now: its owner may move or replace it."""
        return attrgetter(name)(self.model)

    def maps_shown_to(self, recorder: Recorder) -> AbstractContextManager[None]:
        return nullcontext()  # none are found, so the recorder refuses edits of them

    @property
    def _embedding(self) -> nn.Embedding:
        rows, size = self.tensor(self.anatomy.table).shape
        return nn.Embedding(rows, size, device="meta")

    @property
    def _n_ctx(self) -> int | None:
        return self.tensor(self._positions_source).shape[-2] if self._positions_source else None


@contextmanager
def _zeros_filled(model: nn.Module) -> Iterator[None]:
    """In the block, parameters of zeros hold small random numbers."""
    filled = [p for p in model.parameters() if p.is_floating_point() and not p.any()]
    generator = torch.Generator().manual_seed(0)
    try:
        for parameter in filled:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        yield
    finally:
        for parameter in filled:
            parameter.data.zero_()


def _check_plain(model: nn.Module, name: str) -> None:
    """Raises InputError for scripted modules, in which nothing can be seen, and for modules without parameters."""
    is_scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    if is_scripted or next(model.parameters(), None) is None:
        what = "is scripted, in part or whole" if is_scripted else "has no parameters"
        raise InputError(f"{name} cannot be read: it {what}")


def _probe(model: nn.Module) -> Tensor:
    """Tokens 0. The number of sequences and the length divide no size of the model, so that axes can be told apart."""
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    batch, length = (
        next((n for n in choices if not any(size % n == 0 for size in sizes)), choices[0])
        for choices in (_BATCHES, _LENGTHS)
    )
    return torch.zeros(batch, length, dtype=torch.long)


def _forward_of(model: nn.Module, tokens: Tensor, name: str) -> Forward:
    """What makes a module return logits. Some return those of the last position alone unless they are given targets."""
    with refusal(f"{name} cannot be called with ids alone", _FORWARD):
        logits = _logits_in(model(tokens), tokens)
    keyword = next((word for word in inspect.signature(model.forward).parameters if word in _TARGETS), None)
    if logits is None or logits.shape[1] == tokens.shape[1] or keyword is None:
        return lambda module, ids: module(ids)
    return lambda module, ids: module(ids, **{keyword: ids})


def _logits_in(output: Any, tokens: Tensor) -> Tensor | None:
    """The first tensor of a module's output with the shape of logits of all positions, or of one; None without one."""
    given = getattr(output, "logits", output)
    several = given.values() if isinstance(given, dict) else given if isinstance(given, tuple | list) else (given,)
    for x in several:
        if isinstance(x, Tensor) and x.ndim == 3 and len(x) == len(tokens) and x.shape[1] in (1, tokens.shape[1]):
            return x
    return None
