"""Asks the Hub of Hugging Face only if it answers: huggingface_hub tries an absent Hub for minutes.

Models and tokenizers are read in `asking_hub(name)`, datasets after `check_dataset(name)`.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

from ..checks import refusal

PATIENCE = 2.0  # seconds in which the Hub's address must answer
HUB_TIMEOUT = 10.0  # seconds in which the Hub must say whether it knows a dataset
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


def check_dataset(name: str, otherwise: str) -> None:
    """Raises InputError, which ends in `otherwise`, if the Hub does not know OWNER/NAME[:CONFIG] or does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    unknown, spelling = f"{name!r} is neither a file nor a dataset on the Hub", f"check its spelling, {otherwise}"
    any_error = refusal(f"the Hub cannot be asked for {name!r}", f"check the network, {otherwise}")
    with any_error, refusal(unknown, spelling, (RepositoryNotFoundError, HFValidationError)):
        if not constants.HF_HUB_OFFLINE and not hub_answers():
            raise OSError(f"nothing answers at {constants.ENDPOINT}")
        HfApi().dataset_info(name.partition(":")[0], timeout=HUB_TIMEOUT)


def hub_answers() -> bool:
    """Whether something answers at the Hub's address. True where there is a proxy for it."""
    return _answers(constants.ENDPOINT, int(time.monotonic() // REMEMBERED))


@lru_cache(maxsize=1)
def _answers(endpoint: str, when: int) -> bool:
    address = urlsplit(endpoint)
    if address.scheme in getproxies():
        return True
    place = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    reached = Event()

    def reach() -> None:
        with suppress(OSError), socket.create_connection(place, timeout=PATIENCE):
            reached.set()

    thread = Thread(target=reach, daemon=True)
    thread.start()
    thread.join(2 * PATIENCE)  # looking up a name takes as long as the system likes
    return reached.is_set()
