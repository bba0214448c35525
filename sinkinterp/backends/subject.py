"""What a measurement needs of a model, whichever library runs it, and how text becomes its tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention.shapes import ModelShape
from ..attention.sites import Edit, Reads
from ..checks import whole_number
from ..data.choices import Bos
from ..data.given_tokenizer import labels_of
from ..data.texts import is_path, names_file
from ..data.token_sources import UNLIMITED, TextToTokens
from ..data.tokens import Tokens, TokenSet, TokensLike, is_chat, items_of, of_source, said_of_padding, token_set_of
from ..errors import InputError
from ..guesses import Answering, keywords
from ..interventions.edit import Edits, edits_of
from .exclusive import lock_of
from .first_token import FirstToken, first_token

Logits = Float[Tensor, "sequence pos vocab"]


@dataclass(frozen=True, repr=False)
class Trace:
    """What the reads returned during one forward pass, and the logits of the model.

    answers: by the name of the read, `sequence layer ...` over the layers of its site. Those of calls and of what
    heads return are the attention layers. Residuals are the input of every block, then the output of the last one,
    before the final norm.
    """

    answers: dict[str, Tensor]
    logits: Logits

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.answers:
            raise InputError(f"no read is called {name!r}; there are {', '.join(self.answers) or 'no reads'}")
        return self.answers[name]

    def __repr__(self) -> str:
        answers = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.answers.items())
        return f"<Trace: {answers or 'no reads'}; logits {tuple(self.logits.shape)}>"


@runtime_checkable
class Subject(Protocol):
    """A language model whose attention calls and residuals can be read and edited while it runs."""

    name: str
    shape: ModelShape
    libraries: tuple[str, ...]  # what runs it, beside torch and transformers
    n_keys: int | None  # of every attention call; None where there are as many keys as tokens
    attention: str  # the implementation that transformers runs: sdpa or eager
    attention_note: str  # what a reader of numbers must know of it; mostly empty
    encoder: str  # what the encoder of an encoder-decoder model is given; empty for other models
    revision: str  # commit of the weights on the Hub; empty for a model in memory or in a folder

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights now."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are now."""
        ...

    def run(
        self,
        tokens: Tokens,
        *,
        reads: Reads = {},
        edits: Sequence[Edit] = (),
        gradients: bool = False,
    ) -> Trace:
        """One forward pass. Reads are evaluated during it and after the edits; nothing else is kept.

        With `gradients`, logits can be differentiated by tensors that edits hold.
        """
        ...

    def tokens(
        self, texts: str | Sequence[Any], length: int | None = None, bos: Bos | str | bool = Bos.TOKENIZER
    ) -> TokenSet:
        """The tokens of a text or of several. Raises InputError for a model without a tokenizer."""
        ...


BOS_RULES = {True: Bos.ALWAYS, False: Bos.NEVER} | {rule.value: rule for rule in Bos}


class ReadsText(Answering):
    """Reads text with the tokenizer that `tokenizer_source` returns; None where the model has none."""

    kind = "subject"

    name: str
    shape: ModelShape
    run: Callable[..., Trace]  # see `Subject.run`
    folder: Path | None = None  # where its weights were read from; None for a model in memory or of the Hub
    tokenizer_source: Callable[[], Any] = staticmethod(lambda: None)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, loaded when it is first asked for; None where the model has none."""
        return self.tokenizer_source()

    @cached_property
    def label(self) -> Callable[[int], str]:
        """A function from a token id to its text (see `labels_of`), or to its number without a tokenizer."""
        return str if self.tokenizer is None else labels_of(self.tokenizer)

    @keywords
    def tokens(
        self,
        texts: str | Path | Sequence[Any],
        length: int | None = None,
        bos: Bos | str | bool = Bos.TOKENIZER,
        column: str = "text",
    ) -> TokenSet:
        """The tokens of a text or of several, one text per sequence, or of chats in the tokenizer's template.

        A path stands for the first texts of a file or folder, in its `column`.

        Without `length` every sequence is as long as its text. With it every sequence has that many tokens: longer
        texts are cut, shorter ones are passed over and counted. `bos`: whether sequences begin with BOS, "tokenizer"
        (as it decides), "always" or "never". Raises InputError for a model without a tokenizer, and for texts that
        are too short for it or too long.
        """
        rule = BOS_RULES.get(bos) if isinstance(bos, bool | str) else None
        if rule is None:
            raise InputError(f"bos is 'tokenizer', 'always' or 'never'; got {bos!r}")
        if isinstance(texts, Path) or (isinstance(texts, str) and is_path(texts)):
            return of_source(texts, partial(self.tokens, length=length, bos=rule), column)
        given: list[Any] = [texts] if isinstance(texts, str) or is_chat(texts) else items_of(texts)
        if given and all(map(is_chat, given)):
            return text_to_tokens(self).chats(given, f"{len(given)} chats in memory")
        if not given or not all(isinstance(text, str) for text in given):
            raise InputError('texts are strings; give one, or a list of at least one: subject.tokens(["one", "two"])')
        if name := next(filter(names_file, given), ""):
            raise InputError(f"{name.strip()} is a file; give the text that it holds, or the file alone to si.measure")
        to_tokens = text_to_tokens(self, rule)
        source = "text in memory" if len(given) == 1 else f"{len(given)} texts in memory"
        most = self.shape.n_ctx or UNLIMITED
        with lock_of(to_tokens.tokenizer):  # which keeps state between calls
            if length is None:
                return to_tokens.whole(given, most, source)
            return to_tokens.of_length(given, whole_number(length, "length", 2, most), None, source)

    @keywords
    def first_token(self, tokens: TokensLike | Any, position: int = 0, edits: Edits = ()) -> FirstToken:
        """Hidden states, massive activations, importance, QK angles and norms of the first token, as named tensors.

        `tokens` are what `si.measure` takes, of one length; `position` takes another token than the first. Raises
        InputError for anything else.
        """
        return first_token(self.run, token_set_for(self, tokens).of_one_length(), position, edits_of(edits))

    def ids_of(self, tokens: TokensLike | Any) -> Tokens:
        """The tokens as they are, or those of one text, or of several of one length."""
        return tokens if isinstance(tokens, Tensor) else token_set_for(self, tokens).of_one_length()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InputError(
            "a subject is not called; subject.run(tokens) is a pass, subject.model the model, si.measure(subject, text)"
        )


def tokenizer_of(subject: Subject) -> Any:
    """The tokenizer that a subject keeps, which is loaded once; None where it has none."""
    return subject.tokenizer if isinstance(subject, ReadsText) else None


def text_to_tokens(subject: Any, bos: Bos = Bos.TOKENIZER) -> TextToTokens:
    """What makes tokens of text for a subject. Raises InputError for a subject without a tokenizer."""
    return TextToTokens(tokenizer_of(subject), bos, subject.name)


def token_set_for(subject: Any, tokens: TokensLike | Any, column: str = "text") -> TokenSet:
    """The token set of what `token_set_of` takes. Raises InputError also for padding that no mask marks."""
    token_set = token_set_of(tokens, subject.tokens, column)
    is_masked = isinstance(tokens, Mapping) and tokens.get("attention_mask") is not None
    return token_set if is_masked or isinstance(tokens, TokenSet) else said_of_padding(token_set, pads_of(subject))


def pads_of(subject: Any) -> dict[int, int]:
    """The ids of padding, and how often they must be repeated to be no text: once, or twice for a BOS or an EOS."""
    owners = (tokenizer_of(subject), getattr(getattr(subject, "model", None), "config", None))
    pads = {getattr(owner, "pad_token_id", None): least for least, owner in reversed([*enumerate(owners, 1)])}
    marks = [getattr(owner, f"{name}_token_id", None) for owner in owners for name in ("bos", "eos")]
    return {pad: 2 if pad in marks else least for pad, least in pads.items() if pad is not None}


def words_of(subject: Subject) -> Callable[[int], str]:
    """A function from a token id to its label, or to its number where the subject has no tokenizer."""
    return subject.label if isinstance(subject, ReadsText) else str
