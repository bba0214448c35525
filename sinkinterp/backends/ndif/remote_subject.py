"""nnsight models on an NDIF server: the same reads and edits run there, and only the answers come back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import nnsight
import torch
from nnsight.intervention.backends.remote import RemoteBackend
from torch import Tensor

from ...data.tokens import Tokens
from ...errors import InputError
from ...interventions.edit import HeadWeights
from ..anatomy.modules import blocks_of, cross_attention
from ..anatomy.projections import Projection
from ..nnsight import NNsightSubject, Paths, visit
from ..recorder import Answers, Recorder
from ..subject import Logits, Trace
from .pickling import payload

LogitsRead = Callable[[Tensor], Tensor]


class Request(RemoteBackend):
    """One request to NDIF, whose payload names nothing of this package."""

    def _serialize(self, tracer: Any) -> bytes:
        return payload(tracer, self.compress)


class RemoteTrace(Trace):
    """A trace whose logits are computed again and sent when they are first asked for: `fetch` gets them."""

    def __init__(self, calls: Answers, residuals: Answers, mlps: Answers, fetch: Callable[[], Logits]) -> None:
        vars(self).update(calls=calls, residuals=residuals, mlps=mlps, _fetch=fetch)

    def __repr__(self) -> str:  # that of a trace would fetch the logits
        return f"<RemoteTrace: {', '.join(self.answers) or 'no reads'}>"

    @cached_property
    def logits(self) -> Logits:
        """What the model returned."""
        return vars(self)["_fetch"]()


class RemoteSubject(NNsightSubject):
    """A transformers model on a server. Here it has sizes, but no weights.

    `request` makes the nnsight backend that carries one forward pass. Construction takes three requests. Tensors that
    reads and edits hold arrive on the CPU, so reads and edits move them to where the model is. Raises InputError where
    the contract fails.
    """

    dtype: torch.dtype = torch.float32  # those of the server, once it has answered
    device: torch.device = torch.device("cpu")

    def __init__(self, envoy: Any, name: str, request: Callable[[], RemoteBackend]) -> None:
        if any(map(cross_attention, blocks_of(envoy._module))):
            raise InputError(f"{name} attends to an encoder; such models run on the Hugging Face backend alone")
        self._request = request
        super().__init__(envoy, name)
        if self._abilities.takes_positions:
            self.modules = replace(self.modules, tables=self._tables())

    def _fetch_weights(self) -> None:
        """Does nothing: the weights stay on the server."""

    def _bare_pass(self, tokens: Tokens) -> tuple[Logits, tuple[torch.nn.Module, ...]]:
        """As for other models, but tables of positions are found later: their calls cannot be seen from here."""
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        envoy, logits = self._envoy, tokens
        with envoy.trace(tokens, **inputs, backend=self._request()):
            logits = nnsight.save(envoy.output.logits.detach())
        self.dtype, self.device = logits.dtype, logits.device  # the model here has none
        return logits, ()

    def _trace(self, tokens: Tokens, recorder: Recorder, positions: Mapping[str, Tensor]) -> Trace:
        if recorder.gradients:
            raise InputError(f"{self.name} runs on a server, which sends no gradients back; load it here")
        self._request_pass(tokens, recorder, _nothing, positions)
        only_edits = Recorder(edits=recorder.edits)
        fetch = lambda: self._request_pass(tokens, only_edits, _itself, positions)  # noqa: E731
        return RemoteTrace(*self._answers(recorder), fetch)

    def weights(self, layer: int, projection: Projection) -> HeadWeights | None:
        raise InputError(f"{self.name} runs on a server, where weights are not to be changed; load it here")

    def _request_pass(
        self, tokens: Tokens, recorder: Recorder, read: LogitsRead, positions: Mapping[str, Tensor] = {}
    ) -> Tensor:
        """What `read` returns for the logits of one forward pass that is shown to a copy of `recorder` on the server.

        The answers that the copy recorded are stored in `recorder`.
        """
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        envoy, paths, base, contents = self._envoy, self._paths, self.attention, _contents_of(recorder)
        with envoy.trace(tokens, **inputs, backend=self._request()):
            answers = nnsight.save(_record_there(envoy, paths, contents, base))
            kept = nnsight.save(read(envoy.output.logits.detach()))
        recorder.call_answers, recorder.residual_answers, recorder.mlp_answers, recorder.finite = answers
        return kept

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Logits:
        return self._request_pass(tokens, recorder, _itself, positions)

    def _tables(self) -> tuple[torch.nn.Module, ...]:
        """The tables that are as long as the context: those of learned positions, in a model that has some."""
        embedding, limit = self._embedding, self.shape.n_ctx or 0
        tables = [m for m in self.model.modules() if isinstance(m, torch.nn.Embedding) and m is not embedding]
        return tuple(table for table in tables if table.num_embeddings >= limit > 0)


def _contents_of(recorder: Recorder) -> tuple[Any, ...]:
    """What `_record_there` makes a recorder from."""
    reads = (dict(recorder.calls), dict(recorder.residuals), dict(recorder.mlps))
    return *reads, tuple(recorder.edits), recorder.gradients


def _record_there(envoy: Any, paths: Paths, contents: tuple[Any, ...], base: str) -> tuple[Any, ...]:
    """On the server, shows a new recorder one forward pass; returns what it recorded, as plain tensors."""
    recorder = Recorder(*contents)
    visit(envoy, paths, recorder, base)
    return recorder.call_answers, recorder.residual_answers, recorder.mlp_answers, recorder.finite


def _itself(logits: Tensor) -> Tensor:
    return logits


def _nothing(logits: Tensor) -> Tensor:
    return logits.new_zeros(())


def load_remote(source: Any, name: str | None = None) -> RemoteSubject:
    """The Hub's model `source` on NDIF; no weights are loaded here.

    Raises InputError for a local folder, without an API key, and where the Hub does not know the model.
    """
    if not isinstance(source, str) or Path(source).exists():
        raise InputError(f"NDIF runs models of the Hub only; give a name like org/model instead of {source}")
    if not nnsight.CONFIG.API.APIKEY:
        raise InputError("remote=True needs a key of NDIF: set NDIF_API_KEY, or run `nnsight login`")
    try:
        envoy = nnsight.TransformersModel(source, task="text-generation")
        key = envoy.to_model_key()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot find {source} on the Hub: {str(error).splitlines()[0]}") from error
    return RemoteSubject(envoy, name or source, lambda: Request(key, env=envoy._remoteable_get_env()))
