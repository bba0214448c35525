"""A module that is GPT-2 or Llama in all but name, as that model of transformers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ...errors import InputError
from .. import contract
from ..gap import Gap
from .anatomy import with_axes
from .module_subject import ModuleSubject
from .record import ADD, MULTIPLY, Record

_TOLERANCE = 1e-5  # of logits, relative to the largest
_ACTIVATIONS: dict[Any, Sequence[str]] = {F.gelu: ("gelu", "gelu_new"), F.silu: ("silu",), F.relu: ("relu",)}
_CONTEXT = 2048  # tokens, where the module has no table of positions
Linear = tuple[Tensor, Tensor | None]  # weight and bias


@dataclass(frozen=True)
class Parts:
    """Weights in the order in which a pass uses them. linears: of every block, then the head."""

    record: Record
    linears: list[Linear]
    norms: list[Linear]
    epsilon: float


def to_transformers(subject: Any) -> PreTrainedModel:
    """A `GPT2LMHeadModel` or `LlamaForCausalLM` with the weights of a module, whose logits are the module's to 1e-5.

    Learned positions make it GPT-2, rotary ones Llama. `save_pretrained(folder)` of it writes safetensors that
    `si.load(folder)` reads. Raises InputError for a subject that is not a module of the user's own, and where no such
    model gives its logits.
    """
    if not isinstance(subject, ModuleSubject):
        raise InputError("to_transformers takes the subject of a PyTorch module of your own: si.load(module)")
    tokens = contract.sample_tokens(subject.shape.vocab).to(subject.device)
    record, logits = subject.recorded(tokens)
    nearest = Gap(torch.inf, 0.0)
    try:
        for model in (_gpt2 if subject.anatomy.positions else _llama)(subject, _parts(record)):
            with torch.no_grad():
                gap = Gap.of(model.eval()(tokens).logits, logits)
            if gap.is_within(_TOLERANCE):
                return model
            nearest = min(nearest, gap, key=lambda each: each.difference)
        why = f"the logits of the nearest are {nearest}"
    except (RuntimeError, ValueError, IndexError) as error:  # weights of another number or shape
        why = f"its weights do not fit ({str(error).splitlines()[0]})"
    raise InputError(f"{subject.name} is not shaped as GPT-2 or Llama: {why}; measure the module itself")


def _parts(record: Record) -> Parts:
    norms: list[Linear] = []
    linears: list[Linear] = []
    epsilon = 1e-5
    for operation in record.operations:
        function, given = operation.place[1], operation.argument
        if function is F.linear:
            linears.append((given(1, "weight"), given(2, "bias")))
        elif function in (F.layer_norm, F.rms_norm):
            is_centred = function is F.layer_norm
            size = given(1, "normalized_shape")
            gain = torch.ones(size) if given(2, "weight") is None else given(2, "weight")
            norms.append((gain, given(3, "bias") if is_centred else None))
            epsilon = given(3 + is_centred, "eps") or epsilon
        elif function in MULTIPLY:
            norms += [(x, None) for x in operation.args[:2] if isinstance(x, nn.Parameter) and x.ndim == 1]  # a gain
        elif function in ADD and isinstance(given(1, "other"), float) and given(1, "other") < 1e-3:
            epsilon = given(1, "other")
    return Parts(record, linears, norms, epsilon)


def _blocks(subject: ModuleSubject, parts: Parts, n_mlp: int) -> Iterator[tuple[list[Linear], list[Linear]]]:
    """Of every block the maps to queries, keys and values, and the others: the output's, then the feed-forward's.

    The first three may be one map, or one for each head. Raises ValueError where there are more or fewer maps.
    """
    shape = subject.shape
    per_block, rest = divmod(len(parts.linears) - 1, shape.n_layers)
    n_maps = per_block - n_mlp - 1
    if rest or n_maps not in (1, 3, 3 * shape.n_heads):
        raise ValueError(f"{len(parts.linears) - 1} linear maps in {shape.n_layers} blocks")
    n_queries = shape.n_heads * shape.d_head
    for first, call in zip(range(0, shape.n_layers * per_block, per_block), parts.record.calls, strict=True):
        maps = parts.linears[first : first + n_maps]
        weight, bias = _joined(maps)
        scale = parts.record.operations[call].kwargs.get("scale") or shape.d_head**-0.5
        for x in (weight, bias):
            x[:n_queries] *= scale * shape.d_head**0.5  # those models scale by 1/sqrt(d_head)
        rows = [n_queries, *((len(weight) - n_queries) // 2,) * 2]
        biases = (None,) * 3 if maps[0][1] is None else bias.split(rows)
        yield list(zip(weight.split(rows), biases, strict=True)), parts.linears[first + n_maps : first + per_block]


def _joined(maps: list[Linear]) -> tuple[Tensor, Tensor]:
    """Several maps as one, whose bias is 0 where they have none."""
    biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in maps]
    return torch.cat([weight for weight, _ in maps]), torch.cat(biases)


def _activations(parts: Parts) -> set[str]:
    """The activations that a pass may use, by the functions that it calls."""
    called = {name for operation in parts.record.operations for name in _ACTIVATIONS.get(operation.place[1], ())}
    return called or {name for names in _ACTIVATIONS.values() for name in names}


@torch.no_grad()
def _filled(
    model: PreTrainedModel, subject: ModuleSubject, linears: Sequence[Linear], norms: Sequence[Linear], *tables: Tensor
) -> PreTrainedModel:
    """The model with these weights, whose modules are in the order in which a pass uses them; absent biases are 0."""
    model = model.to(device=subject.device, dtype=subject.dtype)
    modules: list[Any] = [module for module in model.modules() if hasattr(module, "weight")]
    places = sorted(modules, key=lambda m: -1 if isinstance(m, nn.Embedding) else m.weight.ndim == 1)
    for module, (weight, bias) in zip(places, [*((table, None) for table in tables), *linears, *norms], strict=True):
        _set(module.weight, weight.mT if isinstance(module, Conv1D) else weight)
        _set(getattr(module, "bias", None), bias)
    return model


def _set(place: Tensor | None, value: Tensor | None) -> None:
    if value is not None and (place is None or place.shape != value.shape):
        raise ValueError(f"no place for weights {tuple(value.shape)}")
    if place is not None:
        place.copy_(torch.zeros_like(place) if value is None else value)


def _gpt2(subject: ModuleSubject, parts: Parts) -> Iterator[PreTrainedModel]:
    shape, positions = subject.shape, subject.anatomy.positions
    if positions is None or not positions.is_table:
        raise ValueError("positions are computed")
    tables = subject.tensor(subject.anatomy.table), subject.tensor(positions.source).reshape(-1, shape.d_model)
    blocks = list(_blocks(subject, parts, 2))
    (weight, bias), (gain, shift) = parts.linears[-1], parts.norms[-1]
    if bias is not None:  # the norm before the head has a bias that gives the logits the head's, where one can
        added = torch.linalg.lstsq(weight.double(), bias.double()[:, None], driver="gelsd").solution[:, 0]
        shift = added.to(weight.dtype) + (0 if shift is None else shift)
    linears = [linear for maps, others in blocks for linear in (_joined(maps), *others)]
    for activation in _activations(parts):
        config = GPT2Config(
            vocab_size=shape.vocab, n_positions=len(tables[1]), n_embd=shape.d_model, n_layer=shape.n_layers,
            n_head=shape.n_heads, n_inner=len(blocks[0][1][1][0]), activation_function=activation,
            layer_norm_epsilon=parts.epsilon, tie_word_embeddings=weight is tables[0],
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        norms = [*parts.norms[:-1], (gain, shift)]
        yield _filled(GPT2LMHeadModel(config), subject, [*linears, (weight, None)], norms, *tables)


def _llama(subject: ModuleSubject, parts: Parts) -> Iterator[PreTrainedModel]:
    shape, head = subject.shape, parts.linears[-1]
    table, blocks = subject.tensor(subject.anatomy.table), list(_blocks(subject, parts, 3))
    for activation, order in product(_activations(parts), _orders(shape.d_head)):
        linears = [
            linear
            for (q, k, v), others in blocks
            for linear in (_reordered(q, order), _reordered(k, order), v, *others)
        ]
        config = LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.d_model, intermediate_size=len(blocks[0][1][1][0]),
            num_hidden_layers=shape.n_layers, num_attention_heads=shape.n_heads, head_dim=shape.d_head,
            num_key_value_heads=len(blocks[0][0][1][0]) // shape.d_head,
            max_position_embeddings=shape.n_ctx or _CONTEXT, hidden_act=activation,
            rms_norm_eps=parts.epsilon, tie_word_embeddings=head[0] is table,
            rope_parameters={"rope_type": "default", "rope_theta": _base(subject, parts)},
            attention_bias=any(bias is not None for maps, others in blocks for _, bias in (*maps, others[0])),
            mlp_bias=any(bias is not None for _, others in blocks for _, bias in others[1:]),
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        yield _filled(LlamaForCausalLM(config), subject, [*linears, head], parts.norms, table)


def _orders(d_head: int) -> Iterator[Tensor]:
    """Orders of a head's dimensions in which halves are what the module turns together: halves, then neighbours."""
    halves = torch.arange(d_head).view(2, -1)
    neighbours = torch.arange(d_head).view(-1, 2).mT
    for order in (halves, neighbours, halves.flip(0), neighbours.flip(0)):  # flipped: turned the other way
        yield order.flatten()


def _reordered(linear: Linear, order: Tensor) -> Linear:
    weight, bias = (None if x is None else x.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1) for x in linear)
    assert weight is not None
    return weight, bias


def _base(subject: ModuleSubject, parts: Parts) -> float:
    """The base of the rotation: the second dimension of a head turns by base ** (-2 / d_head) at position 1."""
    turn = next((turn for turn in subject.anatomy.turns if turn.rank == 4), None)
    if turn is None or subject.shape.d_head < 4:
        return 1e4
    operation = next(o for o in parts.record.operations if o.place == turn.place)
    rows = with_axes(operation.args[turn.index], 4).movedim(turn.pos_axis, 0)[1].flatten()
    angles = rows.angle() if rows.is_complex() else rows.double().arccos()
    second = next((angle for angle in angles.tolist() if angle < 1 - 1e-4), 1.0)
    return float(second ** (-subject.shape.d_head / 2))
