"""Calls that people make on models of every kind, each beside what plain transformers computes with eager attention.

The right answers know nothing of this package: they are the attentions, the states and the logits that transformers
returns, hooks on its modules, and for added slots its own code of GPT-OSS or a cache that begins with the slot.
"""

from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers
from backends.zoo import SIZES, VOCAB, model_of, peaked
from torch import nn
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.backends import adapters
from sinkinterp.metrics.importance import PAPER

TOKENS = torch.randint(1, VOCAB, (3, 13), generator=torch.Generator().manual_seed(4))
LENGTHS = (13, 5, 8)
HEAD, PLACES, FACTOR = 1, [0, 3], 3.0  # what is edited
GATED = transformers.Qwen3NextConfig(
    **SIZES, num_key_value_heads=2, head_dim=12, layer_types=["linear_attention", "full_attention", "full_attention"],
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=8,
)  # fmt: skip


class Int8Linear(nn.Module):
    """A linear layer whose weights are whole numbers, with a scale for each row."""

    def __init__(self, linear):
        super().__init__()
        self.scale = nn.Buffer(linear.weight.detach().abs().amax(1, keepdim=True) / 127)
        self.weight = nn.Buffer((linear.weight.detach() / self.scale).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, x):
        return F.linear(x, self.weight.float() * self.scale, self.bias)


def quantised():
    """Qwen2 in whole numbers, and the same numbers in plain linear layers."""
    model = model_of("qwen2")
    plain = deepcopy(model)
    for name, linear in [*model.named_modules()]:
        if isinstance(linear, nn.Linear) and name != "lm_head":
            packed = Int8Linear(linear)
            plain.get_submodule(name).weight.data = packed.weight.float() * packed.scale
            model.set_submodule(name, packed)
    return model, plain


def mended(spec):
    """Llama with slots in its heads, and the plain Llama."""
    model = model_of("llama")
    plain = deepcopy(model)
    adapters.add_slots(model, spec, TOKENS)
    return model, plain


def made(config):
    torch.manual_seed(0)
    model = peaked(transformers.AutoModelForCausalLM.from_config(config).eval())
    return model, deepcopy(model)


def twice(name):
    return model_of(name), model_of(name)


MODELS = {
    "Gemma 4 with shared keys": lambda: twice("gemma4 with shared keys"),
    "GPT-OSS": lambda: twice("gpt-oss with sink logits"),
    "Jamba": lambda: twice("jamba with mamba layers"),
    "Qwen3-Next": lambda: made(GATED),
    "OPT": lambda: twice("opt"),
    "BLOOM": lambda: made(transformers.BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=3, n_head=4)),
    "mended by a sink logit": lambda: mended(adapters.AddedLogit(first=1.5)),
    "mended by a key and a value": lambda: mended(adapters.AddedKeyValue()),
    "int8": quantised,
}
LAYERS = {"Gemma 4 with shared keys": 3, "Jamba": 1}  # the edited one; else the third
BLOCKS = {"OPT": "model.decoder.layers", "BLOOM": "transformer.h"}
PROJECTIONS = {"OPT": "self_attn.out_proj", "BLOOM": "self_attention.dense"}


class Right:
    """What transformers computes."""

    def __init__(self, name, plain, model):
        plain.set_attn_implementation("eager")
        self.name, self.plain, self.layer = name, plain, LAYERS.get(name, 2)
        self.block = plain.get_submodule(f"{BLOCKS.get(name, 'model.layers')}.{self.layer}")
        self.projection = self.block.get_submodule(PROJECTIONS.get(name, "self_attn.o_proj"))
        self.slots = [module for module in model.modules() if isinstance(module, adapters.Slots)]

    @torch.no_grad()
    def __call__(self, tokens):
        """One pass of whole texts, without a cache."""
        ask = {"output_attentions": True, "output_hidden_states": True}
        if "logit" in self.name:
            return self._as_gpt_oss(tokens, ask)
        if "key" not in self.name or "Gemma" in self.name:
            return self.plain(tokens, attention_mask=torch.ones_like(tokens), use_cache=False, **ask)
        return self._behind_the_slot(tokens, ask)

    def _as_gpt_oss(self, tokens, ask):
        for layer, slot in zip(self.plain.model.layers, self.slots, strict=True):
            layer.self_attn.sinks = slot().logit
        with mock.patch.object(modeling_llama, "eager_attention_forward", modeling_gpt_oss.eager_attention_forward):
            return self.plain(tokens, use_cache=False, **ask)

    def _behind_the_slot(self, tokens, ask):
        """The pass behind a cache that holds the slot of each head as its only key and value."""
        cache, n = transformers.DynamicCache(), len(tokens)
        for layer, slot in enumerate(self.slots):
            cache.update(*(x[None].expand(n, -1, -1, -1) for x in (slot().key, slot().value)), layer)
        at = torch.arange(tokens.shape[1])[None].expand(n, -1)
        mask = torch.ones(n, 1 + tokens.shape[1], dtype=torch.long)
        output = self.plain(tokens, past_key_values=cache, position_ids=at, attention_mask=mask, **ask)
        output.attentions = tuple(weights[..., 1:] for weights in output.attentions)
        return output

    @contextmanager
    def head_zeroed(self):
        """In the block, a head returns nothing at some positions: its part of what the projection is given is 0."""

        def zeroed(module, args):
            x = args[0].unflatten(-1, (4, -1)).clone()
            x[:, PLACES, HEAD] = 0
            return (x.flatten(-2),)

        with self.projection.register_forward_pre_hook(zeroed):
            yield

    @contextmanager
    def residual_scaled(self):
        def scaled(module, args, kwargs):
            x = (args[0] if args else kwargs["hidden_states"]).clone()
            x[:, PLACES] *= FACTOR
            return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})

        with self.block.register_forward_pre_hook(scaled, with_kwargs=True):
            yield


@cache
def case(name):
    model, plain = MODELS[name]()
    return si.load(model), Right(name, plain, model)


def close(ours, right):
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-4 * max(1, right.abs().max().item()))


def check_weights(subject, right):
    """All weights, what every position receives, and the share of heads above a threshold."""
    weights = torch.stack(right(TOKENS).attentions, 1)
    assert weights.shape[-1] == TOKENS.shape[1]
    close(si.attention_weights(subject, TOKENS), weights)
    importance = weights.sum(3) / torch.arange(TOKENS.shape[1], 0, -1)
    close(si.measure(subject, TOKENS, convention=PAPER, progress=False).importance, importance)
    two = si.measure(subject, TOKENS, positions=(0, 1), convention=PAPER, progress=False)
    close(two.importance, importance[..., :2])
    epsilon = importance[..., 1].median().item() + 1e-3
    share = pytest.approx((importance[..., 1] > epsilon).float().mean().item())
    assert two.sink_rate(1, epsilon).mean == si.sink_rate(weights, position=1, epsilon=epsilon).mean == share
    table = si.sinks(weights, position=1, epsilon=epsilon)
    assert table.numbers("alpha_2")[1:] == pytest.approx(importance[..., 1].mean(0).flatten().tolist(), abs=1e-4)


def check_states(subject, right):
    """The residual stream before every block, its lengths, and the loss."""
    output = right(TOKENS)
    states = torch.stack(output.hidden_states[:-1], 1)  # transformers shows the last one behind the final norm
    close(si.hidden_states(subject, TOKENS)[:, :-1], states)
    close(si.residual_norms(subject, TOKENS)[:-1], states.norm(dim=-1).mean(0))
    loss = F.cross_entropy(output.logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    assert si.loss(subject, TOKENS) == pytest.approx(loss.item(), rel=1e-4)


def check_head(subject, right):
    """The logits and the weights of a model one of whose heads returns nothing at two positions."""
    edit = iv.ChangeOutputs(iv.Zero(), heads=[(right.layer, HEAD)], positions=PLACES)
    with right.head_zeroed():
        output = right(TOKENS)
    assert (output.logits - right(TOKENS).logits).abs().max() > 1e-3 * output.logits.abs().max()
    close(subject.run(TOKENS, edits=[edit]).logits, output.logits)
    close(si.attention_weights(subject, TOKENS, edits=edit), torch.stack(output.attentions, 1))


def check_writing(subject, right):
    """Greedy words in a block of an edit, by caches, beside whole passes of a hooked model."""
    edit, n = iv.ChangeResidual(iv.Scale(FACTOR), layers=[right.layer], positions=PLACES), 4
    prompt, tokens = TOKENS[:, :6], TOKENS[:, :6]
    with right.residual_scaled():
        for _ in range(n):
            tokens = torch.cat((tokens, right(tokens).logits[:, -1:].argmax(-1)), 1)
        logits = right(tokens[:, :-1]).logits[:, -n:]
    how = {"max_new_tokens": n, "do_sample": False, "output_logits": True, "pad_token_id": 0, "eos_token_id": None}
    with si.patched(subject.model, edit):
        output = subject.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), return_dict_in_generate=True, **how
        )
        last = subject.model(prompt, attention_mask=torch.ones_like(prompt), logits_to_keep=1).logits[:, -1]
    assert output.sequences.equal(tokens)
    close(torch.stack(output.logits, 1), logits)
    close(last, logits[:, 0])


def check_padding(subject, right):
    """Texts of several lengths, padded on either side, are read as each of them alone."""
    texts = [row[:n] for row, n in zip(TOKENS, LENGTHS, strict=True)]
    alone = [torch.stack(right(text[None]).attentions, 1)[..., 0].sum(3) / len(text) for text in texts]
    for side in ("left", "right"):
        mask = torch.stack([torch.arange(TOKENS.shape[1]) < n for n in LENGTHS]).long()
        mask = mask if side == "right" else mask.flip(1)
        ids = torch.zeros_like(TOKENS)
        ids[mask.bool()] = torch.cat(texts)
        padded = {"input_ids": ids, "attention_mask": mask}
        close(si.measure(subject, padded, convention=PAPER, progress=False).alpha(), torch.cat(alone))


CALLS = (check_weights, check_states, check_head, check_writing, check_padding)


@pytest.mark.parametrize("check", CALLS, ids=[check.__name__.removeprefix("check_") for check in CALLS])
@pytest.mark.parametrize("name", MODELS)
def test_a_call_gives_what_eager_attention_gives(name, check):
    check(*case(name))
