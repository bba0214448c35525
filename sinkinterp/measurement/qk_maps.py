"""Maps of one head: mean over sequences of what its queries and keys do, pair by pair. For short sequences."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from ..attention.call import AttentionCall
from ..backends.subject import Subject
from ..errors import InputError
from ..interventions.edit import Edit
from ..metrics import angles

Map = Float[Tensor, "query key"]


def qk_maps(
    subject: Subject, tokens: Int[Tensor, "sequence pos"], layer: int, head: int, edits: Sequence[Edit] = ()
) -> dict[str, Map]:
    """Scores, cosines and norm products (times the scale) of one head's queries and keys; NaN for unseen keys.

    `layer` counts all blocks, as a report's `attention_layers` do. Raises InputError for a head that is not there.
    """
    layers = subject.shape.attention_layers
    if layer not in layers or not 0 <= head < subject.shape.n_heads:
        raise InputError(f"there is no head {head} of layer {layer}; {subject.shape.n_heads} heads attend in {layers}")

    def score(call: AttentionCall) -> Tensor:
        return angles.score_map(call)[:, head]

    def cosine(call: AttentionCall) -> Tensor:
        return angles.angle_map(call)[:, head]

    def norm_product(call: AttentionCall) -> Tensor:
        return angles.norm_map(call)[:, head]

    reads = {"score": score, "cosine": cosine, "norm product": norm_product}
    trace = subject.run(tokens, calls=reads, edits=edits)
    return {name: values[:, layers.index(layer)].mean(0) for name, values in trace.calls.items()}
