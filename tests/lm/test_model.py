from dataclasses import replace
from math import inf

import pytest
import torch
from lm.family import SPECS, logits_of, model_of, tokens
from refusals import refused
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.loss.loss_utils import ForCausalLMLoss

from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.lm import model as blocked
from sinkinterp.lm.block import Nothing, SinkToken
from sinkinterp.lm.model import IGNORED, LMSpec, SinkConfig, blocked_loss, build
from sinkinterp.lm.variants import VARIANTS, variants
from sinkinterp.measurement.measure import measure


def test_the_default_variant_is_llama():
    model = build(SPECS["llama"])
    llama = model.to_llama()
    assert isinstance(llama, LlamaForCausalLM)
    torch.testing.assert_close(llama.eval()(tokens()).logits, model.eval()(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(SPECS) - {"llama"}))
def test_what_is_not_llama_is_not_exported(name):
    refused(lambda: model_of(name).to_llama())


def test_one_seed_gives_one_model_and_leaves_the_callers_randomness_alone():
    before = torch.get_rng_state()
    first, again, other = (build(SPECS["softmax"], seed).lm_head.weight for seed in (3, 3, 4))
    assert first.equal(again) and not first.equal(other) and torch.get_rng_state().equal(before)


K_BIAS, TOO_MANY = SinkConfig(spec=SPECS["k_bias"].to_dict()), torch.zeros(1, 20, dtype=torch.long)
REFUSED = [
    (lambda: build(SPECS["softmax"])(TOO_MANY), "context of 19"),
    (lambda: LMSpec(d_model=42, n_heads=5), "multiple"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_models_that_would_compute_something_else_are_refused(make, message):
    refused(make, message)


def test_transformers_own_attention_does_not_compute_our_slots():
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        AutoModelForCausalLM.from_config(K_BIAS, attn_implementation="sdpa")


def test_every_row_of_the_study_is_made_of_any_base():
    base = LMSpec(vocab=97, d_model=112, n_layers=2, n_heads=8, n_ctx=19)
    rows = variants(base)
    assert rows["softmax"] == rows["rotary"] == rows["heads_8"] == rows["llama"] == base
    assert set(VARIANTS) <= set(rows)
    assert all(spec.vocab == 97 and spec.n_layers == 2 for spec in rows.values())


def test_a_model_with_more_symbols_has_a_loss_and_survives_a_checkpoint(tmp_path):
    model = build(SPECS["softmax"])
    model.resize_token_embeddings(101)
    last = torch.full((1, 4), 100)
    assert model(last, labels=last).loss.isfinite()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == loaded.config.lm.vocab == 101
    assert all(ours.equal(theirs) for ours, theirs in zip(model.parameters(), loaded.parameters(), strict=True))


@torch.no_grad()
def test_transformers_forms_of_asking_for_outputs_are_understood():
    model, logits = model_of("softmax"), logits_of("softmax")
    assert model(tokens(), return_dict=False)[0].equal(logits)
    torch.testing.assert_close(model(tokens(), logits_to_keep=torch.tensor([2, 7])).logits, logits[:, [2, 7]])


NAMES = ["no_position", "sinusoidal", "softmax", "llama", "post_norm", "sigmoid", "mlp_kernel_norm", "softpick"]
NAMES += ["linear_norm", "sigmoid_p2", "gated", "v_bias", "qk_norm", "heads_added"]


def with_and_given(name):
    """A model with a sink token, and one that is given the same vector as its first embedding."""
    spec = replace(SPECS[name], before=SinkToken(0.7))
    model, plain = build(spec), build(replace(spec, before=Nothing(), n_ctx=20))
    weights = model.state_dict()
    vector = weights.pop("model.before.weight")
    plain.load_state_dict(weights)
    return model, plain, torch.cat((vector.expand(2, -1, -1), model.model.embed_tokens(tokens())), 1)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_sink_token_is_a_first_embedding_exactly(name):
    model, plain, embeddings = with_and_given(name)
    given = plain(inputs_embeds=embeddings).logits[:, 1:]
    torch.testing.assert_close(model(tokens()).logits, given, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_it_draws_is_reported_as_the_slots_and_position_zero_is_a_token():
    model, plain, embeddings = with_and_given("llama")
    report = measure(HuggingFaceSubject(model), tokens())
    patterns = torch.stack(plain(inputs_embeds=embeddings, output_attentions=True).attentions, 1)[..., 1:, :]
    torch.testing.assert_close(report.slot_importance, patterns[..., 0].mean(-1))
    torch.testing.assert_close(report.importance[..., 0], patterns[..., 1].mean(-1))


@torch.no_grad()
def test_its_own_residual_stream_can_be_followed():
    model, plain, embeddings = with_and_given("llama")
    states = plain.model(inputs_embeds=embeddings, output_hidden_states=True).hidden_states
    stream = model.model.before.stream(model.model.layers, model.model.position)
    assert stream.shape == (2, 42)
    torch.testing.assert_close(stream[0], states[1][0, 0])


VOCAB = 11


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(3, 7, 5, generator=generator).to(dtype).requires_grad_()
    unembed = torch.randn(VOCAB, 5, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(VOCAB, (3, 7), generator=generator)
    labels[0, :4] = labels[2, 6] = IGNORED
    return hidden, unembed, labels


def transformers_loss(hidden, unembed, labels, count=None):
    return ForCausalLMLoss(hidden @ unembed.T, labels, VOCAB, count)


def loss_and_gradients(function, *operands):
    loss = function(*operands)
    return loss, *torch.autograd.grad(loss * 3, operands[:2])


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *(x.numel() for x in tensors)])
        return out


@pytest.mark.parametrize("count", [None, 5, torch.tensor(23)])
@pytest.mark.parametrize("logits", [1, VOCAB, 4 * VOCAB + 3, inf])
def test_blocks_of_any_size_give_the_loss_and_the_gradient_of_transformers(monkeypatch, logits, count):
    monkeypatch.setitem(blocked.BLOCK, "cpu", logits if logits < inf else 10**6)
    want = loss_and_gradients(transformers_loss, *operands(), count)
    torch.testing.assert_close(loss_and_gradients(blocked_loss, *operands(), count), want)


def test_the_same_bits_as_transformers_where_all_logits_fit_in_a_block():
    pairs = zip(*(loss_and_gradients(f, *operands()) for f in (blocked_loss, transformers_loss)), strict=True)
    assert all(ours.equal(theirs) for ours, theirs in pairs)


def test_logits_beyond_a_block_are_never_held(monkeypatch):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 2 * VOCAB)
    with LargestTensor() as largest:
        loss_and_gradients(blocked_loss, *operands())
    assert largest.elements == 3 * 7 * 5  # the hidden states
    with LargestTensor() as largest:
        loss_and_gradients(transformers_loss, *operands())
    assert largest.elements == 3 * 7 * VOCAB


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_bf16_rounds_as_transformers_loss_does(monkeypatch, weights):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 2 * VOCAB)
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        ours = loss_and_gradients(blocked_loss, *operands(weights))
        theirs = loss_and_gradients(transformers_loss, *operands(weights))
    exact = loss_and_gradients(transformers_loss, *operands(torch.float64))
    for our, their, want in zip(ours, theirs, exact, strict=True):
        assert our.dtype == their.dtype
        assert (our - want).abs().max() <= 2 * (their - want).abs().max()


def test_a_label_that_is_no_symbol_is_refused_as_transformers_does(monkeypatch):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 2 * VOCAB)
    for label in (-1, VOCAB):
        hidden, unembed, labels = operands()
        labels[1, 3] = label
        for function in (blocked_loss, transformers_loss):
            with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
                function(hidden, unembed, labels)


def test_scaled_float16_gradients_of_a_long_batch_do_not_underflow(monkeypatch):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 2 * VOCAB)
    scale, count = 2.0**16, 10**6
    exact, half = operands(torch.float64), operands(torch.float16)
    wanted = torch.autograd.grad(transformers_loss(*exact, count) * scale, exact[:2])
    for our, want in zip(torch.autograd.grad(blocked_loss(*half, count) * scale, half[:2]), wanted, strict=True):
        torch.testing.assert_close(our.double(), want, rtol=0, atol=2e-3 * want.abs().max().item())


def test_a_frozen_unembedding_lets_the_gradient_through(monkeypatch):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 2 * VOCAB)
    hidden, unembed, labels = operands()
    blocked_loss(hidden, unembed.requires_grad_(False), labels).backward()
    want, _ = torch.autograd.grad(transformers_loss(*(again := operands())), again[:2])
    torch.testing.assert_close(hidden.grad, want)
    assert unembed.grad is None


def test_a_model_that_skips_its_logits_has_the_same_loss_and_gradients(monkeypatch):
    monkeypatch.setitem(blocked.BLOCK, "cpu", 300)
    tokens = torch.randint(97, (3, 13), generator=torch.Generator().manual_seed(0))
    ours, theirs = build(SPECS["softmax"]), build(SPECS["softmax"])
    without, whole = ours(tokens, labels=tokens, skip_logits=True), theirs(tokens, labels=tokens)
    assert without.logits is None and whole.logits.shape == (3, 13, 97)
    without.loss.backward(), whole.loss.backward()
    torch.testing.assert_close(without.loss, whole.loss)
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our.grad, their.grad)
    assert ours(tokens, skip_logits=True).logits.equal(theirs(tokens).logits)  # nothing to skip to without labels


@pytest.mark.parametrize("pieces", [2, 3])
def test_transformers_trainer_reports_the_same_losses_in_pieces_of_a_batch(pieces, tmp_path):
    losses = []
    for accumulated in (1, pieces):
        args = TrainingArguments(
            output_dir=tmp_path, per_device_train_batch_size=6 // accumulated,
            gradient_accumulation_steps=accumulated, max_steps=2, logging_steps=1, report_to=[], disable_tqdm=True,
            use_cpu=True, save_strategy="no",
        )  # fmt: skip
        tokens = torch.randint(97, (12, 13), generator=torch.Generator().manual_seed(0))
        tokens_and_labels = [{"input_ids": row, "labels": row} for row in tokens]
        trainer = Trainer(build(SPECS["softmax"]), args, train_dataset=tokens_and_labels)
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)  # the Trainer rounds to four digits
