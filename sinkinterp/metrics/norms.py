"""Norms of residuals, keys and values, and how far the first token's stand out (Gu et al. 2025, section 3.1)."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ..errors import InputError


def vector_norms(x: Float[Tensor, "*stack d"]) -> Float[Tensor, "*stack"]:
    """Euclidean norm of every vector, summed in fp32."""
    return x.float().norm(dim=-1)


def norm_ratio(norms: Float[Tensor, "sequence *stack pos"], position: int = 0) -> Float[Tensor, "sequence *stack"]:
    """||x_position|| over the mean norm of the other positions, per sequence; positions that are NaN do not count."""
    chosen = norms[..., position]
    n_others = (~norms.isnan()).sum(-1) - 1
    others = norms.double().nansum(-1) - chosen.double()  # in fp32 a massive first norm would drown the others
    return (chosen * n_others / others).to(norms.dtype)


@dataclass(frozen=True)
class Steps:
    """Blocks between which the first token's residual stands out: it rises before `up`, and has fallen at `down`.

    `down` is None where it never falls, as in models whose last block is read before it writes.
    """

    up: int
    down: int | None


def steps(ratio: Float[Tensor, " block"], least: float = 2.0) -> Steps | None:
    """Where the first token's norm ratio makes its largest step up and, after it, its largest step down.

    A step is a factor of at least `least` from one block's input to the next; None without a step up. Raises
    InputError unless `least` exceeds 1. Source: step-up and step-down blocks as in Wong et al., arXiv 2512.22213.
    """
    if not least > 1:
        raise InputError(f"least is the factor of a step, above 1; got {least}")
    factors = ratio[1:] / ratio[:-1]
    if not len(factors) or not factors.max() >= least:
        return None
    up = int(factors.argmax()) + 1
    falls = factors[up:]
    is_falling = len(falls) > 0 and bool(falls.min() <= 1 / least)
    return Steps(up, up + int(falls.argmin()) + 1 if is_falling else None)
