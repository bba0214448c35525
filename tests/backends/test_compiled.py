"""A compiled model is read and edited as it is written, without compiling anything, and is compiled afterwards."""

import pytest
import torch
from backends.own_modules import NanoGPT
from backends.zoo import model_of, tokens_of

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.backends.load import BACKENDS

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def in_place(model, compiled):
    model.compile(backend=compiled)
    return model


def wrapped(model, compiled):
    return torch.compile(model, backend=compiled)


def block_in_place(model, compiled):
    blocks = model.blocks if isinstance(model, NanoGPT) else model.model.layers
    blocks[1].compile(backend=compiled)
    return model


@pytest.fixture
def compiling():
    """A backend of torch.compile that counts the graphs it is given and runs them as they are."""

    def backend(graph, inputs):
        backend.graphs += 1
        return graph.forward

    backend.graphs = 0
    torch.compiler.reset()
    yield backend
    torch.compiler.reset()


def own_module():
    torch.manual_seed(0)
    return NanoGPT().eval()


def logits_of(model, tokens):
    inside = getattr(model, "_orig_mod", model)
    return model(tokens, tokens)[0] if isinstance(inside, NanoGPT) else model(tokens).logits


every_way = pytest.mark.parametrize("way", [in_place, wrapped, block_in_place])
every_kind = pytest.mark.parametrize("made", [lambda: model_of("llama"), own_module], ids=["transformers", "own"])


@every_kind
@every_way
def test_a_compiled_model_is_measured_and_edited_as_the_plain_one_and_stays_compiled(way, made, compiling):
    tokens, edit, plain = tokens_of() % 11, iv.ChangeResidual(iv.Scale(3.0), layers=[1]), made()
    want, edited, bare = si.measure(plain, tokens), si.load(plain).run(tokens, edits=[edit]), si.load(plain).run(tokens)
    model = way(made(), compiling)
    for given in (model, si.load(model)):
        torch.testing.assert_close(si.measure(given, tokens).importance, want.importance, rtol=0, atol=0)
    with torch.no_grad():
        with si.patched(model, edit):
            torch.testing.assert_close(logits_of(model, tokens), edited.logits, rtol=0, atol=1e-5)
        assert compiling.graphs == 0
        torch.testing.assert_close(logits_of(model, tokens), bare.logits, rtol=0, atol=1e-5)
    assert compiling.graphs > 0  # it was compiled all the while


@every_way
def test_a_model_that_is_trained_compiled_is_watched(way, compiling):
    watch = si.SinkCallback(tokens_of(), 1, most=1.0)
    assert watch.step(way(model_of("llama"), compiling), 1) == watch.step(model_of("llama"), 2)
    assert compiling.graphs == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_reads_a_compiled_model(backend, compiling):
    model, plain = in_place(model_of("llama"), compiling), si.load(model_of("llama"), backend=backend)
    logits = si.load(model, backend=backend).run(tokens_of()).logits
    torch.testing.assert_close(logits, plain.run(tokens_of()).logits, rtol=0, atol=1e-5)
    assert compiling.graphs == 0 and model._compiled_call_impl is not None
