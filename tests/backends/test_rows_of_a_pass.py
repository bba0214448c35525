"""Positions are those of the text, also where a model's last layers are given fewer rows, or keys of other layers."""

import pytest
import torch
from backends.test_generation import MASK, PADDED, assert_equal_to_whole_passes, generated
from backends.zoo import model_of
from refusals import refused

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import CALL
from sinkinterp.backends.recorder import Recorder

TOKENS = PADDED
EDITS = (
    iv.ChangeOutputs(iv.Zero(), layers=[5], positions=[0]),
    iv.ChangeResidual(iv.Scale(4.0), layers=[5], positions=[0, 3]),
    iv.ChangeValues(iv.Scale(3.0), layers=[2], positions=[0, 2]),
)


@pytest.fixture
def sharing():
    """The last layers take the keys and values of earlier ones."""
    return model_of("gemma4 with shared keys")


@torch.no_grad()
def test_logits_of_the_last_positions_alone_are_edited_as_those_of_all(sharing):
    for model in (sharing, model_of("llama")):
        for edit in EDITS if model is sharing else (iv.ChangeOutputs(iv.Zero(), layers=[2], positions=[0]),):
            with si.patched(model, edit):
                whole = model(TOKENS).logits
                for kept in (1, 3, 99, torch.tensor([0, 4])):
                    rows = kept if isinstance(kept, torch.Tensor) else slice(-kept, None)
                    part = model(TOKENS, logits_to_keep=kept).logits
                    torch.testing.assert_close(part, whole[:, rows], rtol=0, atol=1e-5)


def test_a_model_whose_layers_share_keys_is_measured_and_says_so(sharing):
    subject = si.load(sharing)
    assert subject.key_sources == {4: 2, 5: 3}
    assert "layer 4 takes the keys and values of layer 2" in str(vars(si.measure(subject, TOKENS)))
    keys = subject.run(TOKENS, reads={"k": CALL.read(lambda call: call.k.sum((1, 2, 3)))}, logits=False)["k"]
    assert keys[:, 4].equal(keys[:, 2]) and not keys[:, 4].equal(keys[:, 3])
    refused(lambda: subject.run(TOKENS, edits=[iv.ZeroKeyBias()]), "layer 4")
    assert not si.load(model_of("llama")).key_sources


@pytest.mark.parametrize("how", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
@torch.no_grad()
def test_what_it_writes_in_a_block_is_what_whole_passes_give(sharing, how):
    for edits in (EDITS[:2], EDITS[2:]):
        with si.patched(sharing, *edits):
            output = generated(sharing, PADDED, MASK, **how)
            assert_equal_to_whole_passes(sharing, output, MASK, how.get("num_beams", 1))


def test_an_edit_that_a_forgetting_cache_cannot_make_in_a_sharing_layer_is_refused_before_the_first_token(sharing):
    passes = []
    with si.patched(sharing, iv.ChangeValues(iv.MeanOfOthers(), layers=[4])):
        sharing.register_forward_hook(lambda *_: passes.append(1))
        refused(lambda: generated(sharing, PADDED[:1], MASK[:1]), "use_cache=False")
    assert not passes


def test_blocks_that_lose_rows_on_their_way_are_refused():
    recorder = Recorder()
    recorder.residual(torch.ones(2, 7, 3))
    refused(lambda: recorder.residual(torch.ones(2, 1, 3)), "1 rows")
