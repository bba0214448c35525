"""Paths equal those of TransformerLens, those by hooks in plain PyTorch, and formulas worked by hand."""

from contextlib import ExitStack

import pytest
import torch
from backends.zoo import model_of
from measurement.prompts import CLEAN, CORRUPTED, difference
from refusals import refused

from sinkinterp.attention import sites
from sinkinterp.attention.sites import MLP, RESIDUAL
from sinkinterp.backends.load import load
from sinkinterp.interventions import Change, ChangeMLP, ChangeOutputs, ChangeResidual
from sinkinterp.measurement.path_patching import path_patching

N_HEADS, D_HEAD = 4, 12
READS = {"x": RESIDUAL.read(lambda x: x), "mlp": MLP.read(lambda x: x)}
# by family: the block list, and in a block the output map, the feed-forward layer, and what makes queries, keys, values
PARTS = {
    "gpt2": ("transformer.h", "attn.c_proj", "mlp", "attn.c_attn"),
    "llama": ("model.layers", "self_attn.o_proj", "mlp", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    "pythia": ("gpt_neox.layers", "attention.dense", "mlp", "attention.query_key_value"),
}
FROZEN = (((ChangeOutputs(), ChangeMLP()), True, True), (ChangeOutputs(), True, False), ((), False, False))
RECEIVERS = {"q": sites.QUERIES, "k": sites.KEYS, "v": sites.VALUES}


def receiver_of(what, layer, head):
    return Change(RECEIVERS[what], **{RECEIVERS[what].selector: [(layer, head)]})


def columns(family, what, head):
    """Where a head's queries, keys or values stand in what one module returns."""
    i = "qkv".index(what)
    start = {"gpt2": (i * N_HEADS + head), "llama": head, "pythia": 3 * head + i}[family] * D_HEAD
    return slice(start, start + D_HEAD)


def by_hooks(family, sender, what, receiver, frozen, freezes_mlps=True):
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
        if frozen or i == sender[0]:
            hooks.append((block.get_submodule(out).register_forward_pre_hook, lambda m, args, i=i: with_sender(i)))
        if frozen and freezes_mlps:
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
@pytest.mark.parametrize("what", RECEIVERS)
def test_a_path_equals_doing_it_by_hooks(family, what, as_users_run_it):
    subject, receiver = load(model_of(family)), receiver_of(what, 2, 1)
    for frozen_sites, frozen, freezes_mlps in FROZEN:
        table = path_patching(
            subject, CLEAN, CORRUPTED, sender=ChangeOutputs(layers=[0, 1]), receiver=receiver,
            frozen=frozen_sites,
            metric=difference, progress=False,
        )  # fmt: skip
        cells = {(row["layer"], row["head"]): row["restored"] for row in table.records()}
        for sender in ((0, 3), (1, 2)):
            expected = by_hooks(family, sender, what, (2, 1), frozen, freezes_mlps)
            assert cells[sender] == pytest.approx(expected, abs=1e-5), (frozen_sites, sender)


def test_a_sender_and_a_receiver_of_another_site_are_refused():
    subject = load(model_of("gpt2"))
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, sender=ChangeResidual()), "sender")
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, receiver=Change(sites.PATTERN, heads=[(1, 0)])))
    to = Change(sites.QUERIES, heads=[(1, 0)])
    refused(lambda: path_patching(subject, CLEAN, CORRUPTED, sender=ChangeMLP(layers=[1]), receiver=to), "not before")
