"""Padding that no mask marks: a model would read it as tokens."""

from collections.abc import Mapping
from dataclasses import replace

from ..errors import InputError
from .tokens import TokenSet

FIX = "give the tokenizer's whole answer, with its attention_mask, or lists without padding"


def said_of_padding(token_set: TokenSet, pads: Mapping[int, int]) -> TokenSet:
    """The token set, whose source says where sequences begin or end with one id several times.

    pads: the ids of padding, and how often each must be repeated to be known as such. Raises InputError for those.
    """
    runs = _runs(token_set)
    for token, times in runs:
        if times >= pads.get(token, times + 1):
            raise InputError(
                f"a sequence begins or ends with {times} of token {token}, the padding, and no mask marks it; {FIX}"
            )
    repeated = [token for token, times in runs if times > 1]
    if not repeated:
        return token_set
    what = f"{len(repeated)} beginnings or ends repeat one id, such as {repeated[0]}; read as tokens, not as padding"
    return replace(token_set, source=f"{token_set.source} ({what})")


def _runs(token_set: TokenSet) -> list[tuple[int, int]]:
    """How often the first token of each sequence is repeated there, and the last; sequences of one token left out."""
    runs: list[tuple[int, int]] = []
    for _, group in token_set.groups():
        group = group[(group != group[:, :1]).any(1)]
        for side in (group, group.flip(1)):
            times = (side == side[:, :1]).long().cumprod(1).sum(1)
            runs += zip(side[:, 0].tolist(), times.tolist(), strict=True)
    return runs
