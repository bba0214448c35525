"""One step of the optimiser."""

import math

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import InputError
from . import distributed
from .distributed import Batch
from .job import Job
from .objectives import IGNORED
from .recipe import Fit


class Diverged(InputError):
    """The loss, or its gradient, is no longer finite: the one way in which a training itself fails."""


def update(job: Job[Fit], step: int, model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """Changes the model by one step. Returns the loss, gradient norm before clipping, learning rate and token count.

    Padding does not count as tokens. Raises Diverged, and changes nothing, if loss or gradient is not finite.
    """
    fit, world, rate = job.fit, job.world, job.fit.rate(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    batch = job.batch(step)
    local_loss = accumulate(job, batch, model)
    local_norm = distributed.full_tensor(torch.nn.utils.clip_grad_norm_(model.parameters(), fit.clip))
    loss, norm = (total / world.size for total in world.summed(local_loss, local_norm))
    _check_finite(step, loss, norm, fit)
    optimizer.step()
    return {"train_loss": loss, "grad_norm": norm, "lr": rate, "tokens": _tokens(batch)}


def accumulate(job: Job[Fit], batch: Batch, model: nn.Module) -> torch.Tensor:
    """Adds the gradient of the batch's mean loss to the model, one micro-batch at a time.

    Returns this process's part of the loss, which averages to the loss over processes.
    """
    fit, world = job.fit, job.world
    part = world.part(batch)
    starts = range(0, len(part["labels"]), fit.micro_batch)
    pieces = [{name: tensor[i : i + fit.micro_batch] for name, tensor in part.items()} for i in starts]
    is_one_piece = len(pieces) == world.size == 1
    targets_per_process = _targets(batch) / world.size
    total = torch.zeros((), device=world.device)
    for piece in pieces:
        with distributed.gradient_sync(model, enabled=piece is pieces[-1]):
            with torch.autocast(world.device.type, torch.bfloat16, enabled=fit.bf16):
                loss = model(**piece, use_cache=False).loss
            loss = loss if is_one_piece else loss * (_targets(piece) / targets_per_process)
            loss.backward()
            total += loss.detach()
    return total


def _targets(batch: Batch) -> int:
    """How many tokens of a batch are predicted."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def _tokens(batch: Batch) -> int:
    return int(batch["attention_mask"].sum()) if "attention_mask" in batch else batch["input_ids"].numel()


def _check_finite(step: int, loss: float, norm: float, fit: Fit) -> None:
    """Raises Diverged before a step that would ruin the weights."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = f"gradient norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
        raise Diverged(
            f"the {what} at step {step}; lower lr (now {fit.lr}) or clip (now {fit.clip}); the last checkpoint is kept"
        )
