import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from backends.zoo import CONFIGS, assert_equal_reports, bare_logits, model_of, tokens_of
from nnsight import NNsight
from refusals import refused

import sinkinterp as si
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.nnsight import NNsightSubject

every_model = pytest.mark.parametrize("name", CONFIGS)


# one of each way into the call: rotation, bias, mask, slot, map of vectors, and what stands beside it
OUR_VARIANTS = ["llama", "t5", "alibi", "prefix_2", "k_bias", "sink_token", "sink_logit", "mlp_kernel_norm", "softpick"]
OUR_VARIANTS += ["sigmoid", "window", "gated", "qk_norm", "heads_added", "post_norm"]


def test_reads_of_our_variants_agree_with_hugging_face():
    # in a process of its own: the shape checks of the tests wrap our forward, whose source nnsight reads
    code = """
from dataclasses import replace
import torch
import sinkinterp as si
from sinkinterp.lm.model import build
tokens = torch.randint(64, (3, 13))
for name in NAMES:
    model = build(replace(si.VARIANTS[name], n_layers=2, n_heads=2))
    ours, theirs = (si.measure(si.load(model, backend=backend), tokens) for backend in ("nnsight", "huggingface"))
    for field in ("importance", "raw_importance", "residual_norms", "key_norms", "value_norms"):
        torch.testing.assert_close(getattr(ours, field), getattr(theirs, field), rtol=0, atol=1e-5)
    assert (ours.slot_importance is None) == (name not in ("k_bias", "sink_token", "sink_logit"))
    print(name)
"""
    code = f"NAMES = {OUR_VARIANTS}\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == OUR_VARIANTS


@every_model
def test_logits_with_reads_are_the_bare_models_bit_for_bit(name):
    model, tokens = model_of(name), tokens_of()
    bare = bare_logits(model, tokens)
    assert NNsightSubject(model).run(tokens, reads={"mass": lambda call: call.column_mass()}).logits.equal(bare)


def test_the_backend_is_recognised_from_the_object():
    model = model_of("gpt2")
    assert type(si.load(NNsight(model))) is NNsightSubject
    assert type(si.load(model)) is HuggingFaceSubject
    assert type(si.load(model, backend="nnsight")) is NNsightSubject


def test_a_folder_runs_on_either_backend(tmp_path):
    model_of("llama").save_pretrained(tmp_path)
    assert_equal_reports(*(si.measure(si.load(tmp_path, backend=b), tokens_of()) for b in ("nnsight", "huggingface")))


def test_an_unknown_backend_and_a_wrong_one_are_refused_by_name():
    refused(lambda: si.load(model_of("llama"), backend="jax"), "jax", "huggingface, nnsight")
    refused(lambda: si.load(NNsight(model_of("llama")), backend="huggingface"), "huggingface")
    refused(lambda: si.load(torch.nn.Linear(3, 5)), "Linear")


def test_only_the_registry_knows_this_backend():
    package = Path(si.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    imports = re.compile(r"^\s*(from|import) .*\bnnsight\b", re.MULTILINE)
    assert {name for name, text in texts.items() if imports.search(text)} == {"backends/nnsight.py"}
    assert texts["backends/load.py"].count('_of, "nnsight"') == 1
