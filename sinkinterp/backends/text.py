"""The part of every subject that turns text into tokens."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from ..attention.model_shape import ModelShape
from ..checks import whole_number
from ..data.bos import Bos
from ..data.token_input import items_of
from ..data.token_sources import from_texts, from_whole_texts
from ..data.tokens import TokenSet
from ..errors import InputError

BOS_RULES = {True: Bos.ALWAYS, False: Bos.NEVER} | {rule.value: rule for rule in Bos}
UNLIMITED = 2**30  # tokens of a text, where the model has no limit of its own


class ReadsText:
    """Reads text with the tokenizer that `tokenizer_source` returns; None where the model has none."""

    name: str
    shape: ModelShape
    tokenizer_source: Callable[[], Any] = staticmethod(lambda: None)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, loaded when it is first asked for; None where the model has none."""
        return self.tokenizer_source()

    def tokens(
        self, texts: str | Sequence[str], length: int | None = None, bos: Bos | str | bool = Bos.TOKENIZER
    ) -> TokenSet:
        """The tokens of a text or of several, one text per sequence.

        Without `length` every sequence is as long as its text. With it every sequence has that many tokens: longer
        texts are cut, shorter ones are passed over and counted. `bos`: whether sequences begin with BOS, "tokenizer"
        (as it decides), "always" or "never". Raises InputError for a model without a tokenizer, and for texts that
        are too short for it or too long.
        """
        rule = BOS_RULES.get(bos) if isinstance(bos, bool | str) else None
        if rule is None:
            raise InputError(f"bos is 'tokenizer', 'always' or 'never'; got {bos!r}")
        given = [texts] if isinstance(texts, str) else items_of(texts)
        if not given or not all(isinstance(text, str) for text in given):
            raise InputError('texts are strings; give one, or a list of at least one: subject.tokens(["one", "two"])')
        tokenizer = self._needed_tokenizer()
        source = "text in memory" if len(given) == 1 else f"{len(given)} texts in memory"
        if length is None:
            return from_whole_texts(given, tokenizer, rule, self.shape.n_ctx or UNLIMITED, source)
        length = whole_number(length, "length", 2, self.shape.n_ctx or UNLIMITED)
        return from_texts(given, tokenizer, length, None, rule, source)

    def _needed_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise InputError(
                f"{self.name} has no tokenizer, so it reads no text; load it with one, "
                "si.load(model, tokenizer=...), or give token ids, such as [[5, 7, 9]]"
            )
        return self.tokenizer
