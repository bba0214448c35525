"""What becomes of heads' attention maps and of the loss when a named part is cut, for a page that computes nothing."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention.call import AttentionCall
from ..data.tokens import TokensLike
from ..interventions.edit import Edit
from ..metrics.loss import target_loss
from ..report.explained import Explanation
from ..report.explained_graph import NOTHING, CutMap
from .inputs import ModelLike, equal_inputs_of, passes


def cut_maps(model: ModelLike, tokens: TokensLike, answer: Explanation) -> dict[tuple[int, int], list[CutMap]]:
    """Per explained head, its mean attention map and the loss as the model is, and with each named part cut by itself.

    A part is cut in the stream: at the first token it becomes its mean over the other tokens. Tokens are those of the
    explanation, of one length; a run for each part. Raises InputError as `explain` does.
    """
    subject, ids = equal_inputs_of(model, tokens)
    cuts: dict[str, Edit] = {}
    for score in answer.heads:
        cuts |= {score.parts[i]: score.cuts[score.parts[i]] for i in score.named() if score.parts[i] in score.cuts}
    heads = sorted({score.head for score in answer.heads})

    def read(call: AttentionCall) -> Tensor:
        return call.pattern()[:, heads]

    def run(edits: Sequence[Edit]) -> tuple[Tensor, float]:
        total, losses = torch.zeros(()), []
        for rows, batch in passes(subject, ids):
            trace = subject.run(batch, calls={"pattern": read}, edits=[edit.for_sequences(rows) for edit in edits])
            total = total + trace.calls["pattern"].double().sum(0).cpu()
            losses.append(target_loss(trace.logits[:, :-1], batch[:, 1:].to(trace.logits.device)).mean(1).cpu())
        return total / len(ids), float(torch.cat(losses).mean())

    maps: dict[tuple[int, int], list[CutMap]] = {(score.layer, score.head): [] for score in answer.heads}
    for name, edits in {NOTHING: [], **{name: [edit] for name, edit in cuts.items()}}.items():
        patterns, loss = run(edits)
        for layer, head in maps:
            weights = patterns[subject.shape.attention_layers.index(layer), heads.index(head)]
            maps[layer, head].append(CutMap(name, weights.numpy(), loss))
    return maps
