"""explain: why does a head look at the first token? Its score in parts, who writes what it reads, and what cuts remove.

    answer = si.explain("gpt2", text)
    answer.sentence
    answer.plot()

The score of a head with the first key, above the mean of the others that a query sees, is q.k_1 - mean_j q.k_j, scaled
and averaged over queries. The residual is a sum of parts (embedding, position, every head, every feed-forward layer,
biases). With the norms' scales frozen, queries and keys are linear in it, so the score is a sum over pairs of parts.
Where a learned key k* (a slot) draws more attention than the first token, it takes the first key's place.

Source: Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); Sun et al. 2024, arXiv:2402.17762.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..attention.kernels import Identity
from ..backends.frozen import FrozenRun, frozen
from ..backends.subject import Subject
from ..checks import is_whole, whole_number
from ..data.progress import OnProgress, progress_of
from ..data.tokens import TokenSet, TokensLike
from ..errors import InputError
from ..interventions.columns import ZeroKeySlot
from ..metrics.bootstrap import BY_SEQUENCE
from ..report.explained import Explanation, HeadScore
from ..report.protocol import public_name
from ..report.report import Report
from ..table import Table
from .explained_cuts import DRAWS, Decomposed, Head, Work, alpha_of, cut_rows, path_and_cuts
from .inputs import ModelLike, inputs_of
from .massive_path import Write, massive_write, read_scores
from .score_parts import OWN_BIAS, SLOT, above_others, head_pairs, parts_by_block, score, slot_keys

TOP = 3  # heads that are explained by default
TEXTS = 32  # of the default text
CHUNK = 512  # tokens whose parts are held at once
TOLERANCE = 1e-3  # relative; what rounding makes of fp32 is far less


def explain(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    head: Head | Sequence[Head] | None = None,
    seed: int = 0,
    progress: bool | OnProgress = True,
) -> Explanation:
    """Why a head, or each of several, looks at the first token; by default the three with the strongest sinks.

    Takes the models and tokens that `measure` takes, of one length; by default 32 docstrings. Scores are in units of
    the score (scaled; additive bias and softcap left out). Beside the parts stands their ablation: at the first token,
    each named part becomes its mean over the other tokens of its text; the control does so with as many parts drawn at
    random from `seed`. Raises InputError for heads that are not there, for models whose norms cannot be frozen, and
    where the parts do not add up.
    """
    subject, token_set = inputs_of(model, tokens)
    if token_set.lengths is not None:
        raise InputError("this needs sequences of one length; cut the texts: subject.tokens(texts, length=...)")
    if tokens is None:
        token_set = replace(TokenSet.of(token_set.tokens[:TEXTS], token_set.source), bos=token_set.bos)
    with progress_of(progress, f"explaining {subject.name}") as on_pass:
        generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0))
        work = Work(subject, token_set, generator, on_pass, 4 + TOP * (1 + DRAWS) + 4)
        before = work.report()
        on_slot = _draws_more(before)
        heads = _heads_of(subject, head, before, on_slot)
        write = None if on_slot else massive_write(subject, token_set.tokens)
        work.count()
        found = _decomposed(work, heads, write, on_slot)
        scores = [_head_score(before, place, found, on_slot) for place in heads]
        cuts = [row for place in scores for row in cut_rows(work, place, found, before, on_slot)]
        path, path_rows = (None, ()) if write is None else path_and_cuts(work, write, found, before)
    target = "k*" if on_slot else "the first token"
    note = _note(before)
    ablation = (
        f"{note}; in the stream: at the first token, the part becomes its mean over the other tokens; directly: in the "
        f"keys of this head alone, norms frozen; random: as many other parts, the mean of {DRAWS} draws; removed: "
        f"share of what is above uniform attention{'; k* becomes 0' if on_slot else ''}"
    )
    path_note = f"{note}; path: the write is taken out of the readers' first keys, whole: out of the residual"
    return Explanation(
        note=note,
        target=target,
        heads=tuple(scores),
        path=path,
        cuts=Table("What remains when the named parts are cut?", ablation, tuple(cuts)),
        path_cuts=Table("What does the path cost?", path_note, tuple(path_rows)) if path_rows else None,
        passes=work.passes,
    )


def _note(report: Report) -> str:
    name, line = public_name(report.protocol.model), report.protocol.line()
    return f"{name}: {line}; norms frozen, bias of scores and softcap left out; {BY_SEQUENCE}"


def _draws_more(report: Report) -> bool:
    """Whether slots draw more attention than the first token."""
    return report.slot_importance is not None and bool(report.slot_importance.mean() > report.alpha().mean())


def _heads_of(subject: Subject, head: Any, report: Report, on_slot: bool) -> list[Head]:
    layers, n_heads = subject.shape.attention_layers, subject.shape.n_heads
    if head is None:
        alpha = alpha_of(report, on_slot)[0].mean(0)
        strongest = alpha.flatten().argsort(descending=True)[:TOP].tolist()
        return sorted((layers[i // n_heads], i % n_heads) for i in strongest)
    given = [head] if isinstance(head, tuple) and len(head) == 2 and isinstance(head[0], int) else list(head)
    for place in given:
        is_pair = isinstance(place, Sequence) and len(place) == 2 and all(map(is_whole, place))
        if not is_pair or place[0] not in layers or not 0 <= place[1] < n_heads:
            raise InputError(
                f"there is no head {place}; give (layer, head) with a layer of {layers[0]} to {layers[-1]} and a head "
                f"of 0 to {n_heads - 1}"
            )
    return sorted({(int(layer), int(index)) for layer, index in given})


def _decomposed(work: Work, heads: Sequence[Head], write: Write | None, on_slot: bool) -> Decomposed:
    """The scores of heads in parts, and what later keys read of a write. One pass, and blocks run by part."""
    found, tokens = Decomposed(), work.token_set.tokens
    for batch in tokens.split(max(1, CHUNK // tokens.shape[1])):
        with frozen(work.subject, batch) as run:
            _add_pairs(found, run, heads, on_slot)
            if write is not None:
                _add_reads(found, run, write)
    work.count()
    return found


def _add_pairs(found: Decomposed, run: FrozenRun, heads: Sequence[Head], on_slot: bool) -> None:
    last = max(layer for layer, _ in heads)
    for layer, parts, values in parts_by_block(run):
        mine = [head for of_layer, head in heads if of_layer == layer]
        if mine:
            call = run.calls[layer]
            if not isinstance(call.kernel.feature, Identity):
                raise InputError("queries and keys pass through a feature map, so scores are no sum of parts")
            pairs, first_keys = head_pairs(run, layer, mine, values, on_slot)
            found.first_keys.setdefault(layer, []).append(first_keys.cpu())
            whole = above_others(call, call.k, on_slot)
            if on_slot:
                whole = slot_keys(call) + whole.repeat_interleave(call.q.shape[1] // whole.shape[1], 1)
            scores = score(call, whole, on_slot)
            found.parts[layer] = parts
            for i, head in enumerate(mine):
                found.pairs.setdefault((layer, head), []).append(pairs[:, i].cpu())
                found.scores.setdefault((layer, head), []).append(scores[:, head].cpu())
        if layer == last:
            return


def _add_reads(found: Decomposed, run: FrozenRun, write: Write) -> None:
    vector = write.vector(run)
    for layer in run.calls:
        if layer > write.at:
            answers = read_scores(run, layer, vector)
            for kept, answer in zip((found.made, found.whole, found.keys), answers, strict=True):
                kept.setdefault(layer, []).append(answer.cpu())


def _head_score(report: Report, place: Head, found: Decomposed, on_slot: bool) -> HeadScore:
    """A head's score as a report holds it. Raises InputError where its parts do not add up."""
    layer, head = place
    i = report.attention_layers.index(layer)
    names = [part.name for part in found.parts[layer]] + [OWN_BIAS] + [SLOT] * on_slot
    alpha, null = (x[:, i, head] for x in alpha_of(report, on_slot))
    cuts = {part.name: part.cut for part in found.parts[layer] if part.cut is not None}
    if on_slot:
        cuts[SLOT] = ZeroKeySlot(heads=[place])
    answer = HeadScore(
        layer, head, tuple(names), cuts, torch.cat(found.pairs[place]), torch.cat(found.scores[place]), alpha, null
    )
    if not answer.error <= TOLERANCE:
        raise InputError(
            f"the parts of head {answer.name} miss its score by {answer.error:.1%}: its queries or keys are not "
            "linear in the residual, or the dtype rounds too much; load it in float32"
        )
    return answer
