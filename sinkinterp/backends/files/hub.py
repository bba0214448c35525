"""Tells if the Hugging Face Hub answers: without a network, names that are not in the cache fail in seconds."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants

from ...data.texts import is_path
from .named_models import is_named_here

PATIENCE = 2.0  # seconds in which the Hub's address must answer; huggingface_hub tries for half a minute


def offline_if_unreachable(*names: str | None) -> None:
    """Makes huggingface_hub read its cache alone, in this process, where a name is of the Hub and no Hub answers.

    None, and names of files, of folders and of our own models, are not of the Hub.
    """
    if any(map(_is_of_hub, names)) and not constants.HF_HUB_OFFLINE and not _is_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True


@contextmanager
def offline_while_unreachable(name: str) -> Iterator[None]:
    """As `offline_if_unreachable`, until the block ends."""
    before = constants.HF_HUB_OFFLINE
    offline_if_unreachable(name)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _is_of_hub(name: str | None) -> bool:
    return name is not None and not (is_path(name) or " " in name.strip() or is_named_here(name))


def _is_reachable(endpoint: str) -> bool:
    """Whether something answers at an address of the web. True where there is a proxy for it."""
    address = urlsplit(endpoint)
    if address.scheme in getproxies():
        return True
    answers: list[bool] = []
    port = address.port or (443 if address.scheme == "https" else 80)
    thread = Thread(target=lambda: answers.append(_answers(address.hostname or "", port)), daemon=True)
    thread.start()
    thread.join(2 * PATIENCE)  # looking up a name takes as long as the system likes
    return bool(answers and answers[0])


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True
