"""The largest eigenvalues of many small matrices, without the other ones."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Matrices = Float[Tensor, "matrix n n"]
SQUARINGS, STEPS = 2, 6
BOUND = 1e-6  # of the relative error


def largest_eigenvalue(a: Matrices) -> Float[Tensor, " matrix"]:
    """The largest eigenvalue of each symmetric matrix without negative ones, to a relative error of `BOUND`, in fp32.

    Power iteration finds most of them, and proves it. All eigenvalues are computed of the other matrices only. NaN for
    a matrix that is not finite.
    """
    largest, is_proven = power_iteration(a)
    others = (~is_proven).nonzero()[:, 0]
    if len(others):
        finite = a[others].isfinite().all(-1).all(-1)
        exact = torch.linalg.eigvalsh(a[others].where(finite[:, None, None], 0))[:, -1]
        largest[others] = exact.masked_fill(~finite, torch.nan)
    return largest


def power_iteration(a: Matrices) -> tuple[Float[Tensor, " matrix"], Bool[Tensor, " matrix"]]:
    """v' A v for a unit vector v near the first eigenvector u of each A, and whether it is proven to be near enough.

    P = A^4 / ||A^4|| has the eigenvectors of A. Let r = v' P v. The largest eigenvalue of P is at least r, and the
    squares of all eigenvalues sum to 1, so the second one is at most s = sqrt(1 - r^2). Where s < r, the sine of the
    angle between v and u is at most ||P v - r v|| / (r - s). As A has no negative eigenvalue, the square of that sine
    bounds the relative error of v' A v.
    """
    power = a
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / torch.linalg.matrix_norm(power)[:, None, None]
    start = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    v = power[torch.arange(len(power), device=a.device), :, start, None]
    for _ in range(STEPS):
        v = torch.nn.functional.normalize(power @ v, dim=1)
    image = power @ v
    r = (v * image).sum((1, 2)).clamp(max=1)
    gap = r - (1 - r * r).sqrt()
    error = ((image - r[:, None, None] * v).norm(dim=(1, 2)) / gap).square()
    return (v * (a @ v)).sum((1, 2)), (gap > 0) & (error <= BOUND)
