"""A lens: what every part of the residual stream adds to the logits of an answer, and to the score of a head.

The residual is a sum of parts: embedding, position, heads, feed-forward layers, biases. At the scales that the norms
have in a pass, logits, queries and keys are linear in it, rotation included. So the parts sum to the difference of two
answers' logits (direct logit attribution), and pairs of parts to a head's score with the first key.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..attention import AttentionCall, Edit, Identity, Residual, SlotRow, sites
from ..backends.anatomy import cross_attention, removed_after, token_mixer
from ..backends.frozen import FrozenNorm, FrozenRun, freezable, frozen
from ..backends.subject import Subject
from ..checks import InputError, whole_number
from ..data.tokens import Tokens, TokensLike
from ..interventions import Change, ChangeMLP, ChangeOutputs, MeanOfOthers
from ..metrics.metric import PerSequence
from .measure import ModelLike, equal_inputs_of

CONSTANT = "final bias"
CHUNK = 512  # tokens whose parts are held at once
TOLERANCE = 1e-3  # relative; what rounding makes of fp32 is far less
Ids = Int[Tensor, " sequence"]


def logit_parts(
    subject: ModelLike, tokens: TokensLike | Any, right: Ids, wrong: Ids, position: int = -1
) -> dict[str, PerSequence]:
    """What each part adds to the logit of `right` less that of `wrong`, at one position, by the part's name.

    right, wrong: a token id for each sequence. Raises InputError for models whose norms cannot be frozen, and where
    the parts do not add up to the difference, as behind a softcap.
    """
    subject, tokens = equal_inputs_of(subject, tokens)
    whole_number(position, "position", -tokens.shape[1], tokens.shape[1] - 1)
    size = max(1, CHUNK // tokens.shape[1])
    given = zip(*(x.split(size) for x in (tokens, right, wrong)), strict=True)
    found = [_parts(subject, batch, a, b, position) for batch, a, b in given]
    return {name: torch.cat([parts[name] for parts in found]).cpu() for name in found[0]}


def _parts(subject: Subject, tokens: Tokens, right: Ids, wrong: Ids, position: int) -> dict[str, PerSequence]:
    decoder, seen = freezable(subject), list[tuple[nn.Module, Tensor, Tensor]]()
    inside = {module for block in decoder.modules.blocks for module in block.modules()}
    norms = [m for m in decoder.model.modules() if "norm" in type(m).__name__.lower() and m not in inside]

    def see(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        seen.append((module, args[0], output))

    with torch.no_grad(), ExitStack() as stack:
        with removed_after([module.register_forward_hook(see) for module in norms]):
            run = stack.enter_context(frozen(subject, tokens, logits=position != -1))
        *_, (_, values, _) = parts_by_block(run)
        last = FrozenNorm.of(*seen[-1]) if seen else None  # the norm before the logits, at its scale at the position
        norm = nn.Identity() if last is None else replace(last, scale=last.scale[:, [position]])
        return _written(run, values, norm, (right, wrong), position)


def _written(
    run: FrozenRun, values: dict[str, Tensor], norm: Callable[[Tensor], Tensor], answers: tuple[Ids, Ids], position: int
) -> dict[str, PerSequence]:
    """The difference of the answers' logits in parts. Raises InputError where they do not add up to it."""
    unembed: Any = run.subject.model.get_output_embeddings()
    logits = run.trace.logits[:, position].float()
    right, wrong = (ids.to(logits.device) for ids in answers)
    direction = (unembed.weight[right] - unembed.weight[wrong]).float()
    nothing = norm(torch.zeros_like(run.trace["x"][:, -1, [position]]))
    found = {name: ((norm(x[:, [position]]) - nothing)[:, 0] * direction).sum(-1) for name, x in values.items()}
    bias = getattr(unembed, "bias", None)
    found[CONSTANT] = (nothing[:, 0] * direction).sum(-1) + (0 if bias is None else bias[right] - bias[wrong])
    rows = torch.arange(len(logits), device=logits.device)
    parts, whole = torch.stack([*found.values()]), logits[rows, right] - logits[rows, wrong]
    if ((parts.double().sum(0) - whole).abs() > TOLERANCE * parts.abs().amax(0).maximum(whole.abs())).any():
        why = "a softcap or a factor is behind its last norm, or its numbers are rounded"
        raise InputError(f"the parts of {run.subject.name} do not add up to its logits: {why}; load it in float32")
    return found


AS_OTHERS, FIRST = MeanOfOthers(1), (0,)  # what a part becomes where it is cut, and where that is
ROUNDING = 1e-4  # of the residual; differences between tokens that are smaller are no part
OWN_BIAS, SLOT, POSITION_BIAS = "own bias", "k*", "position bias"
Parts = tuple[int, dict[str, Residual], dict[str, Edit]]
Contrast = Float[Tensor, "#batch 1 query key"]
Above = Float[Tensor, "batch some_head query d_head"]


class HeadPairs(NamedTuple):
    """The scores of some heads of a layer in parts, whose names come first.

    pairs: what each part of the query makes with each part of the key. score: of the whole query and key. first_keys:
    each part of the residual in the first key, less its mean over the other keys.
    """

    names: tuple[str, ...]
    pairs: Float[Tensor, "batch head part part_of_key"]
    score: Float[Tensor, "batch head"]
    first_keys: Float[Tensor, "batch head part_of_residual d_head"]


def parts_by_block(run: FrozenRun) -> Iterator[Parts]:
    """For every block, the parts of its input, which sum to it, and the edits that cut them; biases have none.

    Block `n_layers` is the last output.
    A cut part becomes, at the first token, its mean over the others. What a block adds beside its heads and its
    feed-forward layer has the name of what it is: cross-attention, a convolution, another mixer, or a bias.
    """
    x, mlps = run.trace["x"], run.trace["mlp"]
    values: dict[str, Residual] = {"embedding": x[:, 0]}
    cuts: dict[str, Edit] = {"embedding": Change(sites.TOKEN_EMBEDDING, AS_OTHERS, positions=FIRST)}
    if run.position is not None:
        values = {"embedding": x[:, 0] - run.position, "position": run.position.expand_as(x[:, 0])}
        cuts["position"] = Change(sites.POSITION_EMBEDDING, AS_OTHERS, positions=FIRST)
    for block in range(run.subject.shape.n_layers):
        yield block, dict(values), dict(cuts)
        rest = x[:, block + 1] - x[:, block] - mlps[:, block]
        for head, written in enumerate(run.writes(block) if block in run.calls else ()):
            values[f"head {block}.{head}"], rest = written, rest - written
            cuts[f"head {block}.{head}"] = ChangeOutputs(AS_OTHERS, heads=[(block, head)], positions=FIRST)
        values |= {f"{_rest_name(run, block, rest)} {block}": rest, f"MLP {block}": mlps[:, block]}
        cuts[f"MLP {block}"] = ChangeMLP(AS_OTHERS, layers=[block], positions=FIRST)
    yield run.subject.shape.n_layers, values, cuts


def _rest_name(run: FrozenRun, block: int, rest: Residual) -> str:
    """What a block adds beside its heads and its feed-forward layer; a bias where it is the same at every token."""
    module = run.subject.modules.blocks[block]
    if block not in run.calls:
        return token_mixer(module, attends=False)
    varies = (rest - rest[:, :1]).abs().max() > ROUNDING * run.trace["x"][:, block : block + 2].abs().max()
    if not varies:
        return "bias"
    return "cross-attention" if cross_attention(module) else token_mixer(module, attends=False)


def head_pairs(
    run: FrozenRun, layer: int, heads: Sequence[int], values: Mapping[str, Residual], on_slot: bool
) -> HeadPairs:
    """The scores of heads in pairs of parts, mean over queries.

    There are also the bias of queries and keys, k* where the slot is explained, and the bias of
    positions that is added to scores (ALiBi, T5). Raises InputError where a feature map makes queries and keys.
    """
    call, contrast = run.calls[layer], contrast_of(run.calls[layer], on_slot)
    if not isinstance(call.kernel.feature, Identity):
        raise InputError("queries and keys pass through a feature map, so scores are no sum of parts")
    own = run.call(layer, torch.zeros_like(run.trace["x"][:, layer]))
    kv_heads = [head * call.k.shape[1] // call.q.shape[1] for head in heads]
    queries, keys, first_keys = {}, {}, []
    for name, value in values.items():
        made = run.call(layer, value)
        k = (made.k - own.k)[:, kv_heads]
        queries[name], keys[name] = (made.q - own.q)[:, heads], contrast @ k
        first_keys.append(k[:, :, 0] - k[:, :, 1:].mean(2))
    queries[OWN_BIAS], keys[OWN_BIAS] = own.q[:, heads], contrast @ own.k[:, kv_heads]
    if on_slot:
        queries[SLOT], keys[SLOT] = torch.zeros_like(own.q[:, heads]), _slot_keys(call, contrast)[:, heads]
    q, k = (torch.stack(list(of_parts.values()), 2) for of_parts in (queries, keys))
    pairs, names = torch.einsum("bhcid,bhkid->bhck", q, k) * call.scale, list(keys)
    if call.bias is not None:
        pairs = F.pad(pairs, (0, 1, 0, 1))
        pairs[..., -1, -1] = _of_bias(call, contrast)[:, heads]
        names.append(POSITION_BIAS)
    whole = whole_score(call, on_slot)[:, heads]
    return HeadPairs(tuple(names), pairs, whole, torch.stack(first_keys, 2))


def whole_score(call: AttentionCall, on_slot: bool) -> Float[Tensor, "batch head"]:
    """q.k_1 less the mean of the others', scaled, with the bias of positions, mean over queries; k* in place of k_1."""
    contrast = contrast_of(call, on_slot)
    score = score_of(call, contrast @ call.k)
    if call.bias is not None:
        score = score + _of_bias(call, contrast)
    return score + score_of(call, _slot_keys(call, contrast)) if on_slot else score


def score_of(call: AttentionCall, keys: Above) -> Float[Tensor, "batch head"]:
    """The score that weighted keys of each query, or part of them, make with the whole queries."""
    by_head = keys.repeat_interleave(call.q.shape[1] // keys.shape[1], 1)
    return torch.linalg.vecdot(call.q, by_head).sum(-1) * call.scale


def contrast_of(call: AttentionCall, on_slot: bool) -> Contrast:
    """Weights of keys: the first key (nothing, where the slot is explained) less the mean of the others, by query.

    Queries count alike that see both. Summed over them, the weighted scores are their mean.
    """
    others = call.allowed()[:, :1].to(call.q.dtype)
    first = torch.zeros_like(others)
    if not on_slot:
        first[..., 0], others = others[..., 0], others.clone().index_fill_(-1, call.keys[:1], 0)
    n_others = others.sum(-1, keepdim=True)
    counted = (n_others > 0) & (on_slot | (first[..., :1] > 0))
    return (first - others / n_others.clamp(min=1)) * counted / counted.sum(-2, keepdim=True)


def _slot_keys(call: AttentionCall, contrast: Contrast) -> Above:
    """k* of every head, weighted as the other keys are."""
    assert isinstance(call.slot, SlotRow)  # a slot is explained where every layer has a learned key
    return (-contrast.sum(-1, keepdim=True) * call.slot.key.to(contrast)).expand(len(call.q), -1, -1, -1)


def _of_bias(call: AttentionCall, contrast: Contrast) -> Float[Tensor, "batch head"]:
    """What the bias of positions adds to the score."""
    assert call.bias is not None
    return (contrast * call.bias.to(contrast)).sum((2, 3)).expand(*call.q.shape[:2])
