"""What cuts of named parts remove of the attention to the first token, beside random ones; and maps of what is left."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ...attention.sites import CALL, Edit
from ...backends.subject import Subject
from ...data.progress import OnProgress
from ...data.tokens import TokenSet, TokensLike
from ...errors import InputError
from ...metrics.bootstrap import estimate_cells, mean_cells, ratio
from ...metrics.instruments import LOSS
from ...metrics.loss import NEXT_TOKEN_LOSS
from ...metrics.metric import Metric, PerSequence
from ...report.columns import ALPHA_1, HEAD
from ...report.explained import CUT, DIRECTLY, IN_STREAM, RANDOM, REMOVED, Explanation, Head, HeadScore
from ...report.explained_graph import NOTHING, CutMap
from ...report.readings import public_name
from ...report.report import Report
from ...table import Cell, high_of, low_of
from ..inputs import ModelLike, equal_inputs_of
from ..measure import measure
from .massive_path import path_edit
from .score_parts import SLOT

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


def cut_rows(work: Work, head: HeadScore, on_slot: bool) -> Iterator[dict[str, Cell]]:
    """Returns what the named parts remove of a head's attention when they are cut, and what as many random ones do."""
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
                yield row | mean_cells(ALPHA_1, after) | _removed(head, after)


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
