"""Random numbers that depend on names instead of on what was drawn before."""

import hashlib

import torch


def generator(*stream: object) -> torch.Generator:
    """A random generator that depends only on the names and numbers in `stream`."""
    digest = hashlib.sha256("/".join(map(str, stream)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
