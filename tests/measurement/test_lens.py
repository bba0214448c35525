"""What parts write into the logits of an answer sums to the difference of logits, and is what the weights say."""

import pytest
import torch
from backends.zoo import model_of, subject_of
from measurement.prompts import CLEAN, CORRUPTED, RIGHT, WRONG, N, T, mapped
from refusals import refused

import sinkinterp as si
from sinkinterp.interventions import ChangeMLP, ChangeOutputs, ChangeResidual
from sinkinterp.measurement.lens import logit_parts
from sinkinterp.measurement.patching import first_alpha, logit_difference, loss_at

RIGHTS, WRONGS = torch.tensor([11, 2, 5]), torch.tensor([13, 7, 17])
FAMILIES = ["gpt2", "llama with grouped queries", "gemma3", "opt", "qwen3-moe", "pythia", "gpt-oss with sink logits"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("position", [-1, 4])
def test_parts_sum_to_the_difference_of_the_logits_of_transformers(name, position):
    found = logit_parts(subject_of(name), CLEAN, RIGHTS, WRONGS, position)
    with torch.no_grad():
        logits = model_of(name)(CLEAN, attention_mask=torch.ones_like(CLEAN)).logits[:, position]
    expected = logits[torch.arange(N), RIGHTS] - logits[torch.arange(N), WRONGS]
    torch.testing.assert_close(sum(found.values()), expected, rtol=1e-4, atol=1e-5)
    heads = {f"head {layer}.{head}" for layer in range(3) for head in range(4)}
    assert heads | {f"MLP {layer}" for layer in range(3)} | {"embedding"} < found.keys()


@torch.no_grad()
def test_a_heads_part_is_its_output_through_the_weights_over_the_norms_scale():
    model, outputs, stream = model_of("gpt2"), [], []
    for block in model.transformer.h:
        block.attn.c_proj.register_forward_pre_hook(lambda module, args: outputs.append(args[0][:, -1]))
    model.transformer.ln_f.register_forward_pre_hook(lambda module, args: stream.append(args[0][:, -1]))
    model(CLEAN)
    scale = (stream[0].var(-1, correction=0) + model.transformer.ln_f.eps).rsqrt()
    direction = (model.lm_head.weight[RIGHTS] - model.lm_head.weight[WRONGS]) * model.transformer.ln_f.weight
    found = logit_parts(subject_of("gpt2"), CLEAN, RIGHTS, WRONGS)
    for layer in range(3):
        for head in range(4):
            at = slice(12 * head, 12 * head + 12)
            written = outputs[layer][:, at] @ model.transformer.h[layer].attn.c_proj.weight[at]
            written = written - written.mean(-1, keepdim=True)
            expected = (written * direction).sum(-1) * scale
            torch.testing.assert_close(found[f"head {layer}.{head}"], expected, rtol=1e-4, atol=1e-6)


def test_the_direct_column_is_the_change_of_parts_over_the_gap_at_the_place_that_is_read():
    subject, metric = subject_of("gpt2"), logit_difference(RIGHT, WRONG, -2)
    ids = torch.full((N,), RIGHT), torch.full((N,), WRONG)
    clean, broken = (logit_parts(subject, tokens, *ids, -2) for tokens in (CLEAN, CORRUPTED))
    gap = sum(clean.values()).mean() - sum(broken.values()).mean()
    by_head = mapped(subject, site=ChangeOutputs(), metric=metric, direct=True, by=("layer", "head"))
    for row in by_head.records():
        name = f"head {row['layer']}.{row['head']}"
        expected = (clean[name] - broken[name]).mean() / gap
        assert row["direct"] == pytest.approx(expected.item(), rel=1e-3, abs=1e-5)
    by_place = mapped(subject, site=ChangeMLP(), metric=metric, direct=True)
    for row in by_place.records():
        name = f"MLP {row['layer']}"
        expected = (clean[name] - broken[name]).mean() / gap if row["position"] == T - 2 else torch.tensor(0.0)
        assert row["direct"] == pytest.approx(expected.item(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("site", "metric"),
    [(ChangeResidual(), logit_difference(1, 2)), (ChangeOutputs(), loss_at()), (ChangeMLP(), first_alpha())],
)
def test_other_sites_and_other_metrics_have_no_direct_part(site, metric):
    refused(lambda: mapped(subject_of("gpt2"), site=site, metric=metric, direct=True), "direct")


def test_logits_behind_a_softcap_are_refused():
    model = model_of("gemma2 with softcap")
    model.config.final_logit_softcapping = 0.05
    refused(lambda: logit_parts(si.load(model), CLEAN, RIGHTS, WRONGS))
