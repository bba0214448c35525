"""Maps of one head, against the queries and keys that transformers' own modules hand over."""

import pytest
import torch
from backends.zoo import model_of, tokens_of
from einops import einsum, rearrange

import sinkinterp as si
from sinkinterp.errors import InputError
from sinkinterp.measurement.instruments import DISTRIBUTIONS, RESIDUALS
from sinkinterp.measurement.qk_maps import qk_maps
from sinkinterp.metrics.massive import ALL_ENTRIES
from sinkinterp.metrics.qk_pairs import COSINE_COUNTS


@pytest.fixture(scope="module")
def seen():
    """A GPT-2 and its queries and keys, `two sequence layer head pos d`."""
    model, outputs = model_of("gpt2"), []
    hooks = [
        b.attn.c_attn.register_forward_hook(lambda m, given, out: outputs.append(out)) for b in model.transformer.h
    ]
    with torch.no_grad():
        model(tokens_of())
    for hook in hooks:
        hook.remove()
    return si.load(model), rearrange(
        torch.stack(outputs, 1), "s layer i (three h d) -> three s layer h i d", three=3, h=4
    )[:2]


def test_maps_are_means_over_sequences_of_one_head(seen):
    subject, (q, k) = seen
    found = qk_maps(subject, tokens_of(), layer=2, head=3)
    q, k = q[:, 2, 3], k[:, 2, 3]
    dots, lengths = einsum(q, k, "s i d, s j d -> s i j"), q.norm(dim=-1)[:, :, None] * k.norm(dim=-1)[:, None]
    scale = q.shape[-1] ** -0.5
    expected = {"score": dots * scale, "cosine": dots / lengths, "norm product": lengths * scale}
    assert list(found) == list(expected)
    future = torch.ones(q.shape[1], q.shape[1]).triu(1).bool()
    for name, values in expected.items():
        mean = values.mean(0).masked_fill(future, torch.nan)
        torch.testing.assert_close(found[name], mean, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("place", [(3, 0), (0, 4), (0, -1)])
def test_a_head_that_is_not_there_is_refused(seen, place):
    with pytest.raises(InputError, match="there is no head"):
        qk_maps(seen[0], tokens_of(), *place)


def test_distributions_and_residuals_are_taken_along_of_sequences_of_any_length(seen):
    rows = [tokens_of()[0].tolist(), tokens_of()[1, :7].tolist()]
    report = si.measure(seen[0], si.data.tokens.TokenSet.of_rows(rows), instruments=(DISTRIBUTIONS, RESIDUALS))
    pairs = report.extra(COSINE_COUNTS).sum(-1)
    assert pairs[0].unique(dim=-1).numel() and pairs[1, 0, 0].tolist() == [6, 6 * 7 / 2]
    x = report.extra(ALL_ENTRIES)
    assert x.shape[:2] == report.residual_norms.shape[:2] and x[1, :, :, 7:].isnan().all()
    torch.testing.assert_close(x.norm(dim=2), report.residual_norms, equal_nan=True)
