"""The loss in blocks equals transformers' loss, with its gradient, and never holds all logits."""

from math import inf

import pytest
import torch
from lm.family import SPECS
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Trainer, TrainingArguments
from transformers.loss.loss_utils import ForCausalLMLoss

from sinkinterp.lm import model as blocked
from sinkinterp.lm.model import IGNORED, blocked_loss, build

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
            output_dir=tmp_path,
            per_device_train_batch_size=6 // accumulated,
            gradient_accumulation_steps=accumulated,
            max_steps=2,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            save_strategy="no",
        )
        tokens = torch.randint(97, (12, 13), generator=torch.Generator().manual_seed(0))
        tokens_and_labels = [{"input_ids": row, "labels": row} for row in tokens]
        trainer = Trainer(build(SPECS["softmax"]), args, train_dataset=tokens_and_labels)
        trainer.train()
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[1] == pytest.approx(losses[0], abs=2e-4)  # the Trainer rounds to four digits
