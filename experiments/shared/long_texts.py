"""Texts of a length that few single texts have."""

from sinkinterp.checks import InputError
from sinkinterp.data.choices import Bos
from sinkinterp.data.progress import Progress
from sinkinterp.data.tokens import Tokens

from .cases import READING, Case


def long_texts(case: Case, size: tuple[int, int], joined: int, bos: Bos, progress: Progress) -> tuple[Tokens, str]:
    """Returns texts of a size (number, length) and their kind: whole texts, or joined beginnings of `joined` tokens.

    Raises InputError for a model without a tokenizer, and where the texts are too few.
    """
    documents, length = size
    try:
        token_set = case.natural_tokens(size, bos, progress(READING))
        kind = "a text each"
    except InputError:
        part = min(length, joined)
        token_set = case.natural_tokens((documents * -(-length // part), part), bos, progress(READING))
        kind = f"each joined from the first {part} tokens of several texts"
    if token_set is None:
        raise InputError(f"{case.subject.name} has no tokenizer, so it reads no long text; give a model with one")
    return token_set.tokens.flatten()[: documents * length].view(documents, length), f"{token_set.source}, {kind}"
