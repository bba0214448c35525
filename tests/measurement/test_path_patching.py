"""Paths equal those by hooks in plain PyTorch, and direct ones pass by all that any other block adds to the stream."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest
import torch
from backends import encoder_decoders
from backends.zoo import model_of
from measurement.prompts import CLEAN, CORRUPTED, difference
from refusals import refused
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sinkinterp.attention import sites
from sinkinterp.backends.frozen import frozen
from sinkinterp.backends.load import load
from sinkinterp.backends.subject import Trace
from sinkinterp.interventions import Change, ChangeKeys, ChangeMLP, ChangeOutputs, ChangeResidual, ChangeValues
from sinkinterp.interventions.changes import Put
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.patching import activations
from sinkinterp.measurement.path_patching import path_patching
from tools.families import tiny_model

N_HEADS, D_HEAD = 4, 12
# by family: the block list, and in a block the output map, the feed-forward layer, and what makes queries, keys, values
PARTS = {
    "gpt2": ("transformer.h", "attn.c_proj", "mlp", "attn.c_attn"),
    "llama": ("model.layers", "self_attn.o_proj", "mlp", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "pythia": ("gpt_neox.layers", "attention.dense", "mlp", "attention.query_key_value"),
}
FROZEN = (((ChangeOutputs(), ChangeMLP()), True, True), (ChangeOutputs(), True, False), ((), False, False))
SITES_OF_RECEIVERS = {"q": sites.QUERIES, "k": sites.KEYS, "v": sites.VALUES}


def receiver_of(what, layer, head):
    return Change(SITES_OF_RECEIVERS[what], **{SITES_OF_RECEIVERS[what].selector: [(layer, head)]})


def columns(family, what, head):
    """Where a head's queries, keys or values stand in what one module returns."""
    i = "qkv".index(what)
    start = {"gpt2": (i * N_HEADS + head), "llama": head, "pythia": 3 * head + i}[family] * D_HEAD
    return slice(start, start + D_HEAD)


def by_hooks(family, sender, what, receiver, is_frozen, freezes_mlps=True):
    """The share of the difference that one path restores, by hooks on the modules of a transformers model."""
    model = model_of(family)
    blocks, out, mlp, qkv = PARTS[family]
    blocks = model.get_submodule(blocks)
    layer, head = receiver
    maker = blocks[layer].get_submodule(qkv if isinstance(qkv, str) else qkv["qkv".index(what)])
    mine, theirs_ = slice(sender[1] * D_HEAD, (sender[1] + 1) * D_HEAD), columns(family, what, head)

    def run(tokens, hooks):
        with torch.no_grad(), ExitStack() as stack:
            for add, function in hooks:
                stack.callback(add(function).remove)
            return model(tokens, use_cache=False).logits

    def kept(tokens):
        zs, updates = {}, {}
        hooks = []
        for i, block in enumerate(blocks):
            before = block.get_submodule(out).register_forward_pre_hook
            hooks.append((before, lambda m, args, i=i: zs.__setitem__(i, args[0].clone())))
            after = block.get_submodule(mlp).register_forward_hook
            hooks.append((after, lambda m, args, y, i=i: updates.__setitem__(i, y.clone())))
        return run(tokens, hooks), zs, updates

    clean, clean_z, _ = kept(CLEAN)
    corrupted, z, updates = kept(CORRUPTED)

    def with_sender(i):
        x = z[i].clone()
        if i == sender[0]:
            x[..., mine] = clean_z[i][..., mine]
        return (x,)

    received = {}
    hooks = [(maker.register_forward_hook, lambda m, args, y: received.__setitem__("x", y[..., theirs_].clone()))]
    for i, block in enumerate(blocks):
        if is_frozen or i == sender[0]:
            hooks.append((block.get_submodule(out).register_forward_pre_hook, lambda m, args, i=i: with_sender(i)))
        if is_frozen and freezes_mlps:
            hooks.append((block.get_submodule(mlp).register_forward_hook, lambda m, args, y, i=i: updates[i]))
    run(CORRUPTED, hooks)

    def put(m, args, y):
        y = y.clone()
        y[..., theirs_] = received["x"]
        return y

    patched = run(CORRUPTED, [(maker.register_forward_hook, put)])
    gap = (difference(clean) - difference(corrupted)).mean()
    return ((difference(patched) - difference(corrupted)).mean() / gap).item()


@pytest.mark.parametrize("family", PARTS)
@pytest.mark.parametrize("what", SITES_OF_RECEIVERS)
def test_a_path_equals_doing_it_by_hooks(family, what, as_users_run_it):
    subject, receiver = load(model_of(family)), receiver_of(what, 2, 1)
    for frozen_sites, is_frozen, freezes_mlps in FROZEN:
        table = path_patching(
            subject, CLEAN, CORRUPTED, sender=ChangeOutputs(layers=[0, 1]), receiver=receiver,
            frozen=frozen_sites,
            metric=difference, progress=False,
        )  # fmt: skip
        cells = {(row["layer"], row["head"]): row["restored"] for row in table.records()}
        for sender in ((0, 3), (1, 2)):
            expected = by_hooks(family, sender, what, (2, 1), is_frozen, freezes_mlps)
            assert cells[sender] == pytest.approx(expected, abs=1e-5), (frozen_sites, sender)


def test_a_sender_and_a_receiver_of_another_site_are_refused():
    subject = load(model_of("gpt2"))
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, sender=ChangeResidual()), "sender")
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, receiver=Change(sites.PATTERN, heads=[(1, 0)])))
    to = Change(sites.QUERIES, heads=[(1, 0)])
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, sender=ChangeMLP(layers=[1]), receiver=to), "not before")


# Direct paths

_ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__, Tensor.__radd__}
_SAME = {Tensor.view, Tensor.reshape, torch.reshape, Tensor.to, Tensor.float, Tensor.contiguous, Tensor.clone}
_SAME |= {torch.nn.functional.dropout}


class Stream(TorchFunctionMode):
    """Keeps every update that is added to the stream, or gives them back: `kept`, by block and in their order.

    sender: the block in which the first update that differs passes; None keeps them.
    """

    def __init__(self, kept: dict[int, list[Tensor]], sender: int | None = None) -> None:
        super().__init__()
        self.kept, self.sender, self.block = kept, sender, -1
        self.alive: list[Tensor] = []  # so that no other tensor takes the same address

    def enter(self, block: int, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.block, self.n_added, self.has_passed = block, 0, block != self.sender
        self.ids = {id(args[0] if args else kwargs["hidden_states"])}

    def leave(self, module: nn.Module, args: tuple, output: Tensor | tuple) -> None:
        x = output if isinstance(output, Tensor) else output[0]
        assert id(x) in self.ids, f"block {self.block} returns no sum"
        self.block = -1

    def _update(self, x: Tensor) -> Tensor:
        """What is added: `x`, or what is kept in its place."""
        kept, place = self.kept.setdefault(self.block, []), self.n_added
        self.n_added += 1
        if self.sender is None:
            kept.append(x.clone())
        if self.sender is None or self.block < self.sender:
            return x
        differs = not torch.allclose(x, kept[place], rtol=1e-5, atol=1e-6)
        if not self.has_passed and differs:
            self.has_passed = True
            return x
        return kept[place]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.block < 0 or not args or not isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        streams = [isinstance(x, Tensor) and id(x) in self.ids for x in args[:2]]
        if func in _ADD and len(args) > 1 and any(streams):
            stream, update = args[:2] if streams[0] else args[1::-1]
            with torch._C.DisableTorchFunction():
                out = stream + self._update(update) if isinstance(update, Tensor) else stream + update
        elif func in _SAME and streams[0]:
            out = func(*args, **kwargs)
        else:
            return func(*args, **kwargs)
        self.alive.append(out)
        self.ids.add(id(out))
        return out


def direct_logits(subject, clean, corrupted, layer: int, head: int) -> Tensor:
    """The logits of the corrupted run in which one head of the clean run goes straight to the logits."""
    z = activations(ChangeOutputs(), subject, corrupted)[layer].clone()
    z[:, head] = activations(ChangeOutputs(), subject, clean)[layer][:, head]
    return direct_run(subject, corrupted, layer, ChangeOutputs(Put({layer: z}), layers=[layer])).logits


def direct_run(subject, corrupted, layer: int, sent: Change, **reads) -> Trace:
    """The corrupted run in which what an edit changes in the update of a block goes straight to all later blocks."""
    kept: dict[int, list[Tensor]] = {}

    def run(stream: Stream, *edits) -> Trace:
        with ExitStack() as stack:
            for i, block in enumerate(subject.modules.blocks):
                enter = lambda m, args, kwargs, i=i: stream.enter(i, m, args, kwargs)  # noqa: E731
                stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(stream.leave).remove)
            stack.enter_context(stream)
            return subject.run(corrupted, edits=edits, **reads)

    run(Stream(kept))
    return run(Stream(kept, layer), sent)


FAMILIES = (
    "jamba", "bamba", "lfm2", "granitemoehybrid", "qwen3_next", "olmo_hybrid", "falcon_h1", "kimi_linear",
    "bailing_hybrid", "recurrent_gemma", "afmoe", "laguna", "gemma2", "gpt_neox", "llama",
)  # fmt: skip


def gated():
    torch.manual_seed(0)
    model = build(replace(VARIANTS["gated_elements"], vocab=97, n_heads=2, n_layers=3)).eval()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(4)  # so that gates are not all one half
    return load(model)


GENERATOR = torch.Generator().manual_seed(5)
FEW_CLEAN, FEW_CORRUPTED = (torch.randint(3, 89, (2, 6), generator=GENERATOR) for _ in range(2))
SUBJECTS = {name: lambda name=name: load(tiny_model(name)) for name in FAMILIES}
SUBJECTS |= {
    name: lambda name=name: load(encoder_decoders.model_of(name), encoder=encoder_decoders.source_of(name))
    for name in ("whisper", "t5")
}
SUBJECTS["gated_elements"] = gated


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_direct_path_passes_by_all_that_other_blocks_add(name):
    subject = SUBJECTS[name]()
    table = path_patching(subject, FEW_CLEAN, FEW_CORRUPTED, metric=difference, progress=False)
    cells = {(row["layer"], row["head"]): row["restored"] for row in table.records()}
    clean, corrupted = (difference(subject.run(tokens).logits).mean() for tokens in (FEW_CLEAN, FEW_CORRUPTED))
    layer, rounding = subject.shape.attention_layers[0], float(2e-7 / (clean - corrupted).abs())  # of logits near 1
    for head in (0, subject.shape.n_heads - 1):
        direct = difference(direct_logits(subject, FEW_CLEAN, FEW_CORRUPTED, layer, head)).mean()
        share = float((direct - corrupted) / (clean - corrupted))
        assert cells[layer, head] == pytest.approx(share, abs=1e-4 + rounding)


@torch.no_grad()
def test_a_sender_behind_a_gate_is_taken_before_it_and_the_gate_stays_corrupted():
    model = tiny_model("qwen3_next")
    layer, n_heads = model.config.layer_types.index("full_attention"), model.config.num_attention_heads
    attention, seen = model.model.layers[layer].self_attn, []

    def keep_gate(module, args, output):
        gate = output.unflatten(-1, (n_heads, -1)).chunk(2, -1)[1]
        seen.append(gate.flatten(2).sigmoid())

    hooks = [
        attention.q_proj.register_forward_hook(keep_gate),
        attention.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0])),
        model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0])),
    ]
    clean, corrupted = (difference(model(tokens).logits).mean() for tokens in (FEW_CLEAN, FEW_CORRUPTED))
    for hook in hooks:
        hook.remove()
    clean_gate, clean_gated, _, gate, gated, last = seen
    table = path_patching(model, FEW_CLEAN, FEW_CORRUPTED, metric=difference, progress=False)
    cells = {(row["layer"], row["head"]): row["restored"] for row in table.records()}
    d_head = gated.shape[-1] // n_heads
    for head in range(n_heads):
        of_head = slice(head * d_head, (head + 1) * d_head)
        z = gated.clone()
        z[..., of_head] = (clean_gated / clean_gate * gate)[..., of_head]
        sent = last + attention.o_proj(z) - attention.o_proj(gated)
        direct = difference(model.lm_head(model.model.norm(sent))).mean()
        assert cells[layer, head] == pytest.approx(float((direct - corrupted) / (clean - corrupted)), abs=1e-4)


RECEIVERS = {
    "q": lambda layer, put: Change(sites.QUERIES, put, heads=[(layer, 1)]),
    "k": lambda layer, put: ChangeKeys(put, kv_heads=[(layer, 1)]),
    "v": lambda layer, put: ChangeValues(put, kv_heads=[(layer, 1)]),
}
HYBRIDS = ("qwen3_next", "qwen3_5_text", "jamba", "olmo_hybrid")


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_direct_path_to_queries_keys_or_values_passes_by_mixers_and_leaves_gates_as_they_are(name):
    model = tiny_model(name)
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if part.endswith(("down_proj.weight", "down_proj")):  # of feed-forward layers and experts
                parameter.mul_(200)  # so that what is sent is large beside rounding
    subject = load(model)
    layer = subject.shape.attention_layers[-1]
    sent, clean_sent = (activations(ChangeMLP(), subject, tokens)[0].clone() for tokens in (FEW_CORRUPTED, FEW_CLEAN))
    sent[:, -1] = clean_sent[:, -1]
    reads = {what: lambda call, what=what: getattr(call, what) for what in RECEIVERS}
    trace = direct_run(subject, FEW_CORRUPTED, 0, ChangeMLP(Put({0: sent}), layers=[0]), reads=reads)
    clean, corrupted = (difference(subject.run(tokens).logits).mean() for tokens in (FEW_CLEAN, FEW_CORRUPTED))
    for what, received in RECEIVERS.items():
        table = path_patching(
            subject, FEW_CLEAN, FEW_CORRUPTED,
            sender=ChangeMLP(layers=[0], positions=[5]), receiver=received(layer, None),
            metric=difference, progress=False,
        )  # fmt: skip
        put = received(layer, Put({layer: trace[what][:, -1]}))
        direct = difference(subject.run(FEW_CORRUPTED, edits=[put]).logits).mean() - corrupted
        (row,) = table.records()
        assert abs(float(direct)) > 1e-4
        assert row["restored"] == pytest.approx(float(direct / (clean - corrupted)), rel=0.01, abs=1e-4)


def test_blocks_that_scale_the_stream_have_no_direct_path():
    model = tiny_model("zaya")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "residual_scale" in name:
                parameter.mul_(0.8)
    for subject in (load(model), load(tiny_model("minimax")), load(tiny_model("openai-gpt"))):
        refused(partial(path_patching, subject, FEW_CLEAN, FEW_CORRUPTED, metric=difference, progress=False))


@pytest.mark.parametrize("name", ["gated_elements", "afmoe", "granitemoehybrid", "granitemoeshared", "granitemoe_swa"])
def test_what_heads_write_and_the_update_make_up_what_a_block_adds(name):
    subject = SUBJECTS.get(name, lambda: load(tiny_model(name)))()
    with frozen(subject, FEW_CLEAN) as run:
        layer, x = 1, run.trace["x"]
        added, written = (x[:, layer + 1] - x[:, layer]) - run.trace["mlp"][:, layer], run.writes(layer).sum(0)
    torch.testing.assert_close(written, added, rtol=1e-4, atol=1e-5 * float(x.abs().max()))
