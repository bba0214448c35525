"""Interventions that are sent to a server which has torch, transformers and nnsight, but not us."""

from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from backends.ndif.fresh_process import REQUESTS, Server, remote_subject
from backends.zoo import model_of, tokens_of

from sinkinterp.attention.kernels import SOFTMAX, Sigmoid
from sinkinterp.backends.nnsight import NNsightSubject
from sinkinterp.errors import InputError
from sinkinterp.interventions import (
    Add,
    AddSinkLogit,
    AttendSelfOnly,
    BiasColumn,
    BlindKeys,
    ChangeKeys,
    ChangeMLP,
    ChangeOutputs,
    ChangePattern,
    ChangePositionEmbedding,
    ChangeQueries,
    ChangeResidual,
    ChangeTokenEmbedding,
    ChangeValues,
    ClampNorm,
    ClipPattern,
    Dropped,
    Evict,
    MatchedNoise,
    MeanOfOthers,
    PatchNormalization,
    Put,
    RemoveColumn,
    RemovePosition,
    ReplacePosition,
    Scale,
    SetTo,
    ShiftPositions,
    SpreadEvenly,
    SwapPositions,
    SwapWith,
    Temperature,
    Zero,
    ZeroKeyBias,
    ZeroKeySlot,
    ZeroQueryBias,
    ZeroValueBias,
)

TOKENS = tokens_of()
FEW = TOKENS[:3]
torch.manual_seed(2)
EACH = [  # groups that one request carries, in this order
    [PatchNormalization(Sigmoid(), layers=[1])],
    [PatchNormalization(SOFTMAX, heads=[(1, 2)]), Temperature(2.0, layers=[0]), ClipPattern(heads=[(2, 0)])],
    [ChangeValues(Zero(), positions=[0]), ChangeQueries(Scale(0.5)), ChangeKeys(SwapWith(0, 5), heads=[(1, 1)])],
    [Evict(9, 2), BiasColumn(-2.0), AddSinkLogit(0.5), AttendSelfOnly(positions=[4]), RemoveColumn()],
    [RemoveColumn(SpreadEvenly(), heads=[(0, 1)]), RemoveColumn(Dropped(), positions=[2])],
    [SwapPositions(0, 4), RemovePosition([2]), ChangePositionEmbedding(Scale(0.5)), ChangeTokenEmbedding(Scale(2.0))],
    [ReplacePosition(0, 4), ShiftPositions(3), ChangeMLP(SetTo(0.5), dims=[3])],
    [ChangeMLP(Zero(), positions=[0]), ChangeResidual(ClampNorm(0.2), layers=[2])],
    [ChangeResidual(Put({1: torch.randn(3, 17, 48)}), layers=[1], positions=[2])],
    [ChangeOutputs(Add({1: torch.randn(1, 4, 17, 12)}), layers=[1]), ChangePattern(Zero(), dims=[0])],
    [ChangeValues(MeanOfOthers(), positions=[0]), ChangeOutputs(MatchedNoise(), positions=[2])],
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A subject on a server, and the same model here."""
    folder = tmp_path_factory.mktemp("model")
    model = model_of("gpt2")
    model.save_pretrained(folder)
    with closing(Server(folder)) as server:
        yield SimpleNamespace(remote=remote_subject(server), here=NNsightSubject(model))


@pytest.mark.parametrize("edits", EACH, ids=lambda edits: "+".join(type(edit).__name__ for edit in edits))
def test_interventions_do_there_what_they_do_here(pair, edits):
    bare = pair.here.run(FEW).logits
    there, here = (subject.run(FEW, edits=edits).logits for subject in (pair.remote, pair.here))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
    assert (there - bare).abs().max() > 1e-3


@pytest.mark.parametrize(
    "edit", [ZeroKeyBias(), ZeroQueryBias(heads=[(1, 2)]), ZeroValueBias(), BlindKeys([3])], ids=str
)
def test_weights_of_a_server_are_left_alone(pair, edit):
    REQUESTS.clear()
    with pytest.raises(
        InputError, match="runs on a server, where weights are not to be changed; load it here"
    ) as error:
        pair.remote.run(FEW, edits=[edit])
    assert "\n" not in str(error.value) and not REQUESTS


def test_what_does_not_fit_is_refused_before_a_request_and_what_lacks_a_slot_by_the_server(pair):
    REQUESTS.clear()
    for edit in (ChangeValues(Zero(), positions=[17]), ChangeKeys(Zero(), heads=[(3, 0)]), SwapPositions(0, 17)):
        with pytest.raises(InputError, match=r"no position 17|no head \(3, 0\)|position 17 is outside"):
            pair.remote.run(FEW, edits=[edit])
    assert not REQUESTS
    with pytest.raises(RuntimeError, match="layer 0 has no slot to change"):
        pair.remote.run(FEW, edits=[ZeroKeySlot()])
