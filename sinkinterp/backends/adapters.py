"""Slots that are added to the attention of a transformers model, and adapters, in folders or on the Hub.

Each attention module gets a submodule `sink_slots`, which training finds among the parameters of the model. Nothing
else changes: caches, generation and masks are those of transformers.

An adapter mends the sink of a model by added slots and changed weights, or is one of peft (LoRA and others).
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from huggingface_hub import snapshot_download
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.utils import cached_file

from ..attention.call import AttentionCall, call_of_interface, is_causal_call
from ..attention.shapes import HeadOutput, Keys, PerQuery, Values
from ..attention.slots import LogitPerHead, SinkLogit, SlotRow, Slots
from ..checks import InputError, check_installed, instance_of, refusal
from ..data.hub import asking_hub
from ..data.tokens import Tokens
from ..files import SEAL, Of, check_is_file, owner, path_of, read_record, sealed_hashes, verify, write_record
from ..spec import Spec
from .attached import eval_mode, set_to
from .named_models import located
from .own_attention import mask_of_chosen

WITH_SLOTS = "sink_slots"  # the name of the attention implementation, and of the submodule
UNIT = 1000.0  # AdamW moves every number by the learning rate; slots need one that is so many times that of weights


class AddedSlots(Spec):
    """What is added to every head of a model. `replaces_bos`: whether texts need no BOS then."""

    replaces_bos: ClassVar[bool] = False

    def build(self, call: AttentionCall, position: int) -> Slots:
        """The slots of one attention module, by a call of it, and the position of the key whose place they take."""
        raise NotImplementedError


class AddedKeyValue(AddedSlots):
    """A key and a value per head (KV biases; Gu et al. 2025, section 7.1), which begin as the means at the position.

    Keys and values of a sink hardly depend on the text, so heads find all that they looked for in the slot, before any
    training. The same as a prefix in the cache that every text shares: arXiv:2406.12016, arXiv:2410.05265.
    """

    replaces_bos: ClassVar[bool] = True

    def build(self, call: AttentionCall, position: int) -> Slots:
        key, value = (_mean_at(position, x, call.q.shape[1]) for x in (call.k, call.v))
        return _Row(key, nn.Parameter(value))


class AddedKey(AddedSlots):
    """A key per head, which begins as the mean key at the position, with a value of zero (K biases)."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        key = _mean_at(position, call.k, call.q.shape[1])
        return _Row(key, key.new_zeros(len(key), 1, call.v.shape[-1]))


class AddedLogit(AddedSlots):
    """A score per head, the same for every query, with a value of zero (GPT-OSS). Minus infinity changes nothing.

    It begins at `first`; None: at the mean score of later queries with the key at the position.
    """

    first: float | None = None

    def build(self, call: AttentionCall, position: int) -> Slots:
        if self.first is not None:
            return LogitPerHead(torch.full((call.q.shape[1],), self.first / UNIT), UNIT)
        later, key = slice(position + 1, None), call.keys[position : position + 1]
        return LogitPerHead(call.scores(key, later).mean((0, 2, 3)).to(call.q.dtype) / UNIT, UNIT)


class NoAddedSlots(AddedSlots):
    """Nothing: the control."""

    def build(self, call: AttentionCall, position: int) -> Slots:
        return Slots()


class _Row(Slots):
    """A key per head that is trained, and a value that is trained if it is a parameter."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.key = nn.Parameter(key / UNIT)
        self.value = nn.Buffer(value, persistent=False) if not isinstance(value, nn.Parameter) else value

    def forward(self) -> SlotRow:
        return SlotRow(self.key * UNIT, self.value)


def _mean_at(position: int, x: Keys | Values, n_heads: int) -> Float[Tensor, "head 1 d_head"]:
    """The mean over sequences of the keys or values at a position, once for every head."""
    return x[:, :, position : position + 1].mean(0).repeat_interleave(n_heads // x.shape[1], 0)


Answer = Callable[[nn.Module, AttentionCall], HeadOutput]
# what attention modules return for their calls
_ANSWER: ContextVar[Answer] = ContextVar("sinkinterp_answer", default=lambda module, call: call.output())


def watched(key: int) -> AbstractContextManager[list[Tensor]]:
    """Yields a list of the mean attention that later queries give to one key, layer by layer, with its gradient."""
    masses: list[Tensor] = []

    def answer(module: nn.Module, call: AttentionCall) -> HeadOutput:
        z, mass = output_and_mass(call, key)
        masses.append(mass[:, :, key + 1 :].mean())
        return z

    return set_to(_ANSWER, answer, masses)


def slots_of(module: nn.Module) -> dict[str, SinkLogit | SlotRow]:
    """The slot of an attention module as an argument of `call_of_interface`; none where nothing was added."""
    added = getattr(module, WITH_SLOTS, None)
    slot = None if added is None else added()
    return {} if slot is None else {"slot": slot}


def replaces_bos(model: Any) -> bool:
    """Tells if slots of a model replace BOS, so that it reads texts without it."""
    rows = (module for module in model.modules() if isinstance(module, _Row)) if isinstance(model, nn.Module) else ()
    return any(isinstance(row.value, nn.Parameter) for row in rows)


def without_dropout(model: nn.Module) -> None:
    """Sets every dropout of a model to 0, under any name of its configuration."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention function of transformers' interface."""
    if dropout:
        raise InputError("attention with added slots is computed without dropout; call model.eval(), or set it to 0")
    attention_mask = mask_of_chosen(module, key.shape[2], attention_mask, kwargs)
    extra = {**kwargs, "is_causal": is_causal_call(module, kwargs), **slots_of(module)}
    call = call_of_interface(0, query, key, value, attention_mask, scaling, **extra)
    return _ANSWER.get()(module, call).transpose(1, 2).contiguous(), None


AttentionInterface.register(WITH_SLOTS, _attend)
AttentionMaskInterface.register(WITH_SLOTS, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def output_and_mass(call: AttentionCall, key: int) -> tuple[HeadOutput, PerQuery]:
    """Returns what the heads return, and every query's attention to one key, by one pass of the kernel, with gradients.

    The values get one number more, which is 1 at the key and 0 elsewhere. What heads return there is their attention.
    """
    marked = F.pad(call.v, (0, 1))
    marked[:, :, key, -1] = 1.0
    q, k = (F.pad(x, (0, 1)) for x in (call.q, call.k))
    slot = call.slot
    slot = SlotRow(F.pad(slot.key, (0, 1)), F.pad(slot.value, (0, 1))) if isinstance(slot, SlotRow) else slot
    z = replace(call, q=q, k=k, v=marked, slot=slot).output()
    return z[..., :-1], z[..., -1]


def add_slots(model: PreTrainedModel, spec: AddedSlots, tokens: Tokens | None = None, position: int = 0) -> str:
    """Adds slots to every attention of a model, and sets its attention implementation. Returns the one that it had.

    They begin as the spec says for the calls on some tokens, by default three ids. Raises InputError for a model with
    slots, an encoder or an attention outside transformers' interface.
    """
    name = type(model).__name__
    if model.config.is_encoder_decoder or not model._can_set_attn_implementation():
        raise InputError(f"slots are added to causal models with transformers' attention interface; {name} is not one")
    before: str = model.config._attn_implementation
    slots: dict[nn.Module, Slots] = {}

    def build(module: nn.Module, call: AttentionCall) -> HeadOutput:
        if call.slot is not None:
            raise InputError(f"{name} has slots already, so none are added")
        slots[module] = spec.build(call, position).to(call.q.device, call.q.dtype)
        return call.output()

    model.set_attn_implementation(WITH_SLOTS)
    try:
        with torch.no_grad(), eval_mode(model), set_to(_ANSWER, build):
            ids = torch.tensor([[0, 1, 2]]) if tokens is None else tokens
            model(ids.to(model.device), use_cache=False)
        if not slots:
            raise InputError(f"{name} calls no attention, so none are added")
    except BaseException:
        model.set_attn_implementation(before)
        raise
    for module, added in slots.items():
        module.add_module(WITH_SLOTS, added)
    return before


def remove_slots(model: PreTrainedModel, before: str) -> None:
    """Takes the slots off again; `before` is what `add_slots` returned."""
    for module in model.modules():
        if hasattr(module, WITH_SLOTS):
            delattr(module, WITH_SLOTS)
    model.set_attn_implementation(before)


# Adapters that mend the sink of a model

RECORD, TENSORS = "mended.json", "mended.safetensors"
_ADAPTER, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # of peft


class Trained(Spec):
    """Which weights of a model are trained beside its slots."""

    part: ClassVar[str] = f".{WITH_SLOTS}."  # of the names of these weights

    def prepare(self, model: PreTrainedModel) -> None:
        """Adds the weights that it trains to the model. They and the slots alone then have gradients."""
        _set_gradients(model, lambda name: self.part in name or Trained.part in name)

    def undo(self, model: PreTrainedModel) -> None:
        """Takes off what `prepare` has added."""


class AllWeights(Trained):
    """Every weight."""

    part = ""


class SlotsAlone(Trained):
    """No weight."""


class Lora(Trained):
    """Matrices of a low rank beside all linear maps of the blocks, by peft (arXiv:2106.09685)."""

    part = "lora_"
    rank: int = 16

    def prepare(self, model: PreTrainedModel) -> None:
        check_installed("peft", "LoRA needs it; pip install peft, or train all weights or none")
        import peft

        config = peft.LoraConfig(r=self.rank, lora_alpha=self.rank, target_modules="all-linear")
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            peft.inject_adapter_in_model(config, model)
        super().prepare(model)

    def undo(self, model: PreTrainedModel) -> None:
        for name, module in [*model.named_modules()]:
            if hasattr(module, "lora_A"):
                owner, _, child = name.rpartition(".")
                setattr(model.get_submodule(owner), child, module.base_layer)
        del model.peft_config


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> str:
    """The hash of all weights in bfloat16, which is one for a model that is loaded in fp32 or in bf16."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(weight.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_adapter(folder: Path, model: PreTrainedModel, slots: AddedSlots, trained: Trained, base: str, of: Of) -> None:
    """Writes what was trained of a mended model into a folder that is sealed afterwards.

    base: the name of the model that was mended; `of` holds its fingerprint.
    """
    tensors = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters() if p.requires_grad}
    save_file(tensors, folder / TENSORS, {"format": "pt"})
    write_record(folder / RECORD, {"base": base, "slots": slots.to_dict(), "trained": trained.to_dict()}, of)


def with_adapter(model: PreTrainedModel, folder: Path | str) -> Any:
    """The model itself, changed by the adapter in a folder until `without_adapter` takes it off; see `si.mend`.

    Raises InputError for a model that has an adapter, and where the folder is damaged or mends another model.
    """
    folder = path_of(folder, "the folder of an adapter")
    instance_of(model, PreTrainedModel, "an adapter mends a transformers model")
    if model in _UNDO:
        raise InputError(f"this {type(model).__name__} has an adapter; call si.without_adapter(model) first")
    check_is_file(folder / RECORD)
    verify(folder)
    record = read_record(folder / RECORD)
    slots, trained = AddedSlots.from_dict(record["slots"]), Trained.from_dict(record["trained"])
    own = fingerprint(model)
    sealed_hashes(folder, {})  # raises Damaged without a seal
    if owner(folder).get("base", own) != own:
        raise InputError(f"{folder} mends other weights than these; load {record['base']}")
    with ExitStack() as undo:
        undo.callback(remove_slots, model, add_slots(model, slots))
        undo.callback(_set_gradients, model, {n: p.requires_grad for n, p in model.named_parameters()}.get)
        trained.prepare(model)
        undo.callback(trained.undo, model)
        _exchange(model, load_file(folder / TENSORS), undo)
        _UNDO[model] = undo.pop_all()
    return model


def without_adapter(model: PreTrainedModel) -> Any:
    """The model itself, bit for bit as it was before `with_adapter`. Raises InputError where it has no adapter."""
    undo = _UNDO.pop(model, None) if isinstance(model, PreTrainedModel) else None
    if undo is None:
        raise InputError(f"this {type(model).__name__} has no adapter")
    undo.close()
    return model


def _exchange(model: PreTrainedModel, tensors: dict[str, Tensor], undo: ExitStack) -> None:
    """Puts tensors into the parameters of their names."""
    parameters = dict(model.named_parameters())
    if unknown := sorted(tensors.keys() - parameters.keys()):
        raise InputError(f"no parameter takes {unknown[0]} of the adapter")
    for name, tensor in tensors.items():
        undo.callback(setattr, parameters[name], "data", parameters[name].data)
        parameters[name].data = tensor.to(parameters[name])


def _set_gradients(model: nn.Module, is_trained: Callable[[str], bool | None]) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(is_trained(name)))


_UNDO: WeakKeyDictionary[nn.Module, ExitStack] = WeakKeyDictionary()


# Adapters of peft, and which of the two a folder holds


def adapter_folder(source: str | Path) -> Path | None:
    """The folder of an adapter: the user's, or that of the download from the Hub; None for any other source."""
    folder = Path(source)
    if not folder.exists():
        errors = ("missing_entries", "gated_repo", "connection_errors")
        silent = {f"_raise_exceptions_for_{error}": False for error in errors}
        with asking_hub(source):
            try:
                configs = (cached_file(str(source), name, **silent) for name in (_ADAPTER, RECORD))
                config = next(filter(None, configs), None)
            except OSError:  # such as a name that the Hub does not know: reading the model says what is wrong
                config = None
            if config is None:
                return None
            folder = Path(
                snapshot_download(str(source), allow_patterns=["adapter_*", "mended.*", SEAL, "*token*", "config.json"])
            )
    with refusal(f"{folder} cannot be read", of=PermissionError):
        is_adapter = (folder / _ADAPTER).is_file() and not (folder / "config.json").is_file()
        return folder if is_adapter or (folder / RECORD).is_file() else None


def base_of(folder: Path) -> str:
    """The name or folder of the model that an adapter's folder names.

    Raises InputError where it names none, or one that is an adapter itself.
    """
    if (folder / RECORD).is_file():
        return str(read_record(folder / RECORD)["base"])
    file = folder / _ADAPTER
    with refusal(f"cannot read {file}", of=(OSError, ValueError, AttributeError)):
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise InputError(f"{file} names no base_model_name_or_path")
    with refusal(f"{folder} is an adapter of a model that is not here", of=(InputError,)):
        place = located(base)
    if adapter_folder(place):
        raise InputError(f"{file} names {base}, which is an adapter itself")
    return base


def merged(model: PreTrainedModel, folder: Path) -> Any:
    """The model with the adapter of a folder: peft's added to its weights, that of `si.mend` beside them.

    Raises InputError where peft is not installed, where the adapter does not fit, and where a tensor of it is missing
    or is not taken.
    """
    if (folder / RECORD).is_file():
        return with_adapter(model, folder)
    fix = f"{folder} is an adapter; pip install peft, or merge it with peft and save the whole model"
    check_installed("peft", fix)
    import peft

    if (kind := peft.PeftConfig.from_pretrained(str(folder))).is_prompt_learning:
        what = f"{folder} is an adapter of {kind.peft_type.value.lower()}, which adds keys that are no tokens of a text"
        raise InputError(what)
    check_is_file(folder / _WEIGHTS)
    with refusal(f"the adapter {folder} does not fit {type(model).__name__}"):  # that of another model fails in any way
        adapted = peft.PeftModel.from_pretrained(model, str(folder))
        taken = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        with safe_open(folder / _WEIGHTS, "pt") as tensors:
            names = {*tensors.keys()}
        wrong = sorted(taken - names) or sorted(names - taken - adapted.state_dict().keys())
        if wrong:
            raise ValueError(f"{'it lacks' if wrong[0] in taken else 'no part takes'} {wrong[0]}")
        return adapted.merge_and_unload()
