"""Loads the model that a command names. Without a network, names that are not in the cache fail at once."""

import socket
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from ..backends.files.named_models import is_named_here
from .terminal import quiet_libraries

if TYPE_CHECKING:
    from ..backends.subject import Subject

PATIENCE = 2.0  # seconds in which the Hub's address must answer; huggingface_hub tries for half a minute


def load_subject(
    model: str, backend: str, encoder: str | None = None, dtype: str | None = None, device_map: str | None = None
) -> "Subject":
    """The model of that name or folder, with the encoder's input that the option --encoder names."""
    from ..backends.encoder.encoder_input import encoder_input
    from ..backends.load import load

    quiet_libraries()
    offline_if_unreachable(model)
    given = None if encoder is None else encoder_input(encoder)
    return load(model, backend=backend, dtype=dtype, device_map=device_map, encoder=given)


def offline_if_unreachable(*names: str | None) -> None:
    """Makes huggingface_hub read its cache alone, in this process, where a name is of the Hub and no Hub answers.

    None, and names of files, of folders and of our own models, are not of the Hub.
    """
    from huggingface_hub import constants

    if any(map(_is_of_hub, names)) and not constants.HF_HUB_OFFLINE and not _is_reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True


def _is_of_hub(name: str | None) -> bool:
    from ..data.texts import is_path

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
