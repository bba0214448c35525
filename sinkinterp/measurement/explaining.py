"""explain: why does a head look at the first token? Its score in parts, their writers, and the effect of cuts.

    answer = si.explain("gpt2", text)
    answer.sentence
    answer.plot()

The score of a head with the first key, above the mean of the others that a query sees, is q.k_1 - mean_j q.k_j, scaled
and averaged over queries. The residual is a sum of parts (embedding, position, every head, every feed-forward layer,
biases). With the norms' scales frozen, queries and keys are linear in it, so the score is a sum over pairs of parts.
If a learned key k* (a slot) draws more attention than the first token, it takes the first key's place.

Source: Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); Sun et al. 2024, arXiv:2402.17762.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..attention.sites import CALL, Edit
from ..attention.slots import SlotRow
from ..backends.frozen import freezable, frozen
from ..backends.subject import Subject
from ..checks import LARGEST, InputError, both_or_none, whole_number
from ..data.progress import OnProgress, progress_of
from ..data.tokens import Tokens, TokenSet, TokensLike
from ..guesses import keywords
from ..interventions.columns import ZeroKeySlot
from ..interventions.selectors import named_heads
from ..metrics.bootstrap import SHARES, estimate_cells, intervals, mean_cells, ratio
from ..metrics.instruments import LOSS
from ..metrics.metric import NEXT_TOKEN_LOSS, Metric, PerSequence
from ..report.explained import CUT, DIRECTLY, IN_STREAM, RANDOM, REMOVED, Explanation, Head, HeadScore, Path, Written
from ..report.explained_graph import NOTHING, CutMap
from ..report.readings import public_name
from ..report.report import Report
from ..table import ALPHA_1, HEAD, Cell, Table, high_of, low_of
from .activation_patching import answer_token
from .inputs import ModelLike, equal_inputs_of, inputs_of
from .lens import CHUNK, SLOT, TOLERANCE, head_pairs, logit_parts, parts_by_block
from .massive_path import Reads, followed, massive_path, path_cuts, path_edit, path_row, reads_of
from .measure import measure

TOP = 3  # heads that are explained by default
TEXTS = 32  # of the default text
DRAWS = 2  # of random parts


class Work:
    """The model, its inputs, and how many forward passes over all texts were made."""

    def __init__(
        self, subject: Subject, token_set: TokenSet, generator: torch.Generator, on_pass: OnProgress, expected: int
    ) -> None:
        self.subject, self.token_set, self.generator = subject, token_set, generator
        self.on_pass, self.expected, self.passes = on_pass, expected, 0

    def report(self, *edits: Edit) -> Report:
        """What the model does under these edits."""
        self.count()
        return measure(self.subject, self.token_set, edits=edits, positions=(0,), instruments=LOSS, progress=False)

    def count(self) -> None:
        """One more pass."""
        self.passes += 1
        self.on_pass(min(self.passes, self.expected), self.expected)


def alpha_of(report: Report, on_slot: bool) -> tuple[Tensor, Tensor]:
    """Importance of what is explained, and its null; `sequence layer head`."""
    if on_slot and report.slot_importance is not None and report.slot_null is not None:
        return report.slot_importance, report.slot_null
    return report.alpha(), report.null_alpha()


@keywords
def explain(
    model: ModelLike,
    tokens: TokensLike | Any = None,
    *,
    head: Head | Sequence[Head] | None = None,
    answer: str | None = None,
    instead: str | None = None,
    seed: int = 0,
    progress: bool | OnProgress = True,
) -> Explanation:
    """Why a head, or each of several, looks at the first token; by default the three with the strongest sinks.

    Takes the models and tokens that `measure` takes, of one length; by default 32 docstrings. Scores are in units of
    the score (scaled, before a softcap; a bias of positions is a part). It is followed by their ablation: at the
    first token, each named part becomes its mean over the other tokens of its text. The control does so with as many
    parts drawn at random from `seed`. With `answer` and `instead`, texts of one token such as " Paris" and " Madrid",
    `parts()` also has what each part and each head itself writes into the difference of their logits after the last
    token (see `lens`; all parts of the residual sum to it). Raises InputError for heads that are not there, for models
    whose norms cannot be frozen, and where the parts do not add up.
    """
    subject, token_set = inputs_of(model, tokens)
    ids = token_set.of_one_length()
    if tokens is None:
        ids = ids[:TEXTS]
        token_set = replace(TokenSet.of(ids, token_set.source), bos=token_set.bos)
    freezable(subject)
    written = _written(subject, ids, answer, instead)
    with progress_of(progress, f"explaining {subject.name}") as on_pass:
        generator = torch.Generator().manual_seed(whole_number(seed, "seed", 0, LARGEST))
        work = Work(subject, token_set, generator, on_pass, 7 + TOP * 2 * (1 + DRAWS))
        before = work.report()
        on_slot = _draws_more(before) and _has_learned_keys(subject, ids)
        heads = _heads_of(subject, head, before, on_slot)
        found = None if on_slot else massive_path(subject, ids)
        path, no_path = (found, None) if isinstance(found, Path) else (None, found)
        scores, reads = _scores(work, heads, path, before, on_slot)
        cuts = [row for score in scores for row in cut_rows(work, score, on_slot)]
        path = None if path is None else followed(path, subject, ids, reads)
        path_rows = _rows_of_path(work, path, reads, before)
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
        written=written,
    )


def _rows_of_path(work: Work, path: Path | None, reads: dict[int, Reads], before: Report) -> list[dict[str, Cell]]:
    """The attention that is left when the path is cut; empty without a path that is read."""
    if path is None or not path.readers:
        return []
    layers, length = work.subject.shape.attention_layers, work.token_set.tokens.shape[1]
    edits = path_cuts(path, reads, layers, length, work.generator)
    reports = {name: work.report(*cut) if cut else before for name, cut in edits.items()}
    return [path_row(name, report, before, list(path.readers)) for name, report in reports.items()]


def _written(subject: Subject, tokens: Tokens, answer: str | None, instead: str | None) -> Written | None:
    """The parts of the logits of two answers; None without answers."""
    both_or_none(answer, instead, "answer= and instead=")
    if answer is None or instead is None:
        return None
    right, wrong = (torch.tensor(answer_token(subject, text)).expand(len(tokens)) for text in (answer, instead))
    return Written(answer, instead, logit_parts(subject, tokens, right, wrong))


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


# What is left when parts are cut


def cut_rows(work: Work, head: HeadScore, on_slot: bool) -> Iterator[dict[str, Cell]]:
    """The attention of a head that is lost when the named parts are cut, and when random parts are cut instead."""
    can_be_cut = [j for j, name in enumerate(head.parts) if name in head.cuts]
    named = [j for j in head.named() if j in can_be_cut]
    others = [j for j in can_be_cut if j not in head.named() and head.parts[j] != SLOT]
    orders = [torch.randperm(len(others), generator=work.generator)[: len(named)] for _ in range(DRAWS)]
    drawn = [[others[i] for i in order.tolist()] for order in orders] if len(others) >= len(named) else []
    names, layer = " + ".join(head.parts[j] for j in named), head.layer
    n_kv_heads, length = work.subject.shape.n_kv_heads, work.token_set.tokens.shape[1]

    def in_stream(chosen: Sequence[int]) -> Sequence[Edit]:
        return [head.cuts[head.parts[j]] for j in chosen]

    def directly(chosen: Sequence[int]) -> Sequence[Edit]:
        key = head.first_keys[:, chosen].sum(1, keepdim=True).expand(-1, n_kv_heads, -1)
        return [path_edit({layer: key}, [(layer, head.head * n_kv_heads // work.subject.shape.n_heads)], length)]

    ways: dict[str, Callable[[Sequence[int]], Sequence[Edit]]] = {IN_STREAM: in_stream}
    ways |= {} if on_slot else {DIRECTLY: directly}
    for way, edits in ways.items() if named else ():
        for cut, draws in {names: [named], RANDOM: drawn}.items():
            reports = [work.report(*edits(chosen)) for chosen in draws]
            if reports:
                i = reports[0].attention_layers.index(layer)
                after = torch.stack([alpha_of(report, on_slot)[0][:, i, head.head] for report in reports]).mean(0)
                row: dict[str, Cell] = {HEAD: head.name, CUT: f"{cut}, {way}"}
                yield row | mean_cells(ALPHA_1, after, SHARES) | _removed(head, after)


def _removed(head: HeadScore, after: PerSequence) -> dict[str, Cell]:
    """The share of what is above uniform attention that is gone; None where nothing is above it."""
    if not head.is_above_null:
        return dict.fromkeys((REMOVED, low_of(REMOVED), high_of(REMOVED)))
    return estimate_cells(REMOVED, ratio(head.alpha - after, head.alpha - head.null))


def cut_maps(model: ModelLike, tokens: TokensLike, answer: Explanation) -> dict[Head, list[CutMap]]:
    """Per explained head, its mean attention map and the loss as the model is, and with each named part cut by itself.

    A part is cut in the stream: at the first token it becomes its mean over the other tokens. Tokens are those of the
    explanation, of one length; a run for each part. Raises InputError as `explain` does, and for another model.
    """
    subject, ids = equal_inputs_of(model, tokens)
    if not isinstance(answer, Explanation) or not answer.note.startswith(f"{public_name(subject.name)}: "):
        raise InputError(f"answer is what si.explain said of {subject.name} on these tokens; got {answer!r:.60}")
    layers, heads = subject.shape.attention_layers, sorted({score.head for score in answer.heads})
    pattern = Metric("pattern", CALL, lambda call: call.pattern()[:, heads])
    cuts: dict[str, list[Edit]] = {NOTHING: []}
    cuts |= {name: [edit] for score in answer.heads for name, edit in score.named_cuts().items()}
    maps: dict[Head, list[CutMap]] = {(score.layer, score.head): [] for score in answer.heads}
    for name, edits in cuts.items():
        report = measure(subject, ids, edits=edits, positions=(0,), instruments=[*LOSS, (pattern,)], progress=False)
        loss, weights = report.extra(NEXT_TOKEN_LOSS).nanmean().item(), report.extra(pattern).mean(0)
        for layer, head in maps:
            weights_of_head = weights[layers.index(layer), heads.index(head)].numpy()
            maps[layer, head].append(CutMap(name, weights_of_head, loss))
    return maps
