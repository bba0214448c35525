"""nnsight models on an NDIF server: the same reads and edits, carried out there; only the answers come back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nnsight
import torch
from nnsight.intervention.backends.remote import RemoteBackend
from torch import Tensor

from ...attention.model_shape import ModelShape
from ...errors import InputError
from ...interventions.edit import HeadWeights
from .. import contract
from ..hooks import BASES, Sites, blocks_of
from ..huggingface import Fetch, sizes_of
from ..nnsight import NNsightSubject, asked_of, visit
from ..recorder import Recorder
from ..subject import Tokens
from .pickling import payload

LogitRead = Callable[[Tensor], Tensor]


class Request(RemoteBackend):
    """One request to NDIF, whose payload names nothing of ours."""

    def _serialize(self, tracer: Any) -> bytes:
        return payload(tracer, self.compress)


class RemoteSubject(NNsightSubject):
    """A transformers model on a server. Here it has sizes, but no weights.

    `request` makes the nnsight backend that carries one forward pass. Construction takes four requests. What reads and
    edits capture arrives on the CPU, so they move it to where the model is. Raises InputError where the contract
    is broken.
    """

    def __init__(self, envoy: Any, name: str, request: Callable[[], RemoteBackend]) -> None:
        self._envoy, self.model, self.name, self._request = envoy, envoy._module, name, request
        self.revision = getattr(self.model.config, "_commit_hash", None) or ""
        self._base = self.model.config._attn_implementation
        if self._base not in BASES:
            raise InputError(f"{name} runs {self._base!r} attention on the server; sinkinterp reads sdpa and eager")
        self.sites = Sites(self._embedding, (), blocks_of(self.model))
        tokens = contract.tokens_for(self._embedding.num_embeddings)
        bare = self._bare(tokens)
        self.dtype, self.device = bare.dtype, bare.device
        self.shape = self._checked_shape(tokens, bare)
        backwards = torch.arange(tokens.shape[1]).flip(0)[None]
        self._takes_positions = not self._bare(tokens, {"position_ids": backwards}).equal(bare)
        if self._takes_positions:
            self.sites = replace(self.sites, tables=self._tables())
            del self._paths

    def _pass(self, tokens: Tokens, recorder: Recorder, **positions: Tensor) -> Fetch:
        if recorder.gradients:
            raise InputError(f"{self.name} runs on a server, which sends no gradients back; load it here")
        self._ask(tokens, recorder, _nothing, positions)
        return lambda: self._ask(tokens, Recorder(edits=recorder.edits), _whole, positions)

    def weights(self, layer: int, role: int) -> HeadWeights | None:
        raise InputError(f"{self.name} runs on a server, where weights are not to be changed; load it here")

    def _ask(self, tokens: Tokens, recorder: Recorder, read: LogitRead, positions: Mapping[str, Tensor] = {}) -> Tensor:
        """What `read` says of the logits of one forward pass that is shown to `recorder`."""
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        envoy, paths, base, asked = self._envoy, self._paths, self._base, asked_of(recorder)
        with envoy.trace(tokens, **inputs, backend=self._request()):
            answers = nnsight.save(visit(envoy, paths, asked, base))
            logits = nnsight.save(read(envoy.output.logits.detach()))
        recorder.rows, recorder.streams, recorder.updates, recorder.finite = answers
        return logits

    def _bare(self, tokens: Tokens, positions: Mapping[str, Tensor] = {}) -> Tensor:
        """Logits of the model that nothing watches."""
        inputs = {"attention_mask": torch.ones_like(tokens), "use_cache": False, **positions}
        envoy, logits = self._envoy, tokens
        with envoy.trace(tokens, **inputs, backend=self._request()):
            logits = nnsight.save(envoy.output.logits.detach())
        return logits  # noqa: RET504  the trace writes it here

    def _checked_shape(self, tokens: Tokens, bare: Tensor) -> ModelShape:
        recorder = Recorder({"sizes": sizes_of, "excess": contract.excess})
        logits = self._ask(torch.cat((tokens, contract.later(tokens))), recorder, _whole)
        shape = self._shape_of({layer: row["sizes"] for layer, row in recorder.rows.items()})
        contract.judge(self.name, bare, logits, torch.stack([row["excess"] for row in recorder.rows.values()]))
        edited = Recorder(edits=contract.nudges(shape))
        reached = self._ask(contract.nudged_tokens(shape).contiguous(), edited, contract.reach)
        contract.judge_edits(self.name, shape, reached)
        return shape

    def _tables(self) -> tuple[torch.nn.Module, ...]:
        """The tables that are as long as the context: those of learned positions, in a model that has some."""
        own, limit = self._embedding, self.shape.n_ctx or 0
        tables = [m for m in self.model.modules() if isinstance(m, torch.nn.Embedding) and m is not own]
        return tuple(table for table in tables if table.num_embeddings >= limit > 0)


def _whole(logits: Tensor) -> Tensor:
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
