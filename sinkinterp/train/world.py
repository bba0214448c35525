"""One process or many: who I am among them, and what they must agree on."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import InputError

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class World:
    """This process among `size` that train together, and its device."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process reads, writes and speaks."""
        return self.rank == 0

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model, its gradients averaged over processes where there are several."""
        if self.size == 1:
            return model
        on = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=on, gradient_as_bucket_view=True)

    def share(self, batch: Batch) -> Batch:
        """This process's part of a batch, on its device."""
        parts = {name: tensor.chunk(self.size)[self.rank] for name, tensor in batch.items()}
        return {name: part.to(self.device, non_blocking=True) for name, part in parts.items()}

    def summed(self, *numbers: float | Tensor) -> list[float]:
        """Each number added over all processes."""
        total = torch.stack([torch.as_tensor(x, dtype=torch.float64, device=self.device) for x in numbers])
        if self.size > 1:
            dist.all_reduce(total)
        return total.tolist()

    def agreed(self, number: int) -> int:
        """The first process's number, in all of them."""
        if self.size == 1:
            return number
        shared = torch.tensor(number, device=self.device)
        dist.broadcast(shared, 0)
        return int(shared)


def silent(model: Any, last: bool) -> AbstractContextManager:
    """Gradients stay in the process until the last piece of an update."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()


@contextmanager
def joined(device: str = "cpu") -> Iterator[World]:
    """The world that `accelerate launch` or `torchrun` describes in the environment; alone without them.

    `device` is "cpu", "cuda" or "auto", CUDA where there is some. Raises InputError where it is not there.
    """
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"there is no device {device!r} here; use cpu, or cuda on a machine that has it")
    rank, size, local = (int(os.environ.get(name, other)) for name, other in _PLACE)
    on = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
    mine = size > 1 and not dist.is_initialized()
    if mine:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield World(on, rank, size)
    finally:
        if mine:
            dist.destroy_process_group()


_PLACE = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
