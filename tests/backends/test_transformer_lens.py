import copy
import inspect
from dataclasses import fields

import pytest
import torch
from backends.zoo import CONFIGS, SIZES, VOCAB, model_of, tokens_of
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    Qwen2Config,
    Qwen3Config,
)

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import load
from sinkinterp.backends.subject import Subject
from sinkinterp.backends.transformer_lens import TransformerLensSubject, bridge_of
from sinkinterp.errors import InputError
from sinkinterp.interventions.positions import ReplacePosition, SwapPositions
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure

every_model = pytest.mark.parametrize("name", CONFIGS)
MORE = {
    "qwen2 with key biases": Qwen2Config(**SIZES, num_key_value_heads=2),
    "qwen3 with normed keys": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=12),
    "gemma3 with normed keys and a window": Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=12, sliding_window=5
    ),
}


def both(model):
    return TransformerLensSubject(bridge_of(model)), HuggingFaceSubject(model)


def assert_equal_reports(ours, theirs):
    tensors = [f.name for f in fields(theirs) if isinstance(getattr(theirs, f.name), torch.Tensor)]
    assert len(tensors) >= 6 and ours.attention_layers == theirs.attention_layers
    assert (ours.slot_importance is None) == (theirs.slot_importance is None)
    for name in tensors:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-5)


@every_model
def test_all_reads_agree_with_hugging_face(name):
    assert_equal_reports(*(measure(subject, tokens_of()) for subject in both(model_of(name))))


@pytest.mark.parametrize("name", MORE)
def test_all_reads_of_further_families_agree_with_hugging_face(name):
    model = AutoModelForCausalLM.from_config(MORE[name]).eval()
    assert_equal_reports(*(measure(subject, tokens_of()) for subject in both(model)))


@every_model
def test_patterns_and_shapes_agree_with_hugging_face(name):
    ours, theirs = both(model_of(name))
    assert ours.shape == theirs.shape and isinstance(ours, Subject)
    patterns = [s.run(tokens_of(), calls={"pattern": lambda c: c.pattern()}).calls["pattern"] for s in (ours, theirs)]
    torch.testing.assert_close(*patterns, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"jamba with mamba layers"}))
@pytest.mark.parametrize("edit", [SwapPositions(0, 4), ReplacePosition(0, 4), ReplacePosition(4, 0)], ids=str)
def test_edits_of_positions_agree_with_hugging_face(name, edit):
    ours, theirs = (measure(subject, tokens_of(), edits=[edit]) for subject in both(model_of(name)))
    assert_equal_reports(ours, theirs)
    plain = measure(HuggingFaceSubject(model_of(name)), tokens_of())
    assert not torch.allclose(ours.importance, plain.importance, atol=1e-2)


def test_a_model_without_positions_refuses_a_swap():
    with pytest.raises(InputError, match="no positions that could be swapped"):
        measure(
            TransformerLensSubject(bridge_of(model_of("jamba with mamba layers"))),
            tokens_of(),
            edits=[SwapPositions(0, 4)],
        )


def hooks_of(bridge):
    points = {name: len(point.fwd_hooks) for name, point in bridge.hook_dict.items()}
    own = {
        name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in bridge.original_model.named_modules()
    }
    return points, own


def logits_of(bridge):
    with torch.no_grad():
        return bridge(tokens_of(), return_type="logits")


@every_model
def test_the_bridge_is_left_as_it_was_found(name):
    bridge = bridge_of(model_of(name))
    before, hooks = logits_of(bridge), hooks_of(bridge)
    subject = TransformerLensSubject(bridge)
    trace = subject.run(tokens_of(), calls={"mass": lambda call: call.column_mass()})
    assert hooks_of(bridge) == hooks
    attending = [block.attn for block in bridge.blocks if hasattr(block, "attn")]
    assert attending and all(attention._pattern is None for attention in attending)
    assert trace.logits.equal(before) and logits_of(bridge).equal(before)


def test_no_hooks_are_left_after_an_error():
    bridge = bridge_of(model_of("llama"))
    subject, hooks = TransformerLensSubject(bridge), hooks_of(bridge)
    with pytest.raises(ZeroDivisionError):
        subject.run(tokens_of(), calls={"broken": lambda call: 1 / 0})
    assert hooks_of(bridge) == hooks


def test_a_hook_of_the_user_stays_and_is_measured():
    model, bridge = model_of("gpt2"), bridge_of(model_of("gpt2"))
    bridge.add_hook("pos_embed.hook_out", lambda tensor, hook: torch.zeros_like(tensor))
    hooks = hooks_of(bridge)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    reports = [measure(subject, tokens_of()) for subject in (TransformerLensSubject(bridge), HuggingFaceSubject(model))]
    assert_equal_reports(*reports)
    assert hooks_of(bridge) == hooks


@every_model
def test_a_bridge_is_built_over_a_copy(name):
    model = model_of(name)
    before, modules = copy.deepcopy(model.state_dict()), [type(m) for m in model.modules()]
    attention = model.config._attn_implementation
    bridge_of(model)
    assert [type(m) for m in model.modules()] == modules and model.config._attn_implementation == attention
    assert all(before[key].equal(value) for key, value in model.state_dict().items())


def test_key_norms_of_grouped_queries_keep_the_kv_heads():
    report = measure(TransformerLensSubject(bridge_of(model_of("llama with grouped queries"))), tokens_of())
    assert report.key_norms.shape == report.value_norms.shape == (5, 3, 2, 17)


def test_half_precision_is_measured_in_single_precision():
    report = measure(TransformerLensSubject(bridge_of(model_of("llama").bfloat16())), tokens_of())
    assert report.importance.dtype == torch.float32 and report.protocol.dtype == "bfloat16"


def test_processed_weights_are_refused():
    for process in ("enable_compatibility_mode", "process_weights"):
        bridge = bridge_of(model_of("gpt2"))
        getattr(bridge, process)()
        with pytest.raises(InputError, match="norms are no longer the model's; boot the bridge again without"):
            TransformerLensSubject(bridge)


def test_a_delegated_model_that_shows_no_pattern_is_refused():
    bridge = bridge_of(model_of("opt"))
    bridge.original_model.set_attn_implementation("sdpa")
    with pytest.raises(InputError, match=r"OPTForCausalLM shows no pattern; .*use the Hugging Face backend"):
        TransformerLensSubject(bridge)


def test_scores_that_the_hooks_do_not_make_up_are_refused():
    bridge = bridge_of(model_of("llama"))
    bridge.add_hook("blocks.1.attn.hook_attn_scores", lambda tensor, hook: tensor * 0.5)
    with pytest.raises(InputError, match="do not give its logits; use the Hugging Face backend"):
        TransformerLensSubject(bridge)


def test_scores_of_later_queries_that_the_hooks_do_not_make_up_are_refused():
    bridge = bridge_of(model_of("llama"))
    halved = lambda tensor, hook: torch.cat((tensor[:, :, :3], tensor[:, :, 3:] * 0.5), 2)  # noqa: E731
    bridge.add_hook("blocks.1.attn.hook_attn_scores", halved)
    with pytest.raises(InputError, match="do not give its own pattern; use the Hugging Face backend"):
        TransformerLensSubject(bridge)


def test_a_model_that_transformer_lens_computes_differently_is_refused():
    model = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, initializer_range=0.5, scale_attn_weights=False)
    ).eval()
    with pytest.raises(InputError, match="gives other logits than under transformers; use the Hugging Face backend"):
        bridge_of(model)


def test_queries_that_cannot_be_rotated_are_refused(monkeypatch):
    bridge = bridge_of(model_of("pythia"))
    monkeypatch.delattr("transformers.models.gpt_neox.modeling_gpt_neox.apply_rotary_pos_emb")
    with pytest.raises(InputError, match=r"no rotated queries and keys; use the Hugging Face backend"):
        TransformerLensSubject(bridge)


def test_biased_scores_are_refused():
    model = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=4)).eval()
    with pytest.raises(InputError, match="Hugging Face backend"):
        TransformerLensSubject(bridge_of(model))


def test_activations_that_are_not_finite_are_placed():
    bridge = bridge_of(model_of("llama"))
    with torch.no_grad():
        bridge.original_model.model.layers[1].mlp.down_proj.weight[3, 3] = torch.inf
    with pytest.raises(InputError, match="after block 1 are not finite"):
        TransformerLensSubject(bridge)


def test_transformer_lens_is_imported_inside_functions_only():
    from sinkinterp.backends import transformer_lens

    top = [line for line in inspect.getsource(transformer_lens).splitlines() if line.startswith(("import", "from"))]
    assert not any("transformer_lens" in line for line in top)


def test_our_default_variant_goes_through_its_llama_export():
    model = build(VARIANTS["llama"])
    tokens = torch.randint(64, (5, 13), generator=torch.Generator().manual_seed(0))
    ours, theirs = (measure(load(model, backend=backend), tokens) for backend in ("huggingface", "transformer_lens"))
    assert_equal_reports(ours, theirs)


def test_variants_that_are_not_llama_are_refused_with_the_reason():
    with pytest.raises(InputError, match="only rotary positions"):
        load(build(VARIANTS["sigmoid"]), backend="transformer_lens")
