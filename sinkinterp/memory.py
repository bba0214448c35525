"""What fits into the memory of this machine: a model that cannot is refused before the system kills the program."""

import os

from .errors import InputError


def total_bytes() -> float:
    """The memory of this machine; infinite where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return float("inf")


def check_fits(needed: float, what: str, fix: str) -> None:
    """Raises InputError, with the estimate, where `needed` bytes are more than this machine has."""
    total = total_bytes()
    if needed > total:
        raise InputError(f"{what} takes about {_shown(needed)}, and this machine has {_shown(total)}; {fix}")


def _shown(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 1e15 else f"{size / 1e9:.1e} GB"
