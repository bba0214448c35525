"""PyTorch modules of the user's own as subjects: found, read and edited by the operations that run."""

from ...lazy import submodules_of

__getattr__, __dir__ = submodules_of(__name__, __path__)
