from copy import deepcopy

import pytest
import torch
from backends.zoo import CONFIGS, model_of
from typer.testing import CliRunner

from sinkinterp.attention.shapes import Gap
from sinkinterp.attention.sites import CALL
from sinkinterp.backends.nnsight import NNsightSubject
from sinkinterp.cli.main import app
from sinkinterp.measurement import parity as gate


@pytest.mark.parametrize("name", CONFIGS)
def test_backends_and_dense_eager_attention_agree_on_the_zoo(name):
    table = gate.parity(model_of(name), name)
    reads = {"importance", "bias_null", "extra.qk_angles", "extra.top_entries", "extra.loss"}
    assert reads <= set(table.frame["read"].tolist())
    assert {row["backend"] for row in table.records()} == {"dense eager attention", "nnsight", "transformer_lens"}
    assert gate.agrees(table) and all(row["verdict"] == "agrees" for row in table.records())


def test_a_backend_that_is_wrong_is_found_and_the_command_fails(monkeypatch, tmp_path):
    honest = NNsightSubject._pass

    def shifted(self, tokens, recorder, **positions):
        logits = honest(self, tokens, recorder, **positions)
        for row in recorder.answers[CALL].values():
            row |= {name: value + 1e-4 for name, value in row.items() if value.is_floating_point() and name != "excess"}
        return logits

    monkeypatch.setattr(NNsightSubject, "_pass", shifted)
    model_of("llama").save_pretrained(tmp_path)
    result = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert result.exit_code == 1 and "DIFFERS" in result.output


@pytest.mark.parametrize("name", ["gpt2", "llama with grouped queries"])
def test_backends_agree_on_a_model_with_scores_of_hundreds(name):
    model = deepcopy(model_of(name))
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "q_proj" in key:
                weight.mul_(30)
            if "c_attn.weight" in key:
                weight[:, :48] *= 30
    table = gate.parity(model, "sharp")
    assert gate.agrees(table), table.to_markdown()


def test_a_layer_of_small_numbers_is_not_excused_by_one_of_large_numbers():
    right = torch.stack([torch.full((3, 2, 5), size) for size in (1.0, 1e5)], 1)  # sequence layer head pos
    for layer, off, gap in ((0, 0.1, Gap(0.1, 1.0)), (1, 0.1, Gap(0.1, 1e5))):
        given = right.clone()
        given[1, layer, 1, 4] += off
        found = gate._worst_gap(given, right)
        assert (found.difference, found.size) == pytest.approx((gap.difference, gap.size), rel=0.1)
        assert found.is_within(gate.TOLERANCE) == (layer == 1)


def test_a_refusal_is_named_and_is_no_difference(monkeypatch):
    def refuse(self, *args):
        raise gate.InputError("cannot do this; use the Hugging Face backend")

    monkeypatch.setattr(NNsightSubject, "check_ids", refuse)
    table = gate.parity(model_of("llama"), "llama")
    (row,) = table.where(backend="nnsight").records()
    assert row["verdict"] == "refused" and "use the Hugging Face backend" in row["read"] and gate.agrees(table)
