"""Training in one process or in several: which process this is, and what the processes do together."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from ..errors import InputError

CAN_SHARD = hasattr(FSDPModule, "reset_iter_state")  # since torch 2.13
Batch = dict[str, Tensor]  # arguments of the model: input_ids, labels, and attention_mask if there is padding


@dataclass(frozen=True)
class World:
    """This process, number `rank` of `size` that train together, and its device.

    If `sharded`, each process holds a shard of every weight and of the optimiser's moments (FSDP2). Otherwise each
    holds the full model.
    """

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1
    sharded: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reads and writes files and prints."""
        return self.rank == 0

    def wrapped(self, model: PreTrainedModel) -> nn.Module:
        """The model, with gradients averaged over processes. Shards its weights in place if `sharded`."""
        if self.size == 1:
            return model
        if self.sharded:
            return shard(model, self)
        device_ids = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)

    def part(self, batch: Batch) -> Batch:
        """This process's part of a batch, on its device."""
        chunks = {name: tensor.chunk(self.size)[self.rank] for name, tensor in batch.items()}
        return {name: chunk.to(self.device, non_blocking=True) for name, chunk in chunks.items()}

    def summed(self, *numbers: float | Tensor) -> list[float]:
        """Each number summed over all processes."""
        total = torch.stack([torch.as_tensor(x, dtype=torch.float64, device=self.device) for x in numbers])
        if self.size > 1:
            dist.all_reduce(total)
        return total.tolist()

    def broadcast(self, number: int) -> int:
        """The number that the first process gave, in all processes."""
        if self.size == 1:
            return number
        shared = torch.tensor(number, device=self.device)
        dist.broadcast(shared, 0)
        return int(shared)


def shard(model: PreTrainedModel, world: World) -> nn.Module:
    """Shards every block, then the rest of the model, so that only one block at a time is held in full."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in reversed(list(model.modules())):  # children before their parents
        if module is model or type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            for method in getattr(module, "forward_methods", ()):
                register_fsdp_forward_method(module, method)
    return model


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager:
    """In this context, backward passes average gradients over processes only if `enabled`."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not enabled else nullcontext()


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """In this context every process holds the full weights, so that one of them can run the model without gradients.

    A sharded model must have been trained for a step before, since its first forward pass sets the shards up.
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
        model.reset_iter_state()  # shards again, and forgets that one process ran the model more often


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor joined from the shards of all processes, which must call this together. Others stay unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """The tensor on the device of `reference`. If `reference` is sharded, only this process's shard of it."""
    tensor = tensor.to(reference.device)
    if not isinstance(reference, DTensor) or tensor.shape != reference.shape:
        return tensor
    return distribute_tensor(tensor, reference.device_mesh, reference.placements, src_data_rank=None)


@contextmanager
def joined(device: str = "cpu") -> Iterator[World]:
    """The world that `accelerate launch` or `torchrun` describes in the environment, or a single process.

    `device` is "cpu", "cuda" or "auto", which is CUDA if the machine has it. `accelerate launch --use_fsdp` shards the
    model; no other setting of accelerate has an effect. Raises InputError if the device does not exist, if only one of
    several processes was started, or if the model is to be sharded by a torch that is too old.
    """
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else str(device)
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"there is no device {device!r} here; use cpu, or cuda on a machine that has it")
    rank, size, local_rank = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    _check_started()
    place = torch.device(kind, local_rank) if kind == "cuda" else torch.device("cpu")
    is_sharded = size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "") in ("true", "1")
    if is_sharded and not CAN_SHARD:
        raise InputError(f"sharded training needs torch 2.13 or newer, and this is {torch.__version__}; leave FSDP out")
    with _process_group(place) if size > 1 and not dist.is_initialized() else nullcontext():
        yield World(place, rank, size, is_sharded)


_VARIABLES = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))  # of the environment, with their defaults


@contextmanager
def _process_group(place: torch.device) -> Iterator[None]:
    """In this context the processes can talk to each other."""
    if place.type == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield
        dist.barrier()  # if a process left while another still talks to it, it would abort
    finally:
        gc.collect()  # shards hold the group, whose threads must end before the interpreter does
        dist.destroy_process_group()


def _check_started() -> None:
    """Raises InputError if `accelerate launch` was asked for several processes and started one."""
    several = {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys()
    if several and "WORLD_SIZE" not in os.environ:
        raise InputError(
            "accelerate was asked for several processes and started one; give it --multi_gpu, which starts CPU "
            "processes too, in place of --cpu, or use torchrun --nproc-per-node 2 -m sinkinterp ..."
        )
