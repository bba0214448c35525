"""Scores scaled by position, and normalisers that know it: both forms, in a call, in a model and as a patch."""

from dataclasses import dataclass, replace

import pytest
import torch
from attention.layouts import band, layouts, random_mask
from lm.family import SPECS, tokens

from sinkinterp.attention.kernels import SOFTMAX, Kernel, LogLength, Normaliser, Sigmoid, log_total
from sinkinterp.attention.masks import key_blocks
from sinkinterp.attention.slots import SinkLogit
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.interventions import PatchNormalization
from sinkinterp.interventions.edit import description
from sinkinterp.lm.model import build
from sinkinterp.spec import Spec

BAND = band(11, 4)
SSMAX = Kernel(scaling=LogLength(0.7))


@dataclass(frozen=True)
class AnnealedSum(Normaliser):
    """No normalisation at position 0, the sum of the row from position 5 on."""

    def power(self, queries):
        return (queries.positions / 5).clamp(max=1)

    def __call__(self, sim, queries):
        return sim / sim.sum(-1, keepdim=True) ** self.power(queries)[:, None]

    def log_size(self, blocks, queries):
        return log_total(log_sim for log_sim, _ in blocks) * self.power(queries)


KERNELS = {"ssmax": SSMAX, "annealed": Kernel(similarity=Sigmoid(), normaliser=AnnealedSum(), scaling=LogLength())}
FIELDS = layouts(11, 4) | {
    "a mask of each head": {"mask": random_mask(11)},
    "sink logit in a window": {"mask": BAND, "slot": SinkLogit(torch.randn(6))},
    "after a cache": {"queries": 3, "keys": 7},
}


def test_a_row_worked_by_hand(make_call):
    call = make_call(1, 1, queries=3, d_head=1, batch=1, scale=1.0, kernel=Kernel(scaling=LogLength(2.0)))
    call = replace(call, q=torch.ones(1, 1, 3, 1), k=torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3, 1))
    rows = [[1, 0, 0], [4 / 20, 16 / 20, 0], [9 / 91, 81 / 91, 1 / 91]]  # exp(2 log n * score): powers of n^2
    torch.testing.assert_close(call.pattern()[0, 0], torch.tensor(rows))
    torch.testing.assert_close(call.column_mass()[0, 0], torch.tensor(rows).sum(0))


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_streamed_form_is_the_dense_one(make_call, monkeypatch, kernel, fields):
    monkeypatch.setattr(key_blocks, "__defaults__", (3,))
    call = make_call(kernel=kernel, **fields)
    n = call.k.shape[2]
    dense = call.pattern()
    torch.testing.assert_close(call.column_mass(), dense[..., -n:].sum(2), rtol=1e-4, atol=1e-5)
    rows, keys = slice(1, 3), torch.tensor([4, 0])
    torch.testing.assert_close(call.weights_at(keys, rows), dense[..., -n:][:, :, rows, keys], rtol=1e-4, atol=1e-6)
    if call.slot is not None:
        torch.testing.assert_close(call.slot_weights(), dense[..., 0], rtol=1e-4, atol=1e-6)
    assert not call.is_fused
    torch.testing.assert_close(call.output(), call.mix(dense))


def test_ssmax_is_the_softmax_of_scores_times_s_log_n(make_call):
    call = make_call(mask=BAND)
    scores = call.scores() * 0.7 * BAND.sum(-1).float().log()[..., None]
    by_hand = scores.masked_fill(~BAND, -torch.inf).softmax(-1)
    patched = PatchNormalization(SSMAX).call(call)
    torch.testing.assert_close(patched.pattern(), by_hand)
    torch.testing.assert_close(patched.output(), call.mix(by_hand))
    assert patched.is_normalised and patched.proxy().pattern().allclose(by_hand)


def test_a_query_that_sees_nothing_gives_nothing(make_call):
    call = make_call(kernel=SSMAX, mask=BAND & (torch.arange(11) != 4)[:, None])
    assert call.pattern()[:, :, 4].eq(0).all() and call.column_mass().isfinite().all()


@torch.no_grad()
def test_a_trained_model_and_a_patched_one_agree():
    spec = replace(SPECS["llama"], attention=replace(SPECS["llama"].attention, kernel=SSMAX))
    model, plain = build(spec), build(SPECS["llama"])
    plain.load_state_dict(model.state_dict())
    patched = HuggingFaceSubject(plain).run(tokens(), edits=[PatchNormalization(SSMAX)]).logits
    torch.testing.assert_close(patched, model(tokens()).logits)
    assert not patched.allclose(plain(tokens()).logits)


def test_a_kernel_without_scaling_is_written_as_before_there_were_scalings():
    kernel = Kernel(similarity=Sigmoid())
    assert "scaling" not in kernel.to_dict() and kernel.to_dict() != SSMAX.to_dict()
    assert "Unscaled" not in description(PatchNormalization(kernel))
    assert "LogLength(0.7)" in description(PatchNormalization(SSMAX))
    assert Spec.from_dict(SSMAX.to_dict()) == SSMAX and not SSMAX.is_softmax and SOFTMAX.is_softmax
