"""A module that is GPT-2 or Llama in all but name, as that model of transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from ...errors import InputError
from .. import contract
from .module_subject import ModuleSubject
from .record import ADD, MULTIPLY, Operation, Record

_TOLERANCE = 1e-5  # of logits, relative to the largest
_ACTIVATIONS = ("gelu", "gelu_new", "silu", "relu")
_CONTEXT = 2048  # tokens, where the module has no table of positions
Linear = tuple[Tensor, Tensor | None]  # weight and bias
State = dict[str, Tensor | None]


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
    parts, distance = _parts(record), torch.inf
    make = _gpt2 if subject.anatomy.positions else _llama
    try:
        for model in make(subject, parts):
            with torch.no_grad():
                distance = min(distance, (model.eval()(tokens).logits - logits).abs().max().item())
            if distance <= _TOLERANCE * max(1.0, logits.abs().max().item()):
                return model
    except (RuntimeError, ValueError, IndexError) as error:  # weights of another number or shape
        raise _no_twin(subject.name, f"its weights do not fit ({str(error).splitlines()[0]})") from error
    raise _no_twin(subject.name, f"the logits of the nearest differ by {distance:.2g}")


def _no_twin(name: str, why: str) -> InputError:
    return InputError(f"{name} is not shaped as GPT-2 or Llama: {why}; measure the module itself")


def _parts(record: Record) -> Parts:
    norms: list[Linear] = []
    linears: list[Linear] = []
    epsilon = 1e-5
    for operation in record.operations:
        function, args, options = operation.place[1], operation.args, operation.kwargs
        weight = args[1] if function is F.linear else None
        if weight is not None:
            linears.append((weight, args[2] if len(args) > 2 else options.get("bias")))
        elif function in (F.layer_norm, F.rms_norm):
            scale = options.get("weight", args[2] if len(args) > 2 else None)
            bias = options.get("bias", args[3] if len(args) > 3 else None) if function is F.layer_norm else None
            size = record.shapes[operation.outputs[0]][-1]
            norms.append((torch.ones(size) if scale is None else scale, bias))
            epsilon = options.get("eps", args[-1] if isinstance(args[-1], float) else None) or epsilon
        elif function in MULTIPLY and (gain := _gain(operation)) is not None:
            norms.append((gain, None))
        elif function in ADD and isinstance(args[1], float) and args[1] < 1e-3:
            epsilon = args[1]
    return Parts(record, linears, norms, epsilon)


def _gain(operation: Operation) -> Tensor | None:
    """The vector of parameters that an operation multiplies by."""
    vectors = (x for x in operation.args[:2] if isinstance(x, nn.Parameter) and x.ndim == 1)
    return next(vectors, None)


def _blocks(subject: ModuleSubject, parts: Parts, n_mlp: int) -> Iterator[tuple[list[Linear], Linear, list[Linear]]]:
    """Of every block the maps to queries, keys and values, that of the output, and those of the feed-forward layer.

    The first three may be one map, or one for each head. Raises ValueError where there are more or fewer maps.
    """
    shape, linears = subject.shape, parts.linears
    per_block, rest = divmod(len(linears) - 1, shape.n_layers)
    n_maps = per_block - n_mlp - 1
    if rest or n_maps not in (1, 3, 3 * shape.n_heads):
        raise ValueError(f"{len(linears) - 1} linear maps in {shape.n_layers} blocks")
    for i in range(shape.n_layers):
        of_block = linears[i * per_block : (i + 1) * per_block]
        joined = _joined(of_block[:n_maps])
        n_queries = shape.n_heads * shape.d_head
        rows = [n_queries, *((len(joined[0]) - n_queries) // 2,) * 2]
        maps = [(weight, bias) for weight, bias in zip(*(x.split(rows) for x in joined), strict=True)]
        has_bias = of_block[0][1] is not None
        yield [(w, b if has_bias else None) for w, b in maps], of_block[n_maps], of_block[n_maps + 1 :]


def _joined(maps: list[Linear]) -> tuple[Tensor, Tensor]:
    """Several maps as one, whose bias is 0 where they have none."""
    biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in maps]
    return torch.cat([weight for weight, _ in maps]), torch.cat(biases)


def _activations(parts: Parts) -> tuple[str, ...]:
    """The activations that a pass may use, by the functions that it calls."""
    for operation in parts.record.operations:
        approximate = operation.kwargs.get("approximate", "none")
        names = {F.gelu: "gelu_new" if approximate == "tanh" else "gelu", F.silu: "silu", F.relu: "relu"}
        if operation.place[1] in names:
            return (names[operation.place[1]],)
    return _ACTIVATIONS


def _filled(model: PreTrainedModel, state: State, subject: ModuleSubject) -> PreTrainedModel:
    """The model with these weights; absent biases are 0."""
    own = model.state_dict()
    if unknown := [name for name, value in state.items() if name not in own and value is not None]:
        raise ValueError(f"no place for {unknown[0]}")
    given = {name: torch.zeros_like(own[name]) if x is None else x.detach() for name, x in state.items() if name in own}
    model.load_state_dict({**own, **given})
    return model.to(device=subject.device, dtype=subject.dtype)


def _named(name: str, linear: Linear, is_transposed: bool = False) -> State:
    weight, bias = linear
    return {f"{name}.weight": weight.mT if is_transposed else weight, f"{name}.bias": bias}


def _gpt2(subject: ModuleSubject, parts: Parts) -> Iterator[PreTrainedModel]:
    shape, table = subject.shape, subject.tensor(subject.anatomy.table)
    rows = {**dict(subject.model.named_parameters()), **dict(subject.model.named_buffers())}
    name = subject.anatomy.positions_name
    positions = rows.get(f"{name}.weight", rows.get(name))
    if positions is None:
        raise ValueError("positions are computed")
    positions = positions.reshape(-1, shape.d_model)
    state: State = {"transformer.wte.weight": table, "transformer.wpe.weight": positions}
    width = 0
    for i, (maps, out, (up, down)) in enumerate(_blocks(subject, parts, 2)):
        at, width = f"transformer.h.{i}", len(up[0])
        state |= _named(f"{at}.attn.c_attn", _joined(maps), True)
        for part, linear in (("attn.c_proj", out), ("mlp.c_fc", up), ("mlp.c_proj", down)):
            state |= _named(f"{at}.{part}", linear, True)
        state |= _named(f"{at}.ln_1", parts.norms[2 * i]) | _named(f"{at}.ln_2", parts.norms[2 * i + 1])
    head, norm = _without_bias(parts.linears[-1], parts.norms[-1])
    state |= _named("transformer.ln_f", norm) | {"lm_head.weight": head}
    for activation in _activations(parts):
        config = GPT2Config(
            vocab_size=shape.vocab, n_positions=len(positions), n_embd=shape.d_model,
            n_layer=shape.n_layers, n_head=shape.n_heads, n_inner=width, activation_function=activation,
            layer_norm_epsilon=parts.epsilon, tie_word_embeddings=parts.linears[-1][0] is table,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        yield _filled(GPT2LMHeadModel(config), state, subject)


def _without_bias(head: Linear, norm: Linear) -> tuple[Tensor, Linear]:
    """A head's weight, and the norm before it with a bias that gives the logits the head's bias, where one can."""
    (weight, bias), (gain, shift) = head, norm
    if bias is None:
        return weight, norm
    added = torch.linalg.lstsq(weight.double(), bias.double()[:, None], driver="gelsd").solution[:, 0].to(weight.dtype)
    return weight, (gain, added if shift is None else shift + added)


def _llama(subject: ModuleSubject, parts: Parts) -> Iterator[PreTrainedModel]:
    shape, names = subject.shape, ("gate_proj", "up_proj", "down_proj")
    table, blocks = subject.tensor(subject.anatomy.table), list(_blocks(subject, parts, 3))
    for activation, order in product(_activations(parts), _orders(shape.d_head)):
        state: State = {"model.embed_tokens.weight": table, "model.norm.weight": parts.norms[-1][0]}
        for i, (maps, out, mlp) in enumerate(blocks):
            at = f"model.layers.{i}"
            for name, linear in zip("qkv", maps, strict=True):
                state |= _named(f"{at}.self_attn.{name}_proj", linear if name == "v" else _reordered(linear, order))
            for name, linear in zip(names, mlp, strict=True):
                state |= _named(f"{at}.mlp.{name}", linear)
            state |= _named(f"{at}.self_attn.o_proj", out)
            state |= {f"{at}.input_layernorm.weight": parts.norms[2 * i][0]}
            state |= {f"{at}.post_attention_layernorm.weight": parts.norms[2 * i + 1][0]}
        state |= _named("lm_head", parts.linears[-1])
        config = LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.d_model, intermediate_size=len(blocks[0][2][0][0]),
            num_hidden_layers=shape.n_layers, num_attention_heads=shape.n_heads, head_dim=shape.d_head,
            num_key_value_heads=len(blocks[0][0][1][0]) // shape.d_head,
            max_position_embeddings=shape.n_ctx or _CONTEXT, hidden_act=activation,
            rms_norm_eps=parts.epsilon, tie_word_embeddings=parts.linears[-1][0] is table,
            rope_parameters={"rope_type": "default", "rope_theta": _base(subject, parts)},
            attention_bias=any(bias is not None for maps, out, _ in blocks for _, bias in (*maps, out)),
            mlp_bias=any(bias is not None for *_, mlp in blocks for _, bias in mlp),
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        yield _filled(LlamaForCausalLM(config), state, subject)


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
    of_place = next(o for o in parts.record.operations if o.place == turn.place)
    rows: Any = of_place.args[turn.index]
    rows = rows.reshape((1,) * (4 - rows.ndim) + rows.shape).movedim(turn.pos_axis, 0)[1].flatten()
    angles = rows.angle() if rows.is_complex() else rows.double().arccos()
    second = next((angle for angle in angles.tolist() if angle < 1 - 1e-4), 1.0)
    return float(second ** (-subject.shape.d_head / 2))
