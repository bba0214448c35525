"""Propositions 1 to 4 of Gu et al. 2025 on random models: what one token repeated does."""

import pytest
import torch
from lm.family import SPECS

from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.lm.attention import buckets, slopes
from sinkinterp.lm.model import build

T = 17
REPEATED = torch.full((1, T), 41)
GAP = torch.arange(T)[:, None] - torch.arange(T)
FUTURE = GAP < 0


def patterns_of(model):
    with torch.no_grad():
        return torch.cat(model(REPEATED, output_attentions=True).attentions)


@pytest.mark.parametrize("name", ["no_position", "alibi", "t5", "bucket_index", "llama"])
def test_repeated_tokens_have_one_state_in_every_block(name):
    trace = HuggingFaceSubject(build(SPECS[name])).run(REPEATED, reads={"x": RESIDUAL.read(lambda x: x)})
    x = trace["x"]
    torch.testing.assert_close(x, x[:, :, :1].expand_as(x), rtol=1e-4, atol=1e-4)


def test_proposition_1_without_positions_attention_is_uniform():
    want = (~FUTURE).float() / torch.arange(1, T + 1)[:, None]
    for pattern in patterns_of(build(SPECS["no_position"])).flatten(0, 1):
        torch.testing.assert_close(pattern, want)


@pytest.mark.parametrize("name", ["t5", "bucket_index"])
def test_proposition_2_relative_positions_alone_make_the_pattern(name):
    model = build(SPECS[name])
    index = buckets(GAP[None], 32, 128)[0]
    bias = model.model.position.table.weight.T[:, index] if name == "t5" else index.float().expand(3, -1, -1)
    want = bias.detach().masked_fill(FUTURE, -torch.inf).softmax(-1)
    for pattern in patterns_of(model):
        torch.testing.assert_close(pattern, want, rtol=1e-4, atol=1e-5)


def test_proposition_3_alibi_alone_makes_the_pattern_and_favours_the_last_key():
    want = torch.stack([(-m * GAP).masked_fill(FUTURE, -torch.inf).softmax(-1) for m in slopes(3)])
    for pattern in patterns_of(build(SPECS["alibi"])):
        torch.testing.assert_close(pattern, want, rtol=1e-4, atol=1e-5)
        assert (pattern[:, 1:, 0] < pattern.diagonal(dim1=1, dim2=2)[:, 1:]).all()


def test_proposition_4_rotary_attention_is_bounded_by_the_norms_of_query_and_key():
    model = build(SPECS["llama"])
    calls = {"xi": lambda c: (c.q.norm(dim=-1) * c.k.norm(dim=-1)).amax(-1) * c.scale, "pattern": lambda c: c.pattern()}
    trace = HuggingFaceSubject(model).run(REPEATED, reads=calls)
    factor = (2 * trace["xi"]).exp()[..., None]
    bound = factor / (factor + torch.arange(T))  # row t of equation 28, t counted from 1
    largest = trace["pattern"].amax(-1)
    assert (largest <= bound * (1 + 1e-5)).all() and (bound[..., -1] < 1).all()


def test_learned_positions_tell_repeated_tokens_apart():
    model = build(SPECS["softmax"])
    row = patterns_of(model)[0, 0, -1]
    assert row.std() > 1e-3
