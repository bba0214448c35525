"""Asks the Hub of Hugging Face only if it answers: huggingface_hub tries an absent Hub for minutes.

Models, tokenizers and data sets are read in `asking_hub(name)`.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

PATIENCE = 2.0  # seconds in which the Hub's address must answer
REMEMBERED = 60.0  # seconds after which the address is tried again


@contextmanager
def asking_hub(source: str | Path) -> Iterator[bool]:
    """In the block, the cache of huggingface_hub alone is read if `source` does not exist here and no Hub answers.

    Yields whether the Hub is asked.
    """
    before = constants.HF_HUB_OFFLINE
    is_absent = not before and not Path(source).exists() and not hub_answers()
    constants.HF_HUB_OFFLINE = before or is_absent
    try:
        yield not constants.HF_HUB_OFFLINE
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_answers() -> bool:
    """Whether something answers at the Hub's address. True where there is a proxy for it."""
    return _is_reached(constants.ENDPOINT, int(time.monotonic() // REMEMBERED))


@lru_cache(maxsize=1)
def _is_reached(endpoint: str, when: int) -> bool:
    address = urlsplit(endpoint)
    if address.scheme in getproxies():
        return True
    place = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    with suppress(OSError), socket.create_connection(place, timeout=PATIENCE):
        return True
    return False
