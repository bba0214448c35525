"""Training in one process or in several: which process this is, and what the processes do together."""

import gc
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from ..checks import InputError

Batch = dict[str, Tensor]  # arguments of the model: input_ids, labels, and attention_mask if there is padding


@dataclass(frozen=True)
class World:
    """This process, number `rank` of `size` that train together, and its device. Each holds the full model."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reads and writes files and prints."""
        return self.rank == 0

    def wrapped(self, model: PreTrainedModel) -> nn.Module:
        """The model, with gradients averaged over processes."""
        if self.size == 1:
            return model
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


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager:
    """In this context, backward passes average gradients over processes only if `enabled`. It may be compiled."""
    inner = getattr(model, "_orig_mod", model)
    return inner.no_sync() if isinstance(inner, DistributedDataParallel) and not enabled else nullcontext()


@contextmanager
def joined(device: str = "cpu") -> Iterator[World]:
    """The world that `accelerate launch` or `torchrun` describes in the environment, or a single process.

    `device` is "cpu", "cuda" or "auto", which is CUDA if the machine has it. Settings of accelerate have no effect.
    Raises InputError if the device does not exist, if only one of several processes was started, or for --use_fsdp.
    """
    kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else str(device)
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"there is no device {device!r} here; use cpu, or cuda on a machine that has it")
    rank, size, local_rank = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    if {"ACCELERATE_MIXED_PRECISION", "MASTER_PORT"} <= os.environ.keys() and "WORLD_SIZE" not in os.environ:
        raise InputError(
            "accelerate was asked for several processes and started one; give it --multi_gpu, which starts CPU "
            "processes too, in place of --cpu, or use torchrun --nproc-per-node 2 -m sinkinterp ..."
        )
    place = torch.device(kind, local_rank) if kind == "cuda" else torch.device("cpu")
    if size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "") in ("true", "1"):
        raise InputError("each process holds the full model, so weights are not shared out; leave --use_fsdp out")
    with _process_group(place) if size > 1 and not dist.is_initialized() else nullcontext():
        yield World(place, rank, size)


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
        gc.collect()  # the model holds the group, whose threads must end before the interpreter does
        dist.destroy_process_group()
