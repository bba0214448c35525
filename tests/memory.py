"""The memory of tensors that operators make."""

from collections.abc import Iterable
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operators make in this context: `now`, and at most, `peak`."""

    now = peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in {s._cdata: s for s in _storages(made)}.values():
            if storage._cdata not in given:  # neither a view nor in place
                self._add(storage.nbytes())
                finalize(storage, self._add, -storage.nbytes())
        return made

    def _add(self, n_bytes: int) -> None:
        self.now += n_bytes
        self.peak = max(self.peak, self.now)


def _storages(tensors: Any) -> Iterable[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))
