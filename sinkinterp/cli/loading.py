"""Loads the model that a command names."""

from typing import TYPE_CHECKING

from ..data.choices import Bos
from ..errors import InputError
from .terminal import quiet_libraries

if TYPE_CHECKING:
    from ..backends.subject import Subject


def offline_if_unreachable(*names: str | None) -> None:
    """See `backends.files.named_models`."""
    from ..backends.files import named_models

    named_models.offline_if_unreachable(*names)


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


def check_bos(subject: "Subject", bos: Bos) -> None:
    """Raises InputError for a rule about BOS that a model without a tokenizer cannot follow."""
    from ..backends.subject import tokenizer_of

    if bos is not Bos.TOKENIZER and tokenizer_of(subject) is None:
        raise InputError(f"{subject.name} has no tokenizer, which knows BOS; leave --bos out")
