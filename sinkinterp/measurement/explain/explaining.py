"""explain: why does a head look at the first token? Its score in parts, who writes what it reads, and what cuts remove.

    answer = si.explain("gpt2", text)
    answer.sentence
    answer.plot()

The score of a head with the first key, above the mean of the others that a query sees, is q.k_1 - mean_j q.k_j, scaled
and averaged over queries. The residual is a sum of parts (embedding, position, every head, every feed-forward layer,
biases). With the norms' scales frozen, queries and keys are linear in it, so the score is a sum over pairs of parts.
If a learned key k* (a slot) draws more attention than the first token, it takes the first key's place.

Source: Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); Sun et al. 2024, arXiv:2402.17762.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...attention.call import AttentionCall
from ...attention.sites import Edit
from ...attention.slots import SlotRow
from ...backends.frozen import freezable, frozen
from ...backends.subject import Subject
from ...checks import whole_number
from ...data.progress import OnProgress, progress_of
from ...data.tokens import TokenSet, TokensLike
from ...errors import InputError
from ...guesses import keywords
from ...interventions.columns import ZeroKeySlot
from ...interventions.selectors import named_heads
from ...metrics.bootstrap import intervals
from ...report.explained import Explanation, Head, HeadScore, Path
from ...report.readings import public_name
from ...report.report import Report
from ...table import Table
from ..inputs import ModelLike, inputs_of
from .cuts import DRAWS, Work, alpha_of, cut_rows
from .massive_path import Reads, followed, massive_path, path_cuts, path_row, reads_of
from .score_parts import SLOT, head_pairs, parts_by_block

TOP = 3  # heads that are explained by default
TEXTS = 32  # of the default text
CHUNK = 512  # tokens whose parts are held at once
TOLERANCE = 1e-3  # relative; what rounding makes of fp32 is far less


@keywords
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
    the score (scaled, before a softcap; a bias of positions is a part). Beside the parts stands their ablation: at the
    first token, each named part becomes its mean over the other tokens of its text; the control does so with as many
    parts drawn at random from `seed`. Raises InputError for heads that are not there, for models whose norms cannot be
    frozen, and where the parts do not add up.
    """
    subject, token_set = inputs_of(model, tokens)
    if token_set.lengths is not None:
        raise InputError("this needs sequences of one length; cut the texts: subject.tokens(texts, length=...)")
    if tokens is None:
        token_set = replace(TokenSet.of(token_set.tokens[:TEXTS], token_set.source), bos=token_set.bos)
    freezable(subject)
    ids = token_set.tokens
    with progress_of(progress, f"explaining {subject.name}") as on_pass:
        generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0))
        work = Work(subject, token_set, generator, on_pass, 7 + TOP * 2 * (1 + DRAWS))
        before = work.report()
        on_slot = _draws_more(before) and _has_learned_keys(subject, ids)
        heads = _heads_of(subject, head, before, on_slot)
        found, path_rows = None if on_slot else massive_path(subject, ids), []
        path, no_path = (found, None) if isinstance(found, Path) else (None, found)
        scores, reads = _scores(work, heads, path, before, on_slot)
        cuts = [row for score in scores for row in cut_rows(work, score, on_slot)]
        if path is not None:
            path = followed(path, subject, ids, reads)
            edits = (
                path_cuts(path, reads, subject.shape.attention_layers, ids.shape[1], generator) if path.readers else {}
            )
            reports = {name: work.report(*cut) if cut else before for name, cut in edits.items()}
            path_rows = [path_row(name, report, before, list(path.readers)) for name, report in reports.items()]
    note = _note(before)
    ablation = (
        f"{note}; in the stream: at the first token, the part becomes its mean over the other tokens; directly: in the "
        f"keys of this head alone, norms frozen; random: as many other parts, the mean of {DRAWS} draws; removed: "
        f"share of what is above uniform attention{'; k* becomes 0' if on_slot else ''}"
    )
    path_note = f"{note}; path: the write is taken out of the readers' first keys, whole: out of the residual"
    return Explanation(
        note=note,
        target="k*" if on_slot else "the first token",
        heads=tuple(scores),
        path=path,
        cuts=Table("What remains when the named parts are cut?", ablation, tuple(cuts)),
        path_cuts=Table("What does the path cost?", path_note, tuple(path_rows)),
        passes=work.passes,
        no_path=no_path,
    )


def _note(report: Report) -> str:
    name, line = public_name(report.protocol.model), report.protocol.line()
    return f"{name}: {line}; norms frozen, scores before any softcap; {intervals(report.protocol.sequences)}"


def _draws_more(report: Report) -> bool:
    """Whether slots draw more attention than the first token."""
    return report.slot_importance is not None and bool(report.slot_importance.mean() > report.alpha().mean())


def _has_learned_keys(subject: Subject, tokens: Tensor) -> bool:
    """Tells if every slot is a key that can be explained, rather than a learned logit."""
    seen: list[bool] = []

    def see(call: AttentionCall) -> Tensor:
        seen.append(isinstance(call.slot, SlotRow))
        return call.q.new_zeros(len(call.q), 1)

    subject.run(tokens[:1], reads={"slot": see})
    return all(seen)


def _heads_of(subject: Subject, head: Any, report: Report, on_slot: bool) -> list[Head]:
    layers, n_heads = subject.shape.attention_layers, subject.shape.n_heads
    if head is None:
        alpha = alpha_of(report, on_slot)[0].mean(0)
        strongest = alpha.flatten().argsort(descending=True)[:TOP].tolist()
        return sorted((layers[i // n_heads], i % n_heads) for i in strongest)
    return named_heads(head, "head", layers, n_heads)


def _scores(
    work: Work, heads: Sequence[Head], path: Path | None, before: Report, on_slot: bool
) -> tuple[list[HeadScore], dict[int, Reads]]:
    """The scores of heads in parts, and how later layers read what a path's writer adds. One pass; blocks run by part.

    Raises InputError where the parts do not add up to a score.
    """
    named: dict[int, tuple[tuple[str, ...], dict[str, Edit]]] = {}
    parts: dict[Head, list[tuple[Tensor, ...]]] = {}
    reads: dict[int, list[Reads]] = {}
    tokens, last = work.token_set.tokens, max(layer for layer, _ in heads)
    for batch in tokens.split(max(1, CHUNK // tokens.shape[1])):
        with frozen(work.subject, batch) as run:
            for layer, values, cuts in parts_by_block(run):
                if mine := [head for of_layer, head in heads if of_layer == layer]:
                    names, *tensors = head_pairs(run, layer, mine, values, on_slot)
                    named[layer] = names, cuts
                    for i, head in enumerate(mine):
                        parts.setdefault((layer, head), []).append(tuple(x[:, i].cpu() for x in tensors))
                if layer == last:
                    break
            for layer, of_layer in (reads_of(run, path) if path else {}).items():
                reads.setdefault(layer, []).append(of_layer)
    work.count()
    alphas, scores = alpha_of(before, on_slot), []
    for layer, head in heads:
        names, cuts = named[layer]
        i, slot = before.attention_layers.index(layer), {SLOT: ZeroKeySlot(heads=[(layer, head)])} if on_slot else {}
        tensors = [torch.cat(chunks) for chunks in zip(*parts[layer, head], strict=True)]
        score = HeadScore(layer, head, names, cuts | slot, *tensors, *(x[:, i, head] for x in alphas))
        if not score.error <= TOLERANCE:
            dtype = score.score.dtype
            is_exact = dtype.itemsize >= 4
            why = "its queries or keys are not linear in the residual" if is_exact else f"{dtype} rounds too much"
            fix = "take another family" if is_exact else "load it in float32"
            raise InputError(f"the parts of head {score.name} do not add up to its score: {why}; {fix}")
        scores.append(score)
    return scores, {layer: Reads(*map(torch.cat, zip(*chunks, strict=True))) for layer, chunks in reads.items()}
