import copy
import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from backends.zoo import CONFIGS, VOCAB, assert_equal_reports, bare_logits, model_of, subject_of, tokens_of
from nnsight import NNsight
from refusals import refused
from transformers import AutoModelForCausalLM, GPT2Config

import sinkinterp as si
from sinkinterp.backends.bridge import bridge_of
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.backends.nnsight import NNsightSubject
from sinkinterp.backends.subject import Subject
from sinkinterp.backends.transformer_lens import TransformerLensSubject
from sinkinterp.lm.attention import SinkAttention
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure

every_model = pytest.mark.parametrize("name", CONFIGS)


def hooks_of(bridge):
    points = {name: len(point.fwd_hooks) for name, point in bridge.hook_dict.items()}
    return points, [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in bridge.original_model.modules()]


def logits_of(bridge):
    with torch.no_grad():
        return bridge(tokens_of(), return_type="logits")


@every_model
def test_a_bridge_over_a_copy_shows_the_patterns_of_hugging_face_and_is_left_as_it_was_found(name):
    model = model_of(name)
    weights, modules = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    attention, bridge = model.config._attn_implementation, bridge_of(model)
    assert [type(m) for m in model.modules()] == modules and model.config._attn_implementation == attention
    assert all(weights[key].equal(value) for key, value in model.state_dict().items())
    before, hooks = logits_of(bridge), hooks_of(bridge)
    ours, theirs = TransformerLensSubject(bridge), subject_of(name)
    assert ours.shape == theirs.shape and isinstance(ours, Subject)
    traces = [subject.run(tokens_of(), reads={"pattern": lambda call: call.pattern()}) for subject in (ours, theirs)]
    torch.testing.assert_close(*(trace["pattern"] for trace in traces), rtol=0, atol=1e-5)
    with pytest.raises(ZeroDivisionError):
        ours.run(tokens_of(), reads={"broken": lambda call: 1 / 0})
    assert hooks_of(bridge) == hooks
    attending = [block.attn for block in bridge.blocks if hasattr(block, "attn")]
    assert attending and all(attention._pattern is None for attention in attending)
    assert traces[0].logits.equal(before) and logits_of(bridge).equal(before)


def test_a_hook_of_the_user_stays_and_is_measured():
    model, bridge = model_of("gpt2"), bridge_of(model_of("gpt2"))
    bridge.add_hook("pos_embed.hook_out", lambda tensor, hook: torch.zeros_like(tensor))
    hooks = hooks_of(bridge)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    reports = [measure(subject, tokens_of()) for subject in (TransformerLensSubject(bridge), HuggingFaceSubject(model))]
    assert_equal_reports(*reports)
    assert hooks_of(bridge) == hooks


def halve_scores(bridge, first):
    """Of all queries from the first on."""
    halved = lambda tensor, hook: torch.cat((tensor[:, :, :first], tensor[:, :, first:] * 0.5), 2)  # noqa: E731
    bridge.add_hook("blocks.1.attn.hook_attn_scores", halved)


def make_infinite(bridge):
    bridge.original_model.model.layers[1].mlp.down_proj.weight.data[3, 3] = torch.inf


REFUSED = {
    "compatibility mode": ("gpt2", lambda bridge: bridge.enable_compatibility_mode(), "weights"),
    "processed weights": ("gpt2", lambda bridge: bridge.process_weights(), "weights"),
    "no pattern": ("opt", lambda bridge: bridge.original_model.set_attn_implementation("sdpa"), "OPTForCausalLM"),
    "scores that the hooks do not make up": ("llama", lambda bridge: halve_scores(bridge, 0), "hook_attn_scores"),
    "scores of later queries": ("llama", lambda bridge: halve_scores(bridge, 3), "hook_attn_scores"),
    "activations that are not finite": ("llama", make_infinite, "block 1"),
}


@pytest.mark.parametrize(("name", "spoil", "word"), REFUSED.values(), ids=REFUSED)
def test_a_bridge_that_would_be_measured_wrong_is_refused(name, spoil, word):
    bridge = bridge_of(model_of(name))
    spoil(bridge)
    refused(lambda: TransformerLensSubject(bridge), word)


@pytest.mark.parametrize("library", ["nnsight", "transformer_lens"])
def test_a_library_that_is_absent_is_one_line(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    refused(lambda: load(model_of("gpt2"), backend=library), f"pip install {library.replace('_', '-')}")


def test_a_model_that_transformer_lens_computes_differently_is_refused():
    odd = {"initializer_range": 0.5, "scale_attn_weights": False}
    config = GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, **odd)
    model = AutoModelForCausalLM.from_config(config).eval()
    refused(lambda: bridge_of(model))


def test_queries_that_cannot_be_rotated_are_refused(monkeypatch):
    bridge = bridge_of(model_of("pythia"))
    monkeypatch.delattr("transformers.models.gpt_neox.modeling_gpt_neox.apply_rotary_pos_emb")
    refused(lambda: TransformerLensSubject(bridge))


def test_our_default_variant_goes_through_its_llama_export():
    model = build(VARIANTS["llama"])
    tokens = torch.randint(64, (5, 13), generator=torch.Generator().manual_seed(0))
    ours, theirs = (measure(load(model, backend=backend), tokens) for backend in ("huggingface", "transformer_lens"))
    assert_equal_reports(ours, theirs)


# one of each way into the call: rotation, bias, mask, slot, map of vectors, and what stands beside it
OUR_VARIANTS = ["llama", "t5", "alibi", "prefix_2", "k_bias", "sink_token", "sink_logit", "mlp_kernel_norm", "softpick"]
OUR_VARIANTS += ["sigmoid", "window", "gated", "qk_norm", "heads_added", "post_norm"]


@pytest.mark.parametrize("name", OUR_VARIANTS)
def test_reads_of_our_variants_agree_with_hugging_face(name, monkeypatch):
    forward = inspect.unwrap(SinkAttention.forward)  # whose source nnsight reads, without the checks of shapes
    monkeypatch.setattr(SinkAttention, "forward", forward)
    model = build(replace(VARIANTS[name], n_layers=2, n_heads=2))
    tokens = torch.randint(64, (3, 13))
    ours, theirs = (measure(load(model, backend=backend), tokens) for backend in ("nnsight", "huggingface"))
    assert_equal_reports(ours, theirs)
    assert (ours.slot_importance is None) == (name not in ("k_bias", "sink_token", "sink_logit"))


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


def test_a_wrong_backend_is_refused_by_name():
    refused(lambda: si.load(NNsight(model_of("llama")), backend="huggingface"), "huggingface")


def test_only_the_registry_knows_this_backend():
    package = Path(si.__file__).parent
    texts = {path.relative_to(package).as_posix(): path.read_text() for path in package.rglob("*.py")}
    imports = re.compile(r"^\s*(from|import) .*\bnnsight\b", re.MULTILINE)
    assert {name for name, text in texts.items() if imports.search(text)} == {"backends/nnsight.py"}
    assert texts["backends/load.py"].count('_subject_by, "nnsight"') == 1
