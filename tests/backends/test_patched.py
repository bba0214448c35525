"""si.patched: a model stays edited while its user runs it, and is exactly as it was afterwards."""

from functools import partial

import pytest
import torch
from backends import encoder_decoders, zoo
from backends.test_interventions import EDITS as EVERY_EDIT, MORE_EDITS, refusal
from nnsight import NNsight
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.backends.bridge import bridge_of
from sinkinterp.checks import InputError

TOKENS = zoo.tokens_of()
EDITS = (
    si.PatchNormalization(Sigmoid(), layers=[1]), iv.ChangeMLP(iv.Scale(0.5), positions=[0, 3]),
    iv.ChangeValues(iv.Zero(), positions=[0]), iv.ChangeResidual(iv.Scale(2.0), positions=[2]),
)  # fmt: skip


def edits_of(name):
    return (*EDITS, iv.SwapPositions(0, 4)) if name in zoo.LEARNED_POSITIONS else EDITS


@pytest.mark.parametrize("name", zoo.CONFIGS)
@torch.no_grad()
def test_a_patched_model_computes_what_a_measurement_with_the_same_edits_does_also_token_by_token(name):
    model, edits = zoo.model_of(name), edits_of(name)
    bare, before = model(TOKENS).logits, zoo.everything_of(model)
    with si.patched(model, *edits) as same:
        assert same is model
        edited, step = model(TOKENS).logits, model(TOKENS[:, :7], use_cache=True)
        steps = [step.logits]
        for token in TOKENS[:, 7:].split(1, 1):
            step = model(token, past_key_values=step.past_key_values, use_cache=True)
            steps.append(step.logits)
    torch.testing.assert_close(edited, zoo.subject_of(name).run(TOKENS, edits=edits).logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat(steps, 1), edited, rtol=0, atol=1e-5)
    assert (edited - bare).abs().max() > 1e-3
    assert model(TOKENS).logits.equal(bare) and zoo.everything_of(model) == before


def test_gradients_pass_through_an_edited_model_as_through_one_that_was_built_so():
    model = zoo.model_of("gpt2")
    with si.patched(model, iv.ChangeMLP(iv.Scale(0.5), layers=[1])):
        model(TOKENS).logits.logsumexp(-1).sum().backward()
    edited = model.transformer.h[0].attn.c_attn.weight.grad.clone()
    model.zero_grad()
    with torch.no_grad():
        for parameter in model.transformer.h[1].mlp.c_proj.parameters():
            parameter.mul_(0.5)
    model(TOKENS).logits.logsumexp(-1).sum().backward()
    torch.testing.assert_close(edited, model.transformer.h[0].attn.c_attn.weight.grad, rtol=1e-4, atol=1e-5)


def test_a_refused_patch_is_one_line_and_changes_nothing():
    model = zoo.model_of("gpt2")
    before = zoo.everything_of(model)
    unfit = {
        "edit": (model,),
        "layer 7": (model, iv.ZeroQueryBias(layers=[1]), iv.Temperature(2.0, layers=[7])),
        "Linear": (torch.nn.Linear(3, 3), iv.Temperature(2.0)),
        "layer 0": (zoo.model_of("llama"), iv.ZeroQueryBias()),
        "encoder": (encoder_decoders.model_of("t5"), iv.Temperature(2.0)),
    }
    for word, given in unfit.items():
        refused(si.patched(*given).__enter__, word)
    everything = torch.ones(1, 1, TOKENS.shape[1], TOKENS.shape[1], dtype=torch.bool)
    with si.patched(model, iv.Temperature(2.0)):
        refused(lambda: model(TOKENS, attention_mask=everything), "masks of its own")
    assert zoo.everything_of(model) == before and model.config.vocab_size == zoo.VOCAB


@torch.no_grad()
def test_arguments_without_their_names_are_read_as_with_them():
    model, padded = zoo.model_of("llama"), torch.ones_like(TOKENS)
    padded[:, 0] = 0
    added = iv.ChangeResidual(iv.Add(torch.ones(48)), layers=[1], positions=[0])
    for edit in (added, iv.SwapPositions(0, 4)):
        with si.patched(model, edit):
            whole, start = model(TOKENS).logits, model(TOKENS[:, :5], use_cache=True)
            ones = torch.ones_like(TOKENS)
            rest = model(TOKENS[:, 5:], ones, None, start.past_key_values, use_cache=True)
            torch.testing.assert_close(rest.logits, whole[:, 5:], atol=1e-5, rtol=0)
            alone = model(TOKENS[:, 1:]).logits
            torch.testing.assert_close(model(TOKENS, padded).logits[:, 1:], alone, atol=1e-5, rtol=0)
            with pytest.raises(TypeError, match="multiple values"):
                model(TOKENS, ones, attention_mask=ones)


def cached_in_a_bridge(bridge):
    logits, cache = bridge.run_with_cache(TOKENS)
    return logits, [cache[name] for name in cache if name.endswith("attn.hook_pattern")]


def saved_in_a_trace(envoy):
    with envoy.trace(TOKENS, output_attentions=True):
        output = envoy.output.save()
    return output.logits, output.attentions


def eager_envoy(model):
    model.set_attn_implementation("eager")
    return NNsight(model)


INSIDE = [(bridge_of, cached_in_a_bridge, name) for name in ("opt", "gpt-oss with sink logits")]
INSIDE.append((eager_envoy, saved_in_a_trace, "qwen2"))


@pytest.mark.parametrize(("wrap", "run", "name"), INSIDE)
@torch.no_grad()
def test_what_other_libraries_cache_inside_is_what_a_measurement_reads(wrap, run, name, as_users_run_it):
    model, read = wrap(zoo.model_of(name)), {"pattern": lambda call: call.pattern()[..., -call.k.shape[2] :]}
    subject, edits = si.load(model), [edit for edit in (*EVERY_EDIT, *MORE_EDITS) if not refusal(edit, name)]
    measured = [subject.run(TOKENS, reads=read, edits=[edit]) for edit in edits]
    assert len(edits) > 30
    with si.patched(model, lambda call: call):
        for edit, expected in zip(edits, measured, strict=True):
            with si.patched(model, edit):
                logits, patterns = run(model)
            found = torch.stack(list(patterns), 1)
            torch.testing.assert_close(found, expected["pattern"], rtol=0, atol=1e-5)
            torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_hooks_inside_a_patched_bridge_see_the_edits_and_change_what_they_made():
    bridge = bridge_of(zoo.model_of("gpt2"))
    half = replace_pattern_of_head_0(0.5)
    with si.patched(bridge, iv.Temperature(3.0)):
        logits = bridge.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", half)])
        generated = bridge.generate(TOKENS[:1, :5], max_new_tokens=3, do_sample=False, verbose=False, stop_at_eos=False)
    edits = (iv.Temperature(3.0), iv.Change(sites.PATTERN, iv.Scale(0.5), heads=[(1, 0)]))
    subject = si.load(bridge)
    torch.testing.assert_close(logits, subject.run(TOKENS, edits=edits).logits, rtol=1e-5, atol=1e-5)
    tokens = TOKENS[:1, :5]
    for _ in range(3):
        step = subject.run(tokens, edits=edits[:1]).logits[:, -1:].argmax(-1)
        tokens = torch.cat((tokens, step), 1)
    assert generated.equal(tokens)
    with (
        si.patched(bridge, iv.ChangeValues(iv.Zero(), positions=[0])),
        pytest.raises(InputError, match=r"a hook of yours changes blocks\.1\.attn\.hook_pattern"),
    ):
        bridge.run_with_hooks(TOKENS, fwd_hooks=[("blocks.1.attn.hook_pattern", half)])


def replace_pattern_of_head_0(factor):
    def hook(pattern, hook):
        pattern = pattern.clone()
        pattern[:, 0] *= factor
        return pattern

    return hook


@torch.no_grad()
def test_hooks_of_a_user_around_a_measurement_compose_or_are_named():
    bridge = bridge_of(zoo.model_of("gpt2"))
    subject = si.load(bridge)

    def twice(x, hook):
        return x * 2

    with bridge.hooks(fwd_hooks=[("blocks.1.attn.hook_v", twice), ("blocks.2.hook_resid_pre", twice)]):
        measured, by_hand = subject.run(TOKENS).logits, bridge(TOKENS)
    torch.testing.assert_close(measured, by_hand, rtol=1e-5, atol=1e-5)
    with bridge.hooks(fwd_hooks=[("blocks.1.attn.hook_pattern", replace_pattern_of_head_0(0.5))]):
        for measured in (subject, bridge):
            said = refused(partial(si.measure, measured, TOKENS), "blocks.1.attn.hook_pattern")
            assert "Hugging Face" not in said
    seen = []
    with bridge.hooks(fwd_hooks=[("blocks.1.attn.hook_pattern", lambda pattern, hook: seen.append(pattern.sum()))]):
        si.measure(subject, TOKENS)
    assert len(seen) == 1


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
def test_training_with_recomputed_blocks_is_refused():
    model = zoo.model_of("llama").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    with si.patched(model, EDITS[2]):
        refused(lambda: model(TOKENS), "gradient checkpointing")


def test_dropout_of_attention_is_refused_where_an_edit_computes_it():
    model = zoo.model_of("gpt2").train()
    with si.patched(model, EDITS[2]):
        refused(lambda: model(TOKENS), "without dropout")
        assert model.eval()(TOKENS).logits.isfinite().all()
    model.train()
    with si.patched(model, EDITS[3]):
        assert not model(TOKENS).logits.equal(model(TOKENS).logits)  # dropped at random, as without edits


@torch.no_grad()
def test_positions_are_given_by_the_user_or_by_an_edit():
    model, places = zoo.model_of("llama"), torch.arange(TOKENS.shape[1])[None]
    with si.patched(model, iv.SwapPositions(0, 4)):
        right = model(TOKENS).logits
        assert model(TOKENS, position_ids=places).logits.equal(right)
        refused(lambda: model(TOKENS, position_ids=places % 5), "position_ids")
