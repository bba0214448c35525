"""Which causal architectures can be measured: each is built tiny, with random weights, and compared with transformers.

A row of the table is one family: the name that transformers gives to a configuration.
"""

import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..attention.call import AttentionCall
from ..attention.shapes import Pattern
from ..backends.contract import sample_tokens
from ..backends.load import load
from ..backends.subject import Subject
from ..errors import InputError
from ..table import Cell, Table
from .measure import measure
from .parity import TOLERANCE, dense_patterns, eager_copy
from .tiny_models import VOCAB, tiny_model

FAMILIES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
MEASURED, NO_ORACLE, REFUSED = "measured", "measured, not compared", "refused"
NOT_BUILT, DIFFERS, ERROR = "not built", "DIFFERS", "ERROR"


def sweep(
    families: Iterable[str] = FAMILIES,
    seconds: int = 60,
    on_family: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """A row for every family: whether it is measured, and if not, why not. `seconds` is the most that one may take."""
    families = tuple(families)
    rows = []
    for i, family in enumerate(families):
        rows.append(_row(family, seconds))
        on_family(i + 1, len(families))
    verdicts = [row["verdict"] for row in rows]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(map(str, verdicts))))
    note = (
        f"{len(rows)} families of transformers {version('transformers')}: {counts}; tiny random weights, fp32; "
        f"compared with eager attention, to {TOLERANCE}"
    )
    return Table("Which causal architectures of transformers can be measured?", note, tuple(rows))


def is_sound(table: Table) -> bool:
    """Whether no family of a table of `sweep` ends in an error or in other numbers."""
    return not {DIFFERS, ERROR} & set(table.column("verdict"))


def _row(family: str, seconds: int) -> dict[str, Cell]:
    try:
        with _time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = tiny_model(family)
            except Exception as error:  # a guess at a configuration can fail in any way
                return _verdict(family, NOT_BUILT, _first_line(error))
            return _measured(family, model)
    except InputError as refusal:
        return _verdict(family, REFUSED, str(refusal))
    except TimeoutError as limit:
        return _verdict(family, NOT_BUILT, str(limit))
    except Exception as error:  # what this table looks for
        return _verdict(family, ERROR, f"{type(error).__name__}: {_first_line(error)}")


def _measured(family: str, model: PreTrainedModel) -> dict[str, Cell]:
    """The row of a model that runs. Raises InputError where it is refused."""
    subject, tokens = load(model, name=family), sample_tokens(VOCAB)
    measure(subject, tokens)
    ours = subject.run(tokens, calls={"pattern": _on_tokens}).calls["pattern"]
    try:
        theirs = dense_patterns(model, tokens)
        is_comparable = ours.shape == theirs.shape and _eager_runs_alike(model)
    except Exception:  # some models return no patterns
        is_comparable = False
    if not is_comparable:
        return _verdict(family, NO_ORACLE, "transformers returns no patterns of what it computes", subject)
    shares = ours / ours.sum(-1, keepdim=True)  # Granite SWA returns weights before its sinks scale them
    difference = min((pattern - theirs).abs().max().item() for pattern in (ours, shares))
    return _verdict(family, MEASURED if difference <= TOLERANCE else DIFFERS, f"difference {difference:.0e}", subject)


def _on_tokens(call: AttentionCall) -> Pattern:
    """The pattern without a slot's column."""
    return call.pattern()[..., -call.k.shape[2] :]


@torch.no_grad()
def _eager_runs_alike(model: PreTrainedModel) -> bool:
    """Whether the model returns the same logits with eager attention."""
    tokens, eager = sample_tokens(VOCAB), eager_copy(model)
    ours, theirs = (m(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits for m in (model, eager))
    return bool((ours - theirs).abs().max() <= TOLERANCE * ours.abs().max())


def _verdict(family: str, verdict: str, why: str, subject: Subject | None = None) -> dict[str, Cell]:
    has_updates = None if subject is None else "yes" if subject.shape.mlp_layers else "no"
    return {"family": family, "verdict": verdict, "feed-forward updates": has_updates, "why": why}


def _first_line(error: Exception) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Inside, a TimeoutError is raised after these seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
