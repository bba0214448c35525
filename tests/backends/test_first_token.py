"""subject.first_token: what the literature reads of the first token, on three backends."""

from dataclasses import fields
from functools import partial

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp.backends.load import BACKENDS
from sinkinterp.backends.subject import FirstToken
from sinkinterp.metrics.instruments import GEOMETRY
from sinkinterp.metrics.qk import QK_ANGLES, QK_NORM_PRODUCTS


@pytest.mark.parametrize("name", ["llama with grouped queries", "pythia"])
def test_the_first_tokens_tensors_are_those_of_a_report_and_of_transformers_on_every_backend(name):
    model, tokens = model_of(name), tokens_of()
    with torch.no_grad():
        model.get_input_embeddings().weight[tokens[:, 0], 7] = 3000.0
        hidden = torch.stack(model(tokens, output_hidden_states=True).hidden_states[:-1], 1)
    report = si.measure(model, tokens, instruments=GEOMETRY)
    for backend in BACKENDS:
        first = si.load(model, backend=backend).first_token(tokens)
        expected = {
            "hidden_states": hidden[:, :, 0], "norms": report.residual_norms[..., 0],
            "norms_of_others": report.residual_norms[..., 1:].mean(-1), "importance": report.alpha(),
            "qk_cosines": report.extra(QK_ANGLES), "qk_norms": report.extra(QK_NORM_PRODUCTS),
            "key_norms": report.key_norms[..., 0], "value_norms": report.value_norms[..., 0],
        }  # fmt: skip
        assert {*expected, "massive"} == {field.name for field in fields(FirstToken)}
        for field, values in expected.items():
            found = getattr(first, field)[:, : values.shape[1]]
            torch.testing.assert_close(found, values, rtol=1e-6, atol=1e-6, msg=lambda text, f=field: f"{f}: {text}")
        assert first.massive_activations()[:, 2].unique().tolist() == [7]


def test_another_token_than_the_first_is_read_and_one_that_is_not_there_is_refused():
    subject = si.load(model_of("gpt2"))
    fourth = subject.first_token(tokens_of(), position=3)
    torch.testing.assert_close(fourth.importance, si.measure(subject, tokens_of()).alpha(3))
    for tokens, position in ((tokens_of(), 17), ([[1, 2], [3, 4, 5]], 0)):
        refused(partial(subject.first_token, tokens, position))
