"""What principal components and top-k dictionaries explain, fitted with outliers, without, and without random ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from ..attention.shapes import Residual
from ..backends.huggingface import HuggingFaceSubject
from ..data.progress import Progress, silent
from ..data.tokens import Tokens
from ..interventions.edit import Edit
from ..metrics.bootstrap import Estimate, estimate, estimate_cells, ratio
from ..report.leaving_out import DEAD, EXPLAINED, EXPLAINED_ALL, LEFT_OUT, SPLICED, dictionary_figure, pca_figure
from ..table import Cell, Table
from .eviction import loss_of
from .leaving_out import Keep, Mask
from .quantising import BOTH, DIMS, NOTHING, RANDOM_DIMS, RANDOM_TOKENS, TOKENS, left_out, worth_trying

Vectors = Float[Tensor, "vector d_model"]
Reconstruct = Callable[[Float[Tensor, "*stack d_model"]], Float[Tensor, "*stack d_model"]]
Texts = Float[Tensor, "sequence pos d_model"]
RANK, FEATURES, ACTIVE, BATCH, SEEDS = 16, 1024, 16, 256, 5


def principal(x: Vectors, rank: int) -> Reconstruct:
    """The projection onto the mean and the `rank` principal components of vectors."""
    mean = x.double().mean(0)
    centred = x.double() - mean
    components = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -rank:]
    return lambda y: ((y.double() - mean) @ components @ components.T + mean).to(y.dtype)


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A top-k autoencoder: the `active` largest features of each vector (Gao et al. 2024, arXiv:2406.04093)."""

    encoder: Float[Tensor, "d_model feature"]
    decoder: Float[Tensor, "feature d_model"]
    mean: Float[Tensor, " d_model"]
    scale: Tensor
    active: int

    def features(self, x: Float[Tensor, "*stack d_model"]) -> Float[Tensor, "*stack feature"]:
        found = ((x - self.mean) / self.scale) @ self.encoder
        top = found.topk(self.active, -1)
        return torch.zeros_like(found).scatter(-1, top.indices, top.values.relu())

    def __call__(self, x: Float[Tensor, "*stack d_model"]) -> Float[Tensor, "*stack d_model"]:
        return (self.features(x) @ self.decoder) * self.scale + self.mean


def dictionary(x: Vectors, features: int, steps: int, seed: int = 0, active: int = ACTIVE) -> Dictionary:
    """A dictionary trained on vectors, centred and scaled to a mean square of 1, by Adam on the squared error."""
    generator = torch.Generator().manual_seed(seed)
    x = x.float()
    mean = x.mean(0)
    decoder = torch.nn.functional.normalize(torch.randn(features, x.shape[1], generator=generator), dim=-1)
    encoder = decoder.T.clone().requires_grad_()
    found = Dictionary(encoder, decoder.requires_grad_(), mean, (x - mean).square().mean().sqrt(), active)
    optimiser = torch.optim.Adam([encoder, decoder], lr=1e-3)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (BATCH,), generator=generator)]
        optimiser.zero_grad()
        ((found(batch) - batch) / found.scale).square().mean().backward()
        optimiser.step()
    return replace(found, encoder=encoder.detach(), decoder=decoder.detach())


@dataclass(frozen=True)
class Splice(Edit):
    """Puts a reconstruction in place of one block's input, at the tokens that `keep` keeps."""

    block: int
    reconstruct: Reconstruct
    keep: Keep

    @override
    def residual(self, block: int, x: Residual) -> Residual:
        return torch.where(self.keep(x)[..., None], self.reconstruct(x), x) if block == self.block else x


def pca_table(x: Texts, mask: Mask, rank: int = RANK) -> Table:
    """Explained variance of other texts' ordinary tokens, by what the fit left out; block `mask.tallest`."""
    rows = []
    for name in worth_trying(mask, mask.tallest):
        fitted, (vectors, ordinary) = _training(x[::2], mask, name), _tested(x[1::2], mask, name)
        reconstruct = principal(fitted, min(rank, x.shape[-1] - 1))
        every = explained(vectors, reconstruct(vectors), torch.ones_like(ordinary))
        cells = estimate_cells(EXPLAINED, explained(vectors, reconstruct(vectors), ordinary))
        rows.append({LEFT_OUT: name, **cells, **estimate_cells(EXPLAINED_ALL, every)})
    note = f"{_note(mask, len(x[1::2]))}; {rank} components; null: 0, the mean alone"
    return Table("What do principal components explain?", note, tuple(rows), pca_figure)


def dictionary_table(
    subject: HuggingFaceSubject, tokens: Tokens, x: Texts, mask: Mask, steps: int, progress: Progress = silent
) -> Table:
    """Explained variance, dead features and loss when spliced in, by what the training of dictionaries left out."""
    block, test, features = mask.tallest, tokens[1::2], min(FEATURES, 4 * x.shape[-1])
    full, show = loss_of(subject, test), progress("training dictionaries")
    rows: list[dict[str, Cell]] = []
    names = [name for name in worth_trying(mask, block) if name in (NOTHING, TOKENS, RANDOM_TOKENS)]
    for name in names:
        fitted, (vectors, ordinary) = _training(x[::2], mask, name), _tested(x[1::2], mask, name)
        found, added = [], []
        for seed in range(SEEDS):
            show(len(rows) * SEEDS + seed, len(names) * SEEDS)
            found.append(dictionary(fitted, features, steps, seed))
            edit = Splice(block, found[-1], mask.keep(block))
            added.append((loss_of(subject, test, [edit]) - full).mean(1))
        shares = [explained(vectors, one(vectors), ordinary) for one in found]
        dead = [(one.features(fitted) == 0).all(0).float().mean().item() for one in found]
        mean = torch.stack([one(vectors) for one in found])
        cells = estimate_cells(EXPLAINED, _over_seeds(vectors, mean, ordinary))
        seeds = {"lowest seed": min(map(float, shares)), "highest seed": max(map(float, shares))}
        loss = estimate_cells(SPLICED, estimate(torch.stack(added).mean(0)))
        rows.append({LEFT_OUT: name, **cells, **seeds, DEAD: sum(dead) / SEEDS, **loss})
    note = (
        f"{_note(mask, len(test))}; {features} features, {ACTIVE} active, {steps} steps of {BATCH} tokens, Adam 1e-3; "
        f"mean over {SEEDS} seeds; {DEAD}: active for no training token; spliced in at ordinary tokens, nats a token; "
        "null: 0"
    )
    return Table("What does a top-k dictionary explain?", note, tuple(rows), dictionary_figure)


def explained(x: Texts, reconstruction: Texts, chosen: Bool[Tensor, "sequence pos"]) -> Estimate:
    """The share of the variance of the chosen vectors that a reconstruction explains; resampled by text."""
    return _over_seeds(x, reconstruction[None], chosen)


def _over_seeds(x: Texts, reconstructions: Float[Tensor, "seed sequence pos d_model"], chosen: Tensor) -> Estimate:
    centre = x[chosen].mean(0)
    squares = ((x - centre).double().square().sum(-1) * chosen).sum(1)
    errors = ((x - reconstructions).double().square().sum(-1) * chosen).sum(-1).mean(0)
    lost = ratio(errors, squares)
    return Estimate(1 - lost.mean, 1 - lost.high, 1 - lost.low)


def _training(x: Texts, mask: Mask, name: str) -> Vectors:
    """The vectors that a fit sees: without the tokens that are left out, with zeros for dimensions that are."""
    left = left_out(mask)[name](mask.tallest, x).expand(x.shape)
    return x.masked_fill(left, 0)[~left.all(-1)]


def _tested(x: Texts, mask: Mask, name: str) -> tuple[Texts, Bool[Tensor, "sequence pos"]]:
    """The vectors that a fit is tested on, with zeros for dimensions that are left out, and which are ordinary."""
    by_dims = {BOTH: DIMS}.get(name, name)
    dims = torch.zeros(1, 1, 1, dtype=torch.bool)
    if by_dims in (DIMS, RANDOM_DIMS):
        dims = left_out(mask)[by_dims](mask.tallest, x)
    return x.masked_fill(dims, 0), mask.keep(mask.tallest)(x)


def _note(mask: Mask, tested: int) -> str:
    return (
        f"{mask.note}; input of block {mask.tallest}; fitted on every other text, tested on ordinary tokens of the "
        f"other {tested}; 95% bootstrap interval over these"
    )
