"""One process or many: who I am among them, and what they must agree on."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from ..errors import InputError

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class World:
    """This process among `size` that train together, and its device.

    Each holds the model, or, `sharded`, a share of every weight and of its moments (FSDP2).
    """

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1
    sharded: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process reads, writes and speaks."""
        return self.rank == 0

    def wrapped(self, model: PreTrainedModel) -> nn.Module:
        """The model, its gradients averaged over processes where there are several, its weights sharded in place."""
        if self.size == 1:
            return model
        if self.sharded:
            return _shard(model, self)
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


def _shard(model: PreTrainedModel, world: World) -> nn.Module:
    """Shards every block, then what is left of the model, so that one block at a time is whole."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in reversed(list(model.modules())):  # what is inside another comes before it
        if module is model or type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            for method in getattr(module, "forward_methods", ()):
                register_fsdp_forward_method(module, method)
    return model


def silent(model: Any, last: bool) -> AbstractContextManager:
    """Gradients stay in the process until the last piece of an update."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """The model's weights whole in every process, so that one of them alone can run it without gradients.

    Shards must have been trained before, since the first forward pass sets them up.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    model.set_reshard_after_forward(False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.unshard()
    try:
        yield
    finally:
        model.set_reshard_after_forward(True)
        model.reset_iter_state()  # shards again, and forgets that one process ran the model more often than others


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all processes, which call this together; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_held(tensor: Tensor, held: Tensor) -> Tensor:
    """This process's share of a whole tensor, on the device of `held`, which is sharded alike; any other whole."""
    tensor = tensor.to(held.device)
    if not isinstance(held, DTensor) or tensor.shape != held.shape:
        return tensor
    return distribute_tensor(tensor, held.device_mesh, held.placements, src_data_rank=None)


@contextmanager
def joined(device: str = "cpu") -> Iterator[World]:
    """The world that `accelerate launch` or `torchrun` describes in the environment; alone without them.

    `device` is "cpu", "cuda" or "auto", CUDA where there is some. `accelerate launch --use_fsdp` shards; no other
    setting of accelerate is read. Raises InputError where the device, or all processes but one, are not there.
    """
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"there is no device {device!r} here; use cpu, or cuda on a machine that has it")
    rank, size, local = (int(os.environ.get(name, other)) for name, other in _PLACE)
    _check_started()
    on = torch.device(kind, local) if kind == "cuda" else torch.device("cpu")
    mine = size > 1 and not dist.is_initialized()
    if mine:
        if kind == "cuda":
            torch.cuda.set_device(on)
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield World(on, rank, size, sharded=size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "") in ("true", "1"))
        if mine:
            dist.barrier()  # a process that leaves while another still talks to it aborts
    finally:
        if mine:
            gc.collect()  # shards hold on to the group, whose threads must end before the interpreter does
            dist.destroy_process_group()


_PLACE = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


def _check_started() -> None:
    """Refuses to train alone where `accelerate launch` was asked for several processes and started one."""
    several = {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys()
    if several and "WORLD_SIZE" not in os.environ:
        raise InputError(
            "accelerate was asked for several processes and started one; give it --multi_gpu, which starts CPU "
            "processes too, in place of --cpu, or use torchrun --nproc-per-node 2 -m sinkinterp ..."
        )
