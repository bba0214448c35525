"""Maps of one head: scores, cosines and norm products of every query with every key. For short sequences."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..attention.call import AttentionCall
from ..checks import whole_number
from ..data.token_input import TokensLike
from ..errors import InputError
from ..interventions.edit import Edit, edits_of
from ..metrics.qk_pairs import cosine_map, norm_product_map, score_map
from ..plots.columns import COSINE, NORM_PRODUCT, SCORE
from .inputs import ModelLike, equal_inputs_of


def qk_maps(
    model: ModelLike, tokens: TokensLike | Any, layer: int, head: int, edits: Edit | Sequence[Edit] = ()
) -> dict[str, Float[Tensor, "query key"]]:
    """Scores, cosines and norm products (times the scale) of one head, mean over sequences; NaN for unseen keys.

    `layer` counts all blocks, as a report's `attention_layers` do. Raises InputError for a head that is not there.
    """
    subject, rows = equal_inputs_of(model, tokens)
    layers = subject.shape.attention_layers
    whole_number(head, "a head")
    if whole_number(layer, "a layer") not in layers or not 0 <= head < subject.shape.n_heads:
        raise InputError(f"there is no head {head} of layer {layer}; {subject.shape.n_heads} heads attend in {layers}")

    def score(call: AttentionCall) -> Tensor:
        return score_map(call)[:, head]

    def cosine(call: AttentionCall) -> Tensor:
        return cosine_map(call)[:, head]

    def norm_product(call: AttentionCall) -> Tensor:
        return norm_product_map(call)[:, head]

    reads = {SCORE: score, COSINE: cosine, NORM_PRODUCT: norm_product}
    trace = subject.run(rows, calls=reads, edits=edits_of(edits))
    return {name: values[:, layers.index(layer)].mean(0) for name, values in trace.calls.items()}
