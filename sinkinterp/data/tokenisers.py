"""Tokenizers as values that a recipe can hold: trained on the corpus itself, or pretrained."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..checks import InputError, refusal
from ..spec import Limits, Spec
from .given_tokenizer import check_has
from .hub import asking_hub

EOS, BOS = "<|endoftext|>", "<|bos|>"  # ids 0 and 1 of every tokenizer trained here
BYTES = 256
BATCH_CHARACTERS = 1_000_000  # of the texts that are tokenised in one call


class TokenizerRecipe(Spec):
    """How the tokenizer of a corpus is made. A model of the corpus must have `vocab` symbols."""

    vocab: int

    @property
    def outside(self) -> str:
        """The name or folder of a tokenizer that is read; empty for one that is trained."""
        return ""

    def make(self, texts: Iterable[str]) -> Any:
        """A transformers tokenizer with an EOS token. Raises InputError where it cannot be made."""
        raise NotImplementedError

    def load(self, folder: Path) -> Any:
        """The tokenizer that was made and then saved in `folder`."""
        return pretrained_tokenizer(str(folder))


class ByteBPE(TokenizerRecipe):
    """Byte-level BPE of at most `vocab` symbols, trained on the first `documents` documents of the corpus.

    A corpus with few distinct pairs of symbols gives fewer symbols. The last ids then never occur.
    """

    limits: ClassVar[Limits] = {"vocab": BYTES + 2, "documents": 1}  # EOS and BOS are symbols too

    vocab: int = 1024
    documents: int = 100_000

    def make(self, texts: Iterable[str]) -> Any:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        bpe = Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab,
            special_tokens=[EOS, BOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(islice(texts, self.documents), trainer)
        return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, bos_token=BOS)

    def load(self, folder: Path) -> Any:
        from transformers import PreTrainedTokenizerFast  # seconds faster than the auto classes

        return PreTrainedTokenizerFast.from_pretrained(folder)


class Pretrained(TokenizerRecipe):
    """The tokenizer of a Hugging Face name or folder. `vocab` may exceed its symbols, as in padded models."""

    source: str

    @property
    def outside(self) -> str:
        return self.source

    def make(self, texts: Iterable[str]) -> Any:
        tokenizer = pretrained_tokenizer(self.source)
        symbols = max(tokenizer.get_vocab().values()) + 1
        if symbols > self.vocab:
            raise InputError(f"the tokenizer of {self.source} has {symbols} symbols; use vocab={symbols} or more")
        check_has("EOS", tokenizer, f"the tokenizer of {self.source}", "to put between documents; use another one")
        return tokenizer


def pretrained_tokenizer(source: str) -> Any:
    """The transformers tokenizer of a name or folder. Raises InputError if it cannot be loaded."""
    from transformers import AutoTokenizer

    fix = "give a name on the Hub, with a network, or a folder made by save_pretrained"
    any_error = refusal(f"cannot load the tokenizer of {source}", fix, (OSError, ValueError, KeyError))
    with any_error, asking_hub(source):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def beginning_with_bos(tokenizer: Any) -> Any:
    """The same tokenizer, changed so that the ids of every text begin with BOS."""
    from tokenizers.processors import TemplateProcessing

    bos, adds_bos = tokenizer.bos_token, tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    if tokenizer.is_fast and not adds_bos:
        template = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = template
    return tokenizer


def encoded(texts: Iterable[str], tokenizer: Any) -> Iterator[np.ndarray]:
    """The ids of each text, EOS last. A text that spells out a special token gets ids of ordinary tokens for it."""
    how = dict.fromkeys(("add_special_tokens", "return_attention_mask", "return_token_type_ids", "verbose"), False)
    for batch in _batches(texts):
        for ids in tokenizer(batch, split_special_tokens=True, **how)["input_ids"]:
            yield np.array([*ids, tokenizer.eos_token_id])


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about `BATCH_CHARACTERS` characters."""
    read = 0

    def number_of_batch(text: str) -> int:
        nonlocal read
        read += len(text)
        return read // BATCH_CHARACTERS

    return (list(batch) for _, batch in groupby(texts, number_of_batch))
