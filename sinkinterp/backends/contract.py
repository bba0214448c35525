"""The guarantees of every subject, on any library. They are checked in two passes when the subject is made.

1. `check_logits`: is the subject the bare model, is it causal, do its attention rows sum to one, and does the bias of
   its scores depend on distance alone?
2. `check_edits`: does an edit at every site of every block reach the model, and what else can the subject do?

The second pass runs `N_COPIES` copies of one sequence. Edits change some copies and leave the last two alone::

    copies      what happens to them                                            what they show
    changed     the input of all even blocks, of all odd blocks, becomes 1 - x; edits of residuals reach the model
                at each other site of blocks x becomes 1 - x, one copy a site;  edits of that site do
                the last enters every block as the reference, as all of them do rounding in a block
    mixed       the first position of every block's        whether a block's attention has any effect: edits
                input becomes 1 - x                         of it are lost where its output projection is zero
    records     they enter a block as what the changed ones, compared with the  the size of that change
                reference, have changed in the block before
    doubled     heads return nothing, updates are doubled                       updates are what blocks add
    backwards   positions run backwards                                         position ids change the logits
    isolated    heads return nothing; the positions of the first run backwards  positions reach nothing but embeddings
                                                                                and attention
    noise       nothing                                                         rounding in the whole model
    reference   nothing                                                         what all others are compared with
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..attention import sites
from ..attention.call import AttentionCall
from ..attention.shapes import TOLERANCE, Gap, HeadOutput, ModelShape, Residual, tolerance_of
from ..attention.sites import Edit, Reads, Site
from ..checks import refuse_first
from ..data.tokens import Tokens
from ..interventions.changes import Change, Operation
from .recorder import Answers
from .subject import Logits

Copies = Float[Tensor, "copy pos d_model"]
EarlyBias = Float[Tensor, "layer query key"]
_EARLY = 3  # how many queries and keys `early_bias` takes


def weight_tolerance(dtype: torch.dtype) -> float:
    """How far attention weights, and sums of them, may be off: they are fp32 in a model of any dtype."""
    return max(tolerance_of(dtype), TOLERANCE[torch.float32])


# One forward pass: its answers and logits for tokens, reads, edits, and positions of every sequence (None: the model's)
Pass = Callable[[Tokens, Reads, Sequence[Edit], Int[Tensor, "sequence pos"] | None], tuple[Answers, Logits]]


@dataclass(frozen=True)
class Tested:
    """A subject, as the contract sees it.

    taps: the sites of modules that every block has. fix: what its user does where it fails; empty for nothing.
    """

    name: str
    shape: ModelShape
    taps: Collection[Site]
    run: Pass
    fix: str


def sample_tokens(vocab: int) -> Tokens:
    """A few random tokens, always the same for a vocabulary of this size."""
    return torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))


# 1. The logits


def with_other_ending(tokens: Tokens) -> Int[Tensor, "twice pos"]:
    """These tokens, and then the same with another last one."""
    changed = tokens.clone()
    changed[:, -1] = torch.where(tokens[:, -1] > 0, tokens[:, -1] - 1, 1)
    return torch.cat((tokens, changed))


def check_logits(
    tested: Tested, answers: Mapping[str, Tensor], logits: Float[Tensor, "twice pos vocab"], bare: Logits
) -> EarlyBias:
    """Returns the bias of the first scores, of a pass on `with_other_ending` with `FIRST_READS`.

    bare: the logits of the bare model for its first half. Raises InputError unless the subject does all of this:

    - It returns the logits of the bare model.
    - It changes no logit of a position when a later token changes.
    - It has attention rows that sum to one, slots included, where its kernel is normalised.
    - It adds the same bias to every query's score with its own key.
    """
    tolerance, exact, bias = tolerance_of(logits.dtype), TOLERANCE[torch.float32], answers["bias"]
    first, second = logits.split(len(bare))
    of_bare, of_later = Gap.of(first, bare.to(first)), Gap.of(second[:, :-1], first[:, :-1])
    own_bias = bias.diagonal(dim1=-2, dim2=-1)
    of_own = Gap(_distance(own_bias, own_bias[..., :1]), bias.abs().max().item())
    excess, most = answers["excess"], weight_tolerance(logits.dtype)
    nan = not bare.isfinite().all() or bool(excess.isnan().any())
    faults = {
        "its attention or its logits are not numbers": nan,
        f"its logits are not the bare model's, {of_bare}": not of_bare.is_within(tolerance),
        f"a later token changes earlier logits, so it is not causal: {of_later}": not of_later.is_within(tolerance),
        "its attention rows do not sum to one": excess.max().item() > most,
        f"the bias of its scores is not relative to the query's own key, {of_own}": not of_own.is_within(exact),
    }
    refuse_first(faults, f"{tested.name} cannot be measured:", tested.fix)
    return bias[0]


def row_excess(call: AttentionCall) -> Float[Tensor, " sequence"]:
    """How far the sum of a row is from one, at most, by sequence; 0 where the kernel is not normalised."""
    return (call.pattern().sum(-1) - 1).abs().amax((1, 2)) * call.kernel.is_normalised


def early_bias(call: AttentionCall) -> Float[Tensor, "sequence query key"]:
    """Returns what is added to the scores of the first queries with the first keys, the mean over heads.

    A constant that softmax cancels is still seen by other kernels and by sink logits.
    """
    if call.bias is None:
        return torch.zeros(len(call.q), _EARLY, _EARLY)
    return call.bias[..., :_EARLY, :_EARLY].float().mean(1).expand(len(call.q), -1, -1)


def head_sizes(call: AttentionCall) -> Int[Tensor, " 4"]:
    """How many query heads and kv heads a call has, and the sizes of their queries and values."""
    return torch.tensor([call.q.shape[1], call.k.shape[1], call.q.shape[3], call.v.shape[3]])


def key_sums(call: AttentionCall) -> Float[Tensor, "sequence 2"]:
    """The sums of keys and of values: equal ones are of layers that share both."""
    return torch.stack([x.double().sum((1, 2, 3)) for x in (call.k, call.v)], -1)


def key_sources(sums: Float[Tensor, "sequence layer 2"], layers: Sequence[int]) -> dict[int, int]:
    """The layers that take keys and values of an earlier layer, and that layer, by `key_sums` of all layers."""
    of_layers = dict(zip(layers, sums.unbind(1), strict=True))
    return {
        layer: next(other for other in layers if of_layers[other].equal(own))
        for i, (layer, own) in enumerate(of_layers.items())
        if own.any() and any(of_layers[other].equal(own) for other in layers[:i])
    }


def width(x: Residual) -> Int[Tensor, " 1"]:
    """How many dimensions a residual has."""
    return torch.tensor([x.shape[-1]])


FIRST_READS = {
    "excess": sites.CALL.read(row_excess),
    "sizes": sites.CALL.read(head_sizes),
    "bias": sites.CALL.read(early_bias),
    "keys": sites.CALL.read(key_sums),
    "width": sites.RESIDUAL.read(width),
}


def _distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


# 2. The edits

_COPY_OF: Mapping[Site, int] = {site: 2 + i for i, site in enumerate(sites.BLOCK_SITES[1:])}  # behind residuals
_UNCHANGED = 2 + len(_COPY_OF)
_MIXED = _UNCHANGED + 1
_CHANGED = slice(0, _MIXED + 1)
_ATTENTION = (sites.ATTENTION_INPUT, sites.CALL, sites.OUTPUT)
_RECORDS = slice(_CHANGED.stop, 2 * _CHANGED.stop)
_DOUBLED = slice(_RECORDS.stop, _RECORDS.stop + 4)
_BACKWARDS = _DOUBLED.stop
_ISOLATED = slice(_BACKWARDS + 1, _BACKWARDS + 3)
_NOISE, _REFERENCE, N_COPIES = (_ISOLATED.stop + i for i in range(3))


@dataclass(frozen=True)
class Abilities:
    """The abilities that only some subjects have.

    taps: the sites of modules at which an edit of any block reaches the model. The feed-forward update is one where it
    is what every block adds to the residual stream. d_mlp: how many neurons a block has; None where they are not found.
    takes_positions: whether position ids change the logits. positions_are_plain: whether they count from 0, and reach
    nothing but the input of the first block and attention. idle: the blocks whose attention has no effect.
    """

    taps: frozenset[Site]
    takes_positions: bool
    positions_are_plain: bool
    d_mlp: int | None = None
    idle: frozenset[int] = frozenset()


def check_edits(tested: Tested, bare: Logits, bias: EarlyBias, gives_positions: bool) -> Abilities:
    """What the subject can do, by a pass of equal sequences. An edit at any site of any block must change its output.

    Feed-forward updates that are not what their block adds to the residual stream count as not found. The pass also
    verifies that later tokens do not change the bias of the first scores: it is `bias`, which a longer pass has found.
    Where the model counts positions itself (`gives_positions` false), the pass also verifies that the weights and
    values of calls make up the logits. bare: the logits of the bare model for the first of `sample_tokens`, of which as
    many are taken. Raises InputError, which names the failure.
    """
    shape, taps = tested.shape, tested.taps
    tokens = sample_tokens(shape.vocab)[:1, : bare.shape[1]].expand(N_COPIES, -1).contiguous()
    changed = {site: copy for site, copy in _COPY_OF.items() if site is sites.OUTPUT or site in taps}
    edits = (_ChangeCopies(), *(Change(site, _Opposite(copy)) for site, copy in changed.items()))
    reads = {
        "bias": sites.CALL.read(early_bias),
        "changes": sites.RESIDUAL.read(largest_changes),
        "stream": sites.RESIDUAL.read(doubled_copies),
        "update": sites.MLP.read(doubled_copies),
        **({"neurons": sites.NEURONS.read(width)} if sites.NEURONS in taps else {}),
    }
    answers, logits = tested.run(tokens, reads, edits, _position_ids(tokens) if gives_positions else None)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    expected, most = bare[0, -1], weight_tolerance(bare.dtype)
    gap = Gap.of(logits[_REFERENCE, -1], expected.to(logits))
    if not gives_positions:
        why = f"{tested.name} cannot be measured: its queries, keys and values do not give its logits"
        gap.check(most, why, tested.fix)
    lost, idle = _lost_changes(answers["changes"], logits, shape), _idle_attention(answers["changes"], shape)
    lasting = [f"the {site.label} of block {block}" for site, block in lost.items() if site not in sites.TAPPED]
    faults = {f"a change of {place} is lost": True for place in lasting}
    refuse_first(faults, f"{tested.name} cannot be edited:", tested.fix)
    why = f"{tested.name} cannot be measured: later tokens change the bias of earlier scores"
    Gap.of(answers["bias"][_REFERENCE], bias).check(TOLERANCE[torch.float32], why, tested.fix)
    seen = {*taps} - lost.keys() - (set() if _updates_are_added(answers, shape) else {sites.MLP})
    reference = logits[_REFERENCE]
    rounding = 10 * _distance(logits[_NOISE], reference) + 1e-6 * reference[-1].abs().max().item()
    return Abilities(
        taps=frozenset(seen),
        takes_positions=_distance(logits[_BACKWARDS], reference) > rounding,
        positions_are_plain=gap.is_within(most) and not _distance(*logits[_ISOLATED]) > rounding,
        d_mlp=int(answers["neurons"].flatten()[0]) if sites.NEURONS in seen else None,
        idle=idle,
    )


def _position_ids(tokens: Tokens) -> Int[Tensor, "sequence pos"]:
    """The positions of every copy: consecutive ones, backwards in two."""
    ids = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
    ids[[_BACKWARDS, _ISOLATED.start]] = ids[_REFERENCE].flip(0)
    return ids


# Does an edit reach the model? Each block is tested by itself: the changed copies enter it as the reference does.


@dataclass(frozen=True)
class _ChangeCopies(Edit):
    """Changes the copies, except those in which one site changes alone.

    A record shows the changes of the block before. One copy enters the next block as 1 - x. The copy of calls also
    attends to all values alike, since a slot may have taken all weight. There are four doubled copies:

    - The first runs as it is.
    - The second enters every block as the first does, and its feed-forward update is twice the first's.
    - The third enters every block as what the second has gained over the first in the block before.
    - The fourth enters every block as the first does, except at the first position.

    Heads return nothing in the doubled and isolated copies; the latter enter the first block as the reference.
    """

    def residual(self, block: int, x: Residual) -> Residual:
        x = x.clone()
        x[_RECORDS] = x[_CHANGED] - x[_REFERENCE]
        x[_CHANGED] = x[_REFERENCE]
        x[block % 2] = 1 - x[_REFERENCE]
        x[_MIXED, 0] = 1 - x[_REFERENCE, 0]
        first, second, *_ = x[_DOUBLED]
        other_start = torch.cat((1 - first[:1], first[1:]))  # -x is x to a gated convolution
        x[_DOUBLED] = torch.stack((first, first, second - first, other_start))
        if block == 0:
            x[_ISOLATED] = x[_REFERENCE]
        return x

    def call(self, call: AttentionCall) -> AttentionCall:
        weights = call.pattern()
        weights[_COPY_OF[sites.CALL]] = 1 / weights.shape[-1]
        weights[..., -call.k.shape[2] :] *= call.allowed()
        return replace(call, v=_Opposite(_COPY_OF[sites.CALL])(call.layer, call.v)).with_pattern(weights)

    def output(self, call: AttentionCall, z: HeadOutput) -> HeadOutput:
        z = z.clone()
        z[_ISOLATED], z[_DOUBLED] = 0, 0
        return z

    def mlp(self, block: int, x: Residual) -> Residual:
        x = x.clone()
        x[_DOUBLED][1] = 2 * x[_DOUBLED][0]
        return x


@dataclass(frozen=True)
class _Opposite(Operation):
    """1 - x in one copy."""

    copy: int

    def __call__(self, layer: int, x: Tensor) -> Tensor:
        x = x.clone()
        x[self.copy] = 1 - x[self.copy]
        return x


def largest_changes(x: Residual) -> Float[Tensor, " copy"]:
    """The largest entry of every record; that of the mixed copy at later positions than the first."""
    largest = x[_RECORDS].abs().amax(2)
    largest[_MIXED, 0] = 0
    return largest.amax(1)


def _lost_changes(changes: Float[Tensor, "copy block"], logits: Logits, shape: ModelShape) -> dict[Site, int]:
    """The sites whose change is lost, up to rounding, and the first block whose output it does not change.

    An edit of attention cannot be lost in a block in which no position changes a later one, as with an output
    projection of zeros. So it is with logits that are the same whatever the input is. changes: the answers to
    `largest_changes`.
    """
    sizes, idle = changes[:, 1:].tolist(), _idle_attention(changes, shape)
    places = [(sites.RESIDUAL, block, block % 2) for block in range(shape.n_layers)]
    places += [(site, block, copy) for site, copy in _COPY_OF.items() for block in site.layers(shape)]
    lost: dict[Site, int] = {}
    for site, block, copy in places:
        if not sizes[copy][block] > 10 * sizes[_UNCHANGED][block] and not (site in _ATTENTION and block in idle):
            lost.setdefault(site, block)
    last = shape.n_layers  # its residual is what the last block returns, and changes the logits
    change, rounding = (_distance(logits[copy], logits[_REFERENCE]) for copy in (last % 2, _UNCHANGED))
    is_kept = change > 10 * rounding or bool((logits == logits[:1, :1]).all())
    return lost if is_kept else {**lost, sites.RESIDUAL: last}


def _idle_attention(changes: Float[Tensor, "copy block"], shape: ModelShape) -> frozenset[int]:
    """The blocks in which neither another call nor another first position changes what later positions return."""
    sizes = changes[[_COPY_OF[sites.CALL], _MIXED], 1:]
    is_idle = ~(sizes > 10 * changes[_UNCHANGED, 1:]).any(0)
    return frozenset(block for block in shape.attention_layers if is_idle[block])


# What else can the subject do?


def _updates_are_added(answers: Mapping[str, Tensor], shape: ModelShape) -> bool:
    """Tells if every block adds its feed-forward update to the residual stream."""
    eps, stream = torch.finfo(answers["stream"].dtype).eps, answers["stream"].cpu().double()
    updates = answers["update"].cpu().double().unbind(1) if "update" in answers else ()
    return len(updates) == shape.n_layers and all(
        update.shape[-1] == stream.shape[-1]  # several streams are wider
        and _is_added(update, stream[:, block], stream[:, block + 1], eps)
        for block, update in enumerate(updates)
    )


def doubled_copies(x: Residual) -> Copies:
    """The four doubled copies."""
    return x[_DOUBLED]


def _is_added(update: Copies, before: Copies, after: Copies, eps: float) -> bool:
    """Tells if a block adds what is read as its feed-forward update, and nothing else that looks like one.

    - What the block returns grows by the update when the update is doubled.
    - The rest that it adds is alike at all positions, as a bias is, or depends on other positions, as a recurrence.
    """
    rounding = 4 * eps * (update.abs() + before.abs() + after.abs())
    slack = rounding[0] + max(1e-3, 8 * eps) * update[0].abs().amax()
    rest = after - before - update
    is_bias = _is_within(rest[0] - rest[0, 0], slack + slack[0])
    mixes = not _is_within(rest[3, 1:] - rest[0, 1:], 4 * (rounding[3, 1:] + rounding[0, 1:]))
    return _is_within(after[2] - update[0], slack) and (is_bias or mixes)


def _is_within(x: Tensor, limit: Tensor) -> bool:
    return bool((x.abs() <= limit).all())
