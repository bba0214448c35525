"""What becomes of heads' attention maps and of the loss when a named part is cut, for a page that computes nothing."""

from ..attention.sites import CALL, Edit
from ..data.tokens import TokensLike
from ..errors import InputError
from ..metrics.instruments import LOSS
from ..metrics.loss import NEXT_TOKEN_LOSS
from ..metrics.metric import Metric
from ..report.explained import Explanation, Head
from ..report.explained_graph import NOTHING, CutMap
from ..report.protocol import public_name
from .inputs import ModelLike, equal_inputs_of
from .measure import measure


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
