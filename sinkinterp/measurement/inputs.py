"""What every measurement takes: anything that is a model, and anything that is tokens."""

from typing import Any

from ..backends.load import subject_of
from ..backends.subject import Subject
from ..data.token_input import TokensLike, token_set_of
from ..data.tokens import Tokens, TokenSet
from ..errors import InputError

ModelLike = Subject | Any


def inputs_of(model: ModelLike, tokens: TokensLike | Any) -> tuple[Subject, TokenSet]:
    """The subject and the token set. Raises InputError for what is no model, or no tokens."""
    subject = subject_of(model)
    return subject, token_set_of(tokens, subject.tokens)


def equal_inputs_of(model: ModelLike, tokens: TokensLike | Any) -> tuple[Subject, Tokens]:
    """As `inputs_of`, as one tensor. Raises InputError also for sequences of different lengths."""
    subject, token_set = inputs_of(model, tokens)
    if token_set.lengths is not None:
        raise InputError("this needs sequences of one length; cut the texts: subject.tokens(texts, length=...)")
    return subject, token_set.tokens
