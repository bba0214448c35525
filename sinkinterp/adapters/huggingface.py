"""Transformers models as subjects, through transformers' own attention interface: untouched weights, no patching."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from ..attention.call import AttentionCall, call_of_interface
from ..errors import InputError
from ..interventions.edit import Edit
from .subject import CallRead, ModelShape, ResidualRead, Tokens, Trace


@dataclass
class _Watch:
    """What one forward pass is asked, and what it has answered so far."""

    calls: Mapping[str, CallRead]
    answers: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def see(self, call: AttentionCall) -> None:
        if call.layer in self.answers:
            raise InputError(f"layer {call.layer} attends twice in one pass; such models cannot be read by layer")
        self.answers[call.layer] = {name: read(call) for name, read in self.calls.items()}


_WATCH: ContextVar[_Watch | None] = ContextVar("sinkinterp_watch", default=None)


def _watched(base: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function `base`, which also shows every call to the watch."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        scaling: float | None = None, **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        call = call_of_interface(module.layer_idx, query, key, value, attention_mask, scaling, **kwargs)
        watch = _WATCH.get()
        if watch is not None:
            watch.see(call)
        if call.is_fused and (base == "sdpa" or "kernel" in kwargs):
            return call.output().transpose(1, 2).contiguous(), None
        own = sys.modules[type(module).__module__].__dict__.get("eager_attention_forward")
        function = ALL_ATTENTION_FUNCTIONS.get_interface(base, own)
        return function(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    return attention


for _base in ("sdpa", "eager"):
    AttentionInterface.register(f"sinkinterp_{_base}", _watched(_base))
    # without a mask function of the same name, transformers passes no mask and the model is no longer causal
    AttentionMaskInterface.register(f"sinkinterp_{_base}", ALL_MASK_ATTENTION_FUNCTIONS[_base])


class HuggingFaceSubject:
    """A causal transformers model, read while it runs. The model is left as it was found.

    Raises InputError where the model does not go through the attention interface, or breaks the contract that
    `_check_contract` states.
    """

    def __init__(self, model: PreTrainedModel, name: str | None = None) -> None:
        self.model, self.name = model, name or type(model).__name__
        self.dtype, self.device = model.dtype, model.device
        self._base = model.config._attn_implementation
        if self._base not in ("sdpa", "eager"):
            raise InputError(f"{self.name} runs {self._base!r} attention; load it with attn_implementation='sdpa'")
        self._blocks: Sequence[nn.Module] = ()
        self._has_position_table = False
        self.shape = self._check_contract()

    def run(
        self,
        tokens: Tokens,
        *,
        calls: Mapping[str, CallRead] = {},
        residuals: Mapping[str, ResidualRead] = {},
        edits: Sequence[Edit] = (),
    ) -> Trace:
        """One forward pass without gradients; see `Subject.run`. Raises InputError for ids outside the vocabulary."""
        self._check_tokens(tokens)
        watch = _Watch(calls)
        streams: list[dict[str, Tensor]] = []
        with ExitStack() as stack:
            if residuals:
                stack.enter_context(_residual_hooks(self._blocks, residuals, streams))
            logits = self._forward(watch, tokens, **self._positions(tokens, edits))
        if tuple(sorted(watch.answers)) != self.shape.attention_layers:
            raise InputError(f"{self.name}: layers {sorted(watch.answers)} attended, not {self.shape.attention_layers}")
        rows = [watch.answers[layer] for layer in self.shape.attention_layers]
        return Trace(Trace.stack(rows), Trace.stack(streams), logits)

    @torch.no_grad()
    def _forward(self, watch: _Watch | None, tokens: Tokens, **kwargs: Any) -> Tensor:
        """Logits; through the watched attention function where there is a watch, else through the model's own."""
        tokens = tokens.to(self.model.device)
        # an explicit all-ones mask: without it, transformers takes swapped position ids for packed sequences
        kwargs |= {"attention_mask": torch.ones_like(tokens), "use_cache": False}
        with _evaluating(self.model), _attending(self.model, None if watch is None else f"sinkinterp_{self._base}"):
            token = _WATCH.set(watch)
            try:
                return self.model(tokens, **kwargs).logits
            finally:
                _WATCH.reset(token)

    def _positions(self, tokens: Tokens, edits: Sequence[Edit]) -> dict[str, Tensor]:
        ids = torch.arange(tokens.shape[1])
        edited = ids
        for edit in edits:
            edited = edit.position_ids(edited)
        if edited.equal(ids):
            return {}
        if not self._has_position_table:
            raise InputError(
                f"{self.name} has no table of learned positions to swap or replace; "
                "take a model that has one (GPT-2, OPT, or a checkpoint of ours with learned positions)"
            )
        return {"position_ids": edited[None].to(self.model.device)}

    def _check_tokens(self, tokens: Tokens) -> None:
        low, high, vocab = int(tokens.min()), int(tokens.max()), self.model.get_input_embeddings().num_embeddings
        if low < 0 or high >= vocab:
            raise InputError(f"token id {low if low < 0 else high} is outside {self.name}'s vocabulary of {vocab}")

    def _check_contract(self) -> ModelShape:
        """Sizes of the model, once it is known that its calls can be read.

        Every attention block shows its call; logits are those of the bare model; rows sum to one where the kernel
        says so; a later token changes no earlier logits.
        """
        vocab = self.model.get_input_embeddings().num_embeddings
        tokens = torch.randint(vocab, (2, 7), generator=torch.Generator().manual_seed(0))
        sizes = {
            "heads": lambda call: torch.tensor([[call.q.shape[1], call.k.shape[1], call.q.shape[3]]]),
            "excess": lambda call: (call.pattern().sum(-1) - 1).abs().amax()[None] * call.kernel.is_normalised,
        }
        watch = _Watch(sizes)
        with _position_lookups(self.model, tokens.shape[1]) as lookups:
            bare = self._forward(None, tokens)
        logits = self._forward(watch, tokens)
        if not watch.answers:
            raise InputError(
                f"{type(self.model).__name__} computes attention outside transformers' attention interface, so its "
                "calls cannot be read; take a family that uses it (GPT-2, OPT, GPT-NeoX, Llama, Mistral, Qwen, ...)"
            )
        later = tokens.clone()
        later[:, -1] = (later[:, -1] + 1) % vocab
        tolerance = 1e-4 if self.dtype == torch.float32 else 0.1
        checks = {
            "logits differ from the bare model's": (logits - bare).abs().max() <= tolerance,
            "a later token changes earlier logits, so the model is not causal": (
                (self._forward(watch_again := _Watch({}), later)[:, :-1] - logits[:, :-1]).abs().max() <= tolerance
            ),
            "attention rows do not sum to one": max(a["excess"].item() for a in watch.answers.values()) <= tolerance,
            "a layer attended in one pass and not in the next": watch_again.answers.keys() == watch.answers.keys(),
        }
        for failure, passed in checks.items():
            if not passed:
                raise InputError(f"{self.name}: {failure}; it cannot be measured")
        layers = tuple(sorted(watch.answers))
        self._blocks = _blocks(self.model, max(layers) + 1)
        backwards = torch.arange(tokens.shape[1]).flip(0)[None].to(self.device)
        self._has_position_table = bool(lookups) and not self._forward(None, tokens, position_ids=backwards).equal(bare)
        n_heads, n_kv_heads, d_head = watch.answers[layers[0]]["heads"][0].tolist()
        d_model = self.model.get_input_embeddings().embedding_dim
        return ModelShape(len(self._blocks), layers, n_heads, n_kv_heads, d_head, d_model, vocab)


def _blocks(model: PreTrainedModel, at_least: int) -> Sequence[nn.Module]:
    """The model's stack of blocks: the first list of modules that is as long as the configuration says."""
    depth = model.config.get_text_config().num_hidden_layers
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth >= at_least]
    if not stacks:
        raise InputError(f"{type(model).__name__} keeps its {depth} blocks in no list, so residuals cannot be read")
    return list(stacks[0])


@contextmanager
def _residual_hooks(
    blocks: Sequence[nn.Module], reads: Mapping[str, ResidualRead], answers: list[dict[str, Tensor]]
) -> Iterator[None]:
    """Evaluates `reads` on the input of every block and on the output of the last."""

    def see(x: Tensor) -> None:
        answers.append({name: read(x) for name, read in reads.items()})

    def entering(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(args[0] if args else kwargs["hidden_states"])

    def leaving(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        see(output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_pre_hook(entering, with_kwargs=True) for block in blocks]
    handles.append(blocks[-1].register_forward_hook(leaving))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if len(answers) != len(blocks) + 1:
        raise InputError(f"{len(answers)} residuals were read where {len(blocks) + 1} should be; a hook did not fire")


@contextmanager
def _position_lookups(model: PreTrainedModel, length: int) -> Iterator[list[nn.Module]]:
    """The tables that are asked for consecutive rows while the model runs: its learned positions."""
    found: list[nn.Module] = []

    def looked_up(table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for ids in (*args, *kwargs.values()):
            whole = isinstance(ids, Tensor) and not ids.is_floating_point() and ids.shape[-1:] == (length,)
            if whole and (ids.long().diff() == 1).all():
                found.append(table)

    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    handles = [table.register_forward_pre_hook(looked_up, with_kwargs=True) for table in tables]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _attending(model: PreTrainedModel, implementation: str | None) -> Iterator[None]:
    """The model with another attention function, and back."""
    before = model.config._attn_implementation
    if implementation is not None and model._can_set_attn_implementation():
        model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        if model.config._attn_implementation != before:
            model.set_attn_implementation(before)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout, and back."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def load(
    source: str | Path | PreTrainedModel, *, dtype: torch.dtype = torch.float32, name: str | None = None
) -> HuggingFaceSubject:
    """A subject from a Hugging Face name, a local model folder, or a transformers model in memory.

    Weights are read from safetensors only and no code of the repository is run. `dtype` is that of the loaded
    weights; a model in memory keeps its own. Raises InputError where nothing can be loaded, or weights are missing.
    """
    if isinstance(source, PreTrainedModel):
        return HuggingFaceSubject(source, name)
    _check_folder(Path(source))
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot load {source}: {str(error).splitlines()[0]}") from error
    absent = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if absent:
        raise InputError(f"{source} has no fitting weights for {', '.join(absent[:3])}; save the whole model again")
    return HuggingFaceSubject(model, name or str(source))


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model; None where a local folder holds none."""
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("tokenizer*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot load the tokenizer of {source}: {str(error).splitlines()[0]}") from error


def _check_folder(folder: Path) -> None:
    if not folder.exists() and (folder.is_absolute() or folder.parts[:1] in ((".",), ("..",), ("~",))):
        raise InputError(f"there is no folder {folder}; check the path")
    if folder.exists() and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json, so it is no model; give a folder made by save_pretrained")
    if folder.exists() and not any(folder.glob("*.safetensors")):
        raise InputError(f"{folder} holds no .safetensors weights; load and save the model with transformers once")
