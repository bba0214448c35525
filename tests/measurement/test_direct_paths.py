"""A direct path goes through nothing that another block adds: equal to following every sum in plain PyTorch."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from backends.encoder_decoders import model_of, source_of
from measurement.direct_paths import direct_logits, direct_run
from measurement.prompts import difference
from refusals import refused

from sinkinterp.attention import sites
from sinkinterp.backends.frozen import frozen
from sinkinterp.backends.load import load
from sinkinterp.interventions import Change, ChangeKeys, ChangeMLP, ChangeValues
from sinkinterp.interventions.changes import Put
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.patching import activations
from sinkinterp.measurement.path_patching import path_patching
from tools.families import tiny_model

FAMILIES = (
    "jamba", "bamba", "lfm2", "granitemoehybrid", "qwen3_next", "olmo_hybrid", "falcon_h1", "kimi_linear",
    "bailing_hybrid", "recurrent_gemma", "afmoe", "laguna", "gemma2", "gpt_neox", "llama",
)  # fmt: skip
GENERATOR = torch.Generator().manual_seed(5)
CLEAN, CORRUPTED = (torch.randint(3, 89, (2, 6), generator=GENERATOR) for _ in range(2))


def gated():
    torch.manual_seed(0)
    model = build(replace(VARIANTS["gated_elements"], vocab=97, n_heads=2, n_layers=3)).eval()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(4)  # so that gates are not all one half
    return load(model)


SUBJECTS = {name: lambda name=name: load(tiny_model(name)) for name in FAMILIES}
SUBJECTS |= {name: lambda name=name: load(model_of(name), encoder=source_of(name)) for name in ("whisper", "t5")}
SUBJECTS["gated_elements"] = gated


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_direct_path_passes_by_all_that_other_blocks_add(name):
    subject = SUBJECTS[name]()
    table = path_patching(subject, CLEAN, CORRUPTED, metric=difference, progress=False)
    cells = {(row["layer"], row["head"]): row["restored"] for row in table.records()}
    clean, corrupted = (difference(subject.run(tokens).logits).mean() for tokens in (CLEAN, CORRUPTED))
    layer, rounding = subject.shape.attention_layers[0], float(2e-7 / (clean - corrupted).abs())  # of logits near 1
    for head in (0, subject.shape.n_heads - 1):
        direct = difference(direct_logits(subject, CLEAN, CORRUPTED, layer, head)).mean()
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
    clean, corrupted = (difference(model(tokens).logits).mean() for tokens in (CLEAN, CORRUPTED))
    for hook in hooks:
        hook.remove()
    clean_gate, clean_gated, _, gate, gated, last = seen
    table = path_patching(model, CLEAN, CORRUPTED, metric=difference, progress=False)
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
    sent, clean_sent = (activations(ChangeMLP(), subject, tokens)[0].clone() for tokens in (CORRUPTED, CLEAN))
    sent[:, -1] = clean_sent[:, -1]
    reads = {what: lambda call, what=what: getattr(call, what) for what in RECEIVERS}
    trace = direct_run(subject, CORRUPTED, 0, ChangeMLP(Put({0: sent}), layers=[0]), reads=reads)
    clean, corrupted = (difference(subject.run(tokens).logits).mean() for tokens in (CLEAN, CORRUPTED))
    for what, received in RECEIVERS.items():
        table = path_patching(
            subject, CLEAN, CORRUPTED, sender=ChangeMLP(layers=[0], positions=[5]), receiver=received(layer, None),
            metric=difference, progress=False,
        )  # fmt: skip
        put = received(layer, Put({layer: trace[what][:, -1]}))
        direct = difference(subject.run(CORRUPTED, edits=[put]).logits).mean() - corrupted
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
        refused(partial(path_patching, subject, CLEAN, CORRUPTED, metric=difference, progress=False))


@pytest.mark.parametrize("name", ["gated_elements", "afmoe", "granitemoehybrid", "granitemoeshared", "granitemoe_swa"])
def test_what_heads_write_and_the_update_make_up_what_a_block_adds(name):
    subject = SUBJECTS.get(name, lambda: load(tiny_model(name)))()
    with frozen(subject, CLEAN) as run:
        layer, x = 1, run.trace["x"]
        added, written = (x[:, layer + 1] - x[:, layer]) - run.trace["mlp"][:, layer], run.writes(layer).sum(0)
    torch.testing.assert_close(written, added, rtol=1e-4, atol=1e-5 * float(x.abs().max()))
