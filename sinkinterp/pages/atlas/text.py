"""The tokens of a text that an atlas shows."""

from ...data.bos import Bos
from ...data.token_sources import Tokenizer, appended_tokens, from_texts
from ...data.tokens import TokenSet
from ...errors import InputError


def text_tokens(text: str, tokenizer: Tokenizer, bos: Bos, most: int | None = None, source: str = "text") -> TokenSet:
    """The tokens of one text, the first `most` of them. Raises InputError where there are fewer than two."""
    most = most or 2**30
    ids = tokenizer(text, add_special_tokens=bos is Bos.TOKENIZER, truncation=True, max_length=most)["input_ids"]
    appended = appended_tokens(tokenizer) if bos is Bos.TOKENIZER else 0
    length = min(len(ids) - appended + (bos is Bos.ALWAYS), most)
    if length < 2:
        raise InputError(f"the text has {length} tokens; give one of at least 2")
    return from_texts([text], tokenizer, length, 1, bos, source)
