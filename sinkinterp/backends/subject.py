"""The model of a measurement, on any library, and how text becomes its tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..attention import ModelShape, Reads
from ..checks import InputError, choice, whole_number
from ..data.choices import Bos
from ..data.texts import Texts, is_chat
from ..data.tokenizers import token_labels
from ..data.tokens import TextToTokens, Tokens, TokenSet, TokensLike, items_of, token_set_of
from ..interventions.changes import Edits
from .adapters import replaces_bos
from .anatomy import running_device
from .attached import lock_of

NO_ENCODER = "off (no cross-attention)"  # what a protocol says of a decoder that runs alone
Logits = Float[Tensor, "sequence kept vocab"]  # of all positions, or of the last alone


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The answers of the reads during one forward pass, and the logits of the model.

    answers: by the name of the read, `sequence layer ...` over the layers of its site. Those of calls and of what
    heads return are the attention layers. Residuals are the input of every block, then the output of the last one,
    before the final norm.
    """

    answers: dict[str, Tensor]
    logits: Logits

    def __getitem__(self, name: str) -> Tensor:
        return choice(name, self.answers, "read")

    def __repr__(self) -> str:
        answers = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.answers.items())
        return f"<Trace: {answers or 'no reads'}; logits {tuple(self.logits.shape)}>"


BOS_RULES = {True: Bos.ALWAYS, False: Bos.NEVER} | {rule.value: rule for rule in Bos}


class Subject:
    """A language model whose attention calls and residuals can be read and edited while it runs.

    libraries: what runs it, beside torch and transformers. n_keys: of every attention call; None where there are as
    many keys as tokens. implementation: the attention that transformers runs, sdpa or eager. attention_note: what a
    reader of numbers must know of it; mostly empty. encoder: what the encoder of an encoder-decoder model is given;
    empty for other models. revision: commit of the weights on the Hub; empty for a model in memory or in a folder.
    folder: where its weights were read from; None for a model in memory or of the Hub. tokenizer_source: returns the
    tokenizer that it reads text with, or None.
    """

    model: Any
    name: str
    shape: ModelShape
    libraries: tuple[str, ...] = ()
    n_keys: int | None = None
    implementation: str
    attention_note: str
    encoder = ""
    revision: str
    folder: Path | None = None
    tokenizer_source: Callable[[], Any] = staticmethod(lambda: None)

    def lens(self) -> Any:
        """A TransformerLens bridge over a copy of the model. Raises InputError where TransformerLens cannot run it."""
        raise InputError(f"{self.name} is a module of your own, which TransformerLens cannot run; use subject.run")

    def read_beyond_context(self) -> None:
        """Lets texts be longer than `shape.n_ctx`; see `load`."""
        raise NotImplementedError

    @property
    def backend(self) -> str:
        """The library that runs it."""
        return ", ".join(self.libraries) or "huggingface"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights now: their owner may move them."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        """The device that runs the first layer now."""
        return running_device(self.model)

    def run(
        self, tokens: TokensLike | Any, *, reads: Reads = {}, edits: Edits = (), gradients: bool = False,
        logits: bool = True, blocks: range | None = None,
    ) -> Trace:  # fmt: skip
        """One forward pass. Reads are evaluated during it and after the edits; nothing else is kept.

        gradients: whether logits can be differentiated by tensors that edits hold. logits: whether those of all
        positions are needed; without, a model that can computes those of the last position alone, which saves most of
        a large vocabulary's time. blocks: those that are needed, by default all; a model that can leaves out the
        others, which then pass on their input, and whose reads return nothing. Raises InputError for tokens or edits
        that do not fit.
        """
        raise NotImplementedError

    @cached_property
    def leaves_out_blocks(self) -> bool:
        """Whether `run` leaves out the blocks that `blocks` does not name."""
        return False

    @cached_property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, loaded when it is first asked for; None where the model has none."""
        return self.tokenizer_source()

    @cached_property
    def label(self) -> Callable[[int], str]:
        """A function from a token id to its text (see `token_labels`), or to its number without a tokenizer."""
        text = str if self.tokenizer is None else token_labels(self.tokenizer)
        return lambda token: text(whole_number(token, "a token id", 0, self.shape.vocab - 1))

    def tokens(
        self,
        texts: str | Path | Texts | Sequence[Any],
        length: int | None = None,
        bos: Bos | str | bool = Bos.TOKENIZER,
        column: str = "text",
        sequences: int | None = None,
    ) -> TokenSet:
        """The tokens of a text or of several, one text per sequence, or of chats in the tokenizer's template.

        A `Path` stands for the first texts of a file or folder, in its `column`, and `si.texts(...)` for those of a
        data set.

        Without `length` every sequence is as long as its text. With it every sequence has that many tokens: longer
        texts are cut, shorter ones are passed over and counted. `sequences` reads the first texts alone. `bos`:
        whether sequences begin with BOS, "tokenizer" (as it decides; none where `si.mend` put a slot in its place),
        "always" or "never". Raises InputError for a model without a tokenizer, and for texts that are too short for it
        or too long.
        """
        rule = bos_rule(bos)
        if isinstance(texts, Path | Texts):
            return token_set_of(texts, partial(self.tokens, length=length, bos=rule, sequences=sequences), column)
        given: list[Any] = [texts] if isinstance(texts, str) or is_chat(texts) else items_of(texts)
        given = given if sequences is None else given[: whole_number(sequences, "sequences", 1)]
        if not given or not all(isinstance(text, str) or is_chat(text) for text in given):
            raise InputError('texts are strings; give one, or a list of at least one: subject.tokens(["one", "two"])')
        to_tokens = text_to_tokens(self, rule)
        source = "text in memory" if len(given) == 1 else f"{len(given)} texts in memory"
        with lock_of(to_tokens.tokenizer):  # which keeps state between calls
            if length is None:
                return self._in_vocabulary(to_tokens.whole(given, self.shape.n_ctx, source))
            length = whole_number(length, "length", 2, self.shape.n_ctx)
            return self._in_vocabulary(to_tokens.of_length(given, length, None, source))

    def _in_vocabulary(self, token_set: TokenSet) -> TokenSet:
        """Tokens of texts. Raises InputError where the tokenizer makes ids that the model does not have."""
        highest, vocab = int(token_set.tokens.max()), self.shape.vocab
        if highest >= vocab:
            what = f"its tokenizer makes token id {highest}, and {self.name} has a vocabulary of {vocab}"
            raise InputError(f"{what}; load the model with its own, si.load(model, tokenizer=...)")
        return token_set

    def ids_of(self, tokens: TokensLike | Any) -> Tokens:
        """The tokens as they are, or those of one text, or of several of one length."""
        if isinstance(tokens, Tensor) and tokens.dtype in (torch.int32, torch.int64):
            return tokens
        return token_set_for(self, tokens).of_one_length()


def bos_rule(bos: Any) -> Bos:
    """The rule that a word or a boolean means. Raises InputError for anything else."""
    rule = BOS_RULES.get(bos) if isinstance(bos, bool | str) else None
    if rule is None:
        raise InputError(f"bos is 'tokenizer', 'always' or 'never'; got {bos!r}")
    return rule


def text_to_tokens(subject: Any, bos: Bos = Bos.TOKENIZER) -> TextToTokens:
    """Returns what makes tokens of text for a subject, without BOS if slots replace it, unless `bos` is `Bos.ALWAYS`.

    Raises InputError for a subject without a tokenizer.
    """
    rule = Bos.NEVER if bos is Bos.TOKENIZER and replaces_bos(getattr(subject, "model", None)) else bos
    return TextToTokens(subject.tokenizer, rule, subject.name)


def token_set_for(subject: Any, tokens: TokensLike | Any, column: str = "text") -> TokenSet:
    """The token set of what `token_set_of` takes. Raises InputError also for padding that no mask marks."""
    token_set = token_set_of(tokens, subject.tokens, column)
    is_masked = isinstance(tokens, Mapping) and tokens.get("attention_mask") is not None
    return token_set if is_masked or isinstance(tokens, TokenSet) else token_set.checked_for(pads_of(subject))


def pads_of(subject: Any) -> dict[int, int]:
    """The ids of padding, and how often each must be repeated to be no text.

    Once is enough for the padding of the tokenizer. It is twice for one that the configuration alone names, and for a
    BOS or an EOS.
    """
    tokenizer, config = subject.tokenizer, getattr(getattr(subject, "model", None), "config", None)
    marks = [getattr(owner, f"{name}_token_id", None) for owner in (tokenizer, config) for name in ("bos", "eos")]
    pads: dict[int, int] = {}
    for owner, least in ((config, 2), (tokenizer, 1)):
        pad = getattr(owner, "pad_token_id", None)
        if pad is not None:
            pads[pad] = 2 if pad in marks else least
    return pads
