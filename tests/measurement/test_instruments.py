"""What instruments answer, against the definitions written out on what transformers' own modules hand over."""

import pytest
import torch
from backends.zoo import CONFIGS, model_of, subject_of, tokens_of
from einops import einsum, rearrange

import sinkinterp as si
from sinkinterp.metrics import qk, residuals as massive
from sinkinterp.metrics.instruments import ALL, LOSS, MASSIVE
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.residuals import COSINE_TO_FIRST, KEY_RANK, UPDATE_RANK
from sinkinterp.report.heads import score_gaps_by_head


def residual_answers(x):
    """By hand, for one block: `sequence pos d_model`."""
    size, energy = x.abs(), x.square().mean(1)
    median = size.flatten(1).sort(-1).values[:, (size[0].numel() - 1) // 2]
    lengths = x.norm(dim=-1)
    return {
        massive.PEAK_OVER_MEDIAN: size.amax((1, 2)) / median,
        massive.MASSIVE_ENTRIES: ((size > 100) & (size >= 1000 * median[:, None, None])).sum((1, 2)),
        massive.KURTOSIS: energy.square().mean(-1) / energy.mean(-1).square(),
        COSINE_TO_FIRST: einsum(x, x[:, 0], "s p d, s d -> s p") / (lengths * lengths[:, :1]),
    }


def loss(logits, tokens):
    return -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.mark.parametrize("name", CONFIGS)
def test_residual_answers_and_losses_are_those_of_transformers_hidden_states_and_logits(name):
    subject, tokens = subject_of(name), tokens_of(13)
    report = si.measure(subject, tokens, instruments=(MASSIVE, LOSS))
    with torch.no_grad():
        theirs = subject.model(tokens, output_hidden_states=True)
    torch.testing.assert_close(report.extra(NEXT_TOKEN_LOSS), loss(theirs.logits, tokens), rtol=1e-4, atol=1e-4)
    for block, x in enumerate(theirs.hidden_states[:-1]):  # the last one is after the final norm
        torch.testing.assert_close(report.residual_norms[:, block], x.norm(dim=-1), rtol=1e-4, atol=1e-5)
        for metric, expected in residual_answers(x).items():
            torch.testing.assert_close(report.extra(metric)[:, block], expected, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def spiked():
    """The report of a GPT-2 with a massive activation from block 2 on, and what its modules handed over."""
    model, seen = model_of("gpt2"), {"qkv": [], "z": [], "residual": []}
    with torch.no_grad():
        model.transformer.h[1].mlp.c_proj.bias[7] = 5000.0
    report = si.measure(si.load(model), tokens_of(), instruments=ALL)
    for block in model.transformer.h:
        block.attn.c_attn.register_forward_hook(lambda module, given, out: seen["qkv"].append(out))
        block.attn.c_proj.register_forward_pre_hook(lambda module, given: seen["z"].append(given[0]))
        block.register_forward_pre_hook(lambda module, given: seen["residual"].append(given[0]))
    model.transformer.ln_f.register_forward_pre_hook(lambda module, given: seen["residual"].append(given[0]))
    with torch.no_grad():
        model(tokens_of())
    seen = {name: torch.stack(values, 1) for name, values in seen.items()}
    q, k, _ = rearrange(seen["qkv"], "s layer i (three h d) -> three s layer h i d", three=3, h=4)
    return report, seen | {"q": q, "k": k}


def test_a_spike_is_found_where_it_was_planted(spiked):
    report, seen = spiked
    for block in range(4):
        x = seen["residual"][:, block]
        for metric, expected in residual_answers(x).items():
            torch.testing.assert_close(report.extra(metric)[:, block], expected, rtol=1e-3, atol=1e-4)
        value, position, channel = report.extra(massive.TOP_ENTRIES)[:, block].unbind(-1)
        assert value.shape == (5, massive.KEPT)
        torch.testing.assert_close(value.abs(), x.abs().flatten(1).sort(descending=True).values[:, : massive.KEPT])
        torch.testing.assert_close(x[torch.arange(5)[:, None], position.long(), channel.long()], value)
    assert report.extra(massive.MASSIVE_ENTRIES).tolist() == [[0, 0, 17, 17]] * 5
    assert report.extra(massive.TOP_ENTRIES)[:, 2:, :, 2].eq(7).all()


def first_and_others(pairs):
    """Means over queries: of the pair with the first key, and of the mean pair with the others that a query sees."""
    others = torch.stack([pairs[..., i, 1 : i + 1].mean(-1) for i in range(1, 17)], -1)
    return pairs[..., 1:, 0].mean(-1), others.mean(-1)


def test_angles_and_norm_products_are_those_of_the_queries_and_keys(spiked):
    report, seen = spiked
    q, k = seen["q"], seen["k"]
    products = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]
    cosines = einsum(q, k, "s layer h i d, s layer h j d -> s layer h i j") / products
    for metric, pairs in {qk.QK_ANGLES: cosines, qk.QK_NORM_PRODUCTS: products * 12**-0.5}.items():
        expected = torch.stack(first_and_others(pairs), -1)
        torch.testing.assert_close(report.extra(metric), expected, rtol=1e-4, atol=1e-4)


def test_the_gap_is_of_mean_cosines_and_mean_products_of_lengths_as_its_note_says(spiked):
    report, seen = spiked
    q, k = seen["q"], seen["k"]
    lengths = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :] * 12**-0.5
    scores = einsum(q, k, "s layer h i d, s layer h j d -> s layer h i j") * 12**-0.5
    means = map(first_and_others, (scores / lengths, lengths, scores))
    (cosine, cosine_others), (length, length_others), scored = means
    table = score_gaps_by_head(report)
    found = torch.tensor(table.numbers("score gap")).reshape(3, 4)
    expected = (cosine * length - cosine_others * length_others).mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert (found - (scored[0] - scored[1]).mean(0)).abs().max() > 1e-3  # a gap of mean scores is another number
    assert "gap: mean cosine times mean product of lengths" in table.note


def test_ranks_are_energies_over_the_largest_singular_value_squared(spiked):
    report, seen = spiked
    updates = rearrange(seen["z"], "s layer i (h d) -> s layer h i d", h=4)
    for metric, x in {KEY_RANK: seen["k"], UPDATE_RANK: updates}.items():
        expected = x.square().sum((-2, -1)) / torch.linalg.matrix_norm(x, 2).square()
        torch.testing.assert_close(report.extra(metric), expected, rtol=1e-3, atol=1e-4)
