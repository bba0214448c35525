"""nnsight models on an NDIF server: the same reads, evaluated there; only their answers come back."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from nnsight.intervention.backends.remote import RemoteBackend
from torch import Tensor

from ..attention.call import AttentionCall
from ..errors import InputError
from ..interventions.edit import Edit
from . import contract
from .huggingface import Pass, _sizes
from .nnsight import NNsightSubject, _finite, _paths_of, _watch
from .sending import payload
from .subject import CallRead, ModelShape, ResidualRead, Tokens, Trace
from .watching import BASES, blocks_of, unfinite


class Request(RemoteBackend):
    """One request to NDIF whose payload names torch only."""

    def _serialize(self, tracer: Any) -> bytes:
        return payload(tracer, self.compress)


class RemoteTrace(Trace):
    """A trace whose logits, hundreds of megabytes in large vocabularies, are fetched when first asked for."""

    def __init__(self, calls: dict[str, Tensor], residuals: dict[str, Tensor], fetch: Callable[[], Tensor]) -> None:
        for name, value in {"calls": calls, "residuals": residuals, "_fetch": fetch}.items():
            object.__setattr__(self, name, value)

    @property
    def logits(self) -> Tensor:  # type: ignore[override]
        """Logits of the same pass, by a request of its own; `sequence pos vocab`."""
        if "_logits" not in self.__dict__:
            object.__setattr__(self, "_logits", self._fetch())  # type: ignore[attr-defined]
        return self.__dict__["_logits"]


class RemoteSubject(NNsightSubject):
    """A transformers model that runs on a server; here it has sizes and no weights.

    `request` makes the nnsight backend of one forward pass. Construction takes two requests, a third where the model
    has a table of positions. Tensors that a read or edit captures arrive on the CPU; those of a `functools.partial`
    are moved to the device of the layer. Raises InputError where the model breaks the contract.
    """

    def __init__(self, model: Any, name: str, request: Callable[[], RemoteBackend]) -> None:
        self._envoy, self.model, self.name, self._request = model, model._module, name, request
        self._base = self.model.config._attn_implementation
        if self._base not in BASES:
            raise InputError(f"{name} runs {self._base!r} attention; load it with attn_implementation='sdpa'")
        self._blocks = blocks_of(self.model)
        self._paths = _paths_of(self.model)
        tokens = contract.tokens_for(self._embedding.num_embeddings)
        bare = self._forward(tokens, None)
        self.shape = self._check(tokens, bare)
        self._has_position_table = self._finds_position_table(tokens, bare)

    def run(
        self,
        tokens: Tokens,
        *,
        calls: Mapping[str, CallRead] = {},
        residuals: Mapping[str, ResidualRead] = {},
        edits: Sequence[Edit] = (),
    ) -> Trace:
        """One forward pass on the server; see `Subject.run`. Raises InputError for what cannot be sent."""
        self._check_tokens(tokens)
        positions = self._positions(tokens, edits)
        rows, streams, _ = self._pass(tokens, calls, residuals, **positions)
        stacked = Trace.stack([rows[layer] for layer in sorted(rows)])
        return RemoteTrace(stacked, Trace.stack(streams), lambda: self._pass(tokens, {}, {}, True, **positions)[2])

    def _pass(
        self,
        tokens: Tokens,
        calls: Mapping[str, CallRead],
        residuals: Mapping[str, ResidualRead],
        with_logits: bool = False,
        **positions: Tensor,
    ) -> Pass:
        import nnsight

        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        reads = {**residuals, "finite": _finite}
        calls = {name: partial(_placed, read) for name, read in calls.items()}
        envoy, paths, base, logits = self._envoy, self._paths, self._base, None
        with envoy.trace(tokens, **inputs, backend=self._request()):
            answers = nnsight.save(_watch(envoy, paths, calls, reads, base))
            if with_logits:
                logits = nnsight.save(envoy.output.logits.detach())
        rows, streams = answers
        for i, stream in enumerate(streams):
            if not stream.pop("finite"):
                raise unfinite(i)
        return rows, streams, logits

    def _forward(self, tokens: Tokens, watch: Any, **positions: Tensor) -> Tensor:
        import nnsight

        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        envoy = self._envoy
        with envoy.trace(tokens, **inputs, backend=self._request()):
            logits = nnsight.save(envoy.output.logits.detach())
        return logits

    def _check(self, tokens: Tokens, bare: Tensor) -> ModelShape:
        later = contract.later(tokens)
        reads = {"sizes": _sizes, "excess": contract.excess}
        rows, _, logits = self._pass(torch.cat((tokens, later)), reads, {}, True)
        self.dtype, self.device = logits.dtype, logits.device
        excess = max(row["excess"].max().item() for row in rows.values())
        contract.judge(self.name, self.dtype, bare, logits[: len(tokens)], logits[len(tokens) :], excess)
        return self._shape_of({layer: row["sizes"] for layer, row in rows.items()})

    def _finds_position_table(self, tokens: Tokens, bare: Tensor) -> bool:
        own, limit = self._embedding, self.shape.n_ctx or 0
        tables = [m for m in self.model.modules() if isinstance(m, torch.nn.Embedding) and m is not own]
        if not any(table.num_embeddings >= limit > 0 for table in tables):
            return False
        backwards = torch.arange(tokens.shape[1]).flip(0)[None]
        return not self._forward(tokens, None, position_ids=backwards).equal(bare)


def _placed(read: CallRead, call: AttentionCall) -> Tensor:
    """A read's answer, given that its bound tensors may be on another device than the layer."""
    if isinstance(read, partial):
        args = [x.to(call.q.device) if isinstance(x, Tensor) else x for x in read.args]
        named = {k: x.to(call.q.device) if isinstance(x, Tensor) else x for k, x in read.keywords.items()}
        read = partial(read.func, *args, **named)
    with torch.no_grad():
        return read(call)


def load_remote(source: str, name: str | None = None) -> RemoteSubject:
    """A subject of the Hub's model `source` that runs on NDIF; no weights are loaded here.

    Raises InputError for a local folder, without an API key, and where the Hub does not know the model.
    """
    from pathlib import Path

    from nnsight import CONFIG, TransformersModel

    if not isinstance(source, str) or Path(source).exists():
        raise InputError(f"{source} is local, and NDIF runs models of the Hub only; give a name like org/model")
    if not CONFIG.API.APIKEY:
        raise InputError("remote=True needs a key of NDIF: set NDIF_API_KEY, or run `nnsight login`")
    try:
        model = TransformersModel(source, task="text-generation")
        key = model.to_model_key()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot find {source} on the Hub: {str(error).splitlines()[0]}") from error
    return RemoteSubject(model, name or source, lambda: Request(key, env=model._remoteable_get_env()))
