import pytest
import torch
from backends.own_modules import NanoGPT

import sinkinterp as si
from sinkinterp.applications.outliers import fake_quantised, norm_limit


def outlier_tokens(x, times=10.0):
    norms = x.norm(dim=-1)
    return norms > norm_limit(norms, times)


def outlier_dims(x):
    sizes = x.flatten(0, -2).square().mean(0).sqrt()
    return sizes > norm_limit(sizes)


def planted():
    """Clean activations `sequence pos d_model`, and the same with 7 long tokens and 3 large dimensions."""
    x = torch.randn(31, 67, 53, generator=torch.Generator().manual_seed(0))
    tokens, dims = torch.zeros(31, 67, dtype=torch.bool), torch.zeros(53, dtype=torch.bool)
    tokens[:7, 0], dims[[2, 11, 50]] = True, True
    return x, torch.where(tokens[..., None], 40 * x, x), torch.where(dims, 40 * x, x), tokens, dims


def test_planted_tokens_and_dimensions_are_found_and_nothing_else():
    clean, long_tokens, large_dims, tokens, dims = planted()
    assert outlier_tokens(long_tokens).equal(tokens) and outlier_dims(large_dims).equal(dims)
    assert not outlier_tokens(clean).any() and not outlier_dims(clean).any()
    clean[5, 5, 7] = 100  # one large entry of 2,077 does not make a dimension large
    assert not outlier_dims(clean).any()


@pytest.mark.parametrize("times", [1.01, 1.2, 3.0, 10.0, 41.0])
def test_tokens_are_those_that_the_rule_of_dictionary_learning_removes(times):
    x = planted()[1]
    norms = x.norm(dim=-1)
    removed = norms > norms.median() * times  # of the whole batch, as in its ActivationBuffer
    assert outlier_tokens(x, times).equal(removed) and (times > 3 or removed.sum() >= 7)


def test_rounding_is_to_the_levels_of_the_largest_magnitude():
    x = torch.tensor([[7.0, 3.4, -1.0], [0.7, 0.34, -0.1]])
    whole, rows, columns = (fake_quantised(x, 4, over) for over in ((-2, -1), (-1,), (-2,)))
    torch.testing.assert_close(whole, torch.tensor([[7.0, 3, -1], [1, 0, 0]]))
    torch.testing.assert_close(rows, torch.tensor([[7.0, 3, -1], [0.7, 0.3, -0.1]]))
    assert columns[0].equal(x[0]) and fake_quantised(0 * x, 8, (-1,)).equal(0 * x)


def test_delimiters_are_known_by_their_text_alone():
    torch.manual_seed(0)
    model, ids = NanoGPT().eval(), torch.tensor([[3, 1, 4, 0, 4]])
    letters = (lambda text: ["!.abc".index(letter) for letter in text], lambda ids: "".join("!.abc"[i] for i in ids))
    with_words, without = (si.mask(si.load(model, tokenizer=words), ids) for words in (letters, None))
    assert with_words.kinds.tolist() == [[0, 1, 3, 1, 2]] and "delimiter: no letter or digit" in with_words.note
    assert without.kinds.tolist() == [[0, 3, 3, 3, 2]] and "not told from others without a tokenizer" in without.note
