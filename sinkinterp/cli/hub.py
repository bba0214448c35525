"""Names of the Hub where there is no network: they fail at once, and models in the cache are still found."""

import socket
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE = 2.0  # seconds in which the Hub's address must answer; huggingface_hub tries for half a minute


def offline_if_unreachable(*names: str | None) -> None:
    """Makes huggingface_hub read its cache alone, in this process, where a name is of the Hub and the Hub is not there.

    None, and names of files, of folders and of our own models, are not of the Hub.
    """
    from huggingface_hub import constants

    if any(map(_is_of_hub, names)) and not constants.HF_HUB_OFFLINE and not _is_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True


def _is_of_hub(name: str | None) -> bool:
    from ..data.texts import is_path, is_text

    return name is not None and not (is_path(name) or is_text(name) or name.startswith(("sinkinterp/", "local/")))


def _is_reachable(endpoint: str) -> bool:
    """Whether something answers at an address of the web. A proxy is taken to know its way."""
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
