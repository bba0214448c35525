"""Token sets: the sequences that a model is measured on, and where they came from."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..checks import check_memory
from ..errors import InputError

Tokens = Int[Tensor, "sequence pos"]
Lengths = Int[Tensor, " sequence"]
PAD = -1  # the id of no token: an embedding that receives it fails


@dataclass(frozen=True, repr=False)
class TokenSet:
    """Sequences of tokens, their source and its hash.

    `bos` says how the sequences begin, and `too_short` how many texts were skipped because they were too short.
    Sequences of different lengths all start at position 0; `PAD` fills them up, and `lengths` are their true lengths.
    `lengths` is None where no sequence is padded. Models never run on padding, but on the `groups()` of equal length.
    """

    tokens: Tokens
    source: str
    sha256: str
    bos: str = "none added"
    too_short: int = 0
    lengths: Lengths | None = None

    def __post_init__(self) -> None:
        tokens = self.tokens
        is_whole = isinstance(tokens, Tensor) and tokens.dtype in (torch.int32, torch.int64)
        if not is_whole or tokens.ndim != 2 or not tokens.numel():
            got = f"{tokens.dtype} of {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"a token set holds whole numbers, `sequence pos`; got {got}; use TokenSet.of_rows")

    def __repr__(self) -> str:
        n, longest = self.tokens.shape
        length = longest if self.lengths is None else f"{int(self.lengths.min())} to {longest}"
        return f"<TokenSet of {self.source}: n={n}, T={length}, BOS {self.bos}>"

    @staticmethod
    def of(
        tokens: Tokens, source: str = "tokens in memory", attention_mask: Shaped[Tensor, "..."] | None = None
    ) -> "TokenSet":
        """The token set of a tensor of token ids.

        `attention_mask` (`sequence pos`) is 1 at tokens and 0 at the padding before or after a sequence. Raises
        InputError where the mask has another shape, holds other numbers, has a hole inside a sequence, or leaves a
        sequence fewer than two tokens.
        """
        check_memory(3 * 8 * tokens.numel(), f"{tokens.numel():,} tokens", "use fewer or shorter sequences")
        if attention_mask is None:
            return TokenSet(tokens, source, _sha256(tokens))
        return _of_lengths(*_without_padding(tokens, attention_mask), source)

    @staticmethod
    def of_rows(rows: Sequence[Sequence[int]], source: str = "tokens in memory") -> "TokenSet":
        """The token set of lists of token ids. Raises InputError where a list has fewer than two ids."""
        if not rows:
            raise InputError("there are no sequences; give at least one")
        sequences = [_row(row) for row in rows]
        lengths = torch.tensor([len(row) for row in rows])
        return _of_lengths(pad_sequence(sequences, batch_first=True, padding_value=PAD), lengths, source)

    def groups(self) -> Iterator[tuple[Int[Tensor, " group"], Int[Tensor, "group pos"]]]:
        """The sequences of each length, longest first: their rows in `tokens`, and their tokens without padding."""
        if self.lengths is None:
            yield torch.arange(len(self.tokens), device=self.tokens.device), self.tokens
            return
        for length in self.lengths.unique().flip(0).tolist():
            (rows,) = (self.lengths == length).nonzero(as_tuple=True)
            yield rows, self.tokens[rows, :length]


def _without_padding(tokens: Tokens, mask: Shaped[Tensor, "..."]) -> tuple[Int[Tensor, "sequence longest"], Lengths]:
    """The tokens that the mask keeps, moved to position 0, and how many each sequence has."""
    if mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, the tokens {tuple(tokens.shape)}; give a number per token"
        )
    mask = mask.to(tokens.device)
    kept = mask == 1
    if not (kept | (mask == 0)).all():
        raise InputError("attention_mask holds other numbers than 0 and 1; give 1 for a token, 0 for padding")
    if not kept.any():
        raise InputError("attention_mask leaves no token; give 1 for a token, 0 for padding")
    lengths, pos = kept.sum(1), torch.arange(tokens.shape[1], device=tokens.device)
    moved_from = (kept.int().argmax(1, keepdim=True) + pos).clamp(max=len(pos) - 1)
    inside = pos < lengths[:, None]
    has_hole = (inside & ~kept.gather(1, moved_from)).any(1)
    if has_hole.any():
        raise InputError(
            f"the attention_mask of sequence {int(has_hole.int().argmax())} has a hole; "
            "pad only before or behind tokens"
        )
    return tokens.long().gather(1, moved_from).where(inside, PAD)[:, : lengths.max()], lengths


def _row(ids: Sequence[int]) -> Int[Tensor, " pos"]:
    try:
        row = torch.tensor(ids)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        row = torch.empty(0, dtype=torch.bool)
    if len(ids) and row.dtype != torch.long:
        raise InputError(f"token ids are whole numbers of 64 bits; got {ids!r:.60}")
    return row.long()


def _of_lengths(tokens: Tokens, lengths: Lengths, source: str) -> TokenSet:
    if lengths.min() < 2:
        raise InputError(
            f"sequence {int(lengths.argmin())} has {int(lengths.min())} tokens; leave out those of fewer than 2"
        )
    if (lengths == tokens.shape[1]).all():
        return TokenSet.of(tokens, source)
    return TokenSet(tokens, source, _sha256(tokens, lengths), lengths=lengths)


def _sha256(*tensors: Int[Tensor, "..."]) -> str:
    return hashlib.sha256(b"".join(part.long().contiguous().cpu().numpy().tobytes() for part in tensors)).hexdigest()
