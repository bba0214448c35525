"""Requests as NDIF would get them, each run in a process that has torch, transformers and nnsight, but not us."""

import re
import threading
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backends.ndif.fresh_process import REQUESTS, Server, remote_subject
from backends.zoo import model_of, tokens_of
from torch import Tensor

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention.call import AttentionCall
from sinkinterp.attention.kernels import SOFTMAX, Kernel, Sigmoid, Unit
from sinkinterp.backends.ndif.program import text_of
from sinkinterp.backends.nnsight import NNsightSubject
from sinkinterp.errors import InputError
from sinkinterp.interventions.edit import Edit
from sinkinterp.metrics.importance import proxy
from sinkinterp.metrics.instruments import ALL

TOKENS = tokens_of()
# what pickle and nnsight name to rebuild any trace, and what the sent text itself imports
NAMED = {"builtins", "cloudpickle", "collections", "copyreg", "functools", "nnsight", "torch", "types"}
IMPORTED = {"dataclasses", "functools", "math", "nnsight", "torch"}


FEW = TOKENS[:3]
torch.manual_seed(2)
EACH = [  # groups that one request carries, in this order
    [iv.PatchNormalization(Sigmoid(), layers=[1])],
    [iv.PatchNormalization(SOFTMAX, heads=[(1, 2)]), iv.Temperature(2.0, layers=[0]), iv.ClipPattern(heads=[(2, 0)])],
    [
        iv.ChangeValues(iv.Zero(), positions=[0]),
        iv.ChangeQueries(iv.Scale(0.5)),
        iv.ChangeKeys(iv.SwapWith(0, 5), heads=[(1, 1)]),
    ],
    [iv.Evict(9, 2), iv.BiasColumn(-2.0), iv.AddSinkLogit(0.5), iv.AttendSelfOnly(positions=[4]), iv.RemoveColumn()],
    [iv.RemoveColumn(iv.SpreadEvenly(), heads=[(0, 1)]), iv.RemoveColumn(iv.Dropped(), positions=[2])],
    [
        iv.SwapPositions(0, 4),
        iv.RemovePosition([2]),
        iv.ChangePositionEmbedding(iv.Scale(0.5)),
        iv.ChangeTokenEmbedding(iv.Scale(2.0)),
    ],
    [iv.ReplacePosition(0, 4), iv.ShiftPositions(3), iv.ChangeMLP(iv.SetTo(0.5), dims=[3])],
    [iv.ChangeMLP(iv.Zero(), positions=[0]), iv.ChangeResidual(iv.ClampNorm(0.2), layers=[2])],
    [iv.ChangeResidual(iv.Put({1: torch.randn(3, 17, 48)}), layers=[1], positions=[2])],
    [iv.ChangeOutputs(iv.Add({1: torch.randn(1, 4, 17, 12)}), layers=[1]), iv.ChangePattern(iv.Zero(), dims=[0])],
    [iv.ChangeValues(iv.MeanOfOthers(), positions=[0]), iv.ChangeOutputs(iv.MatchedNoise(), positions=[2])],
]


@pytest.fixture(scope="module")
def server():
    with closing(Server()) as process:
        yield process


@pytest.fixture(scope="module", params=["gpt2", "llama with grouped queries", "gpt-oss with sink logits"])
def pair(request, server, tmp_path_factory):
    """A subject on a server, and the same model here."""
    folder = tmp_path_factory.mktemp("model")
    model = model_of(request.param)
    model.save_pretrained(folder)
    before = len(REQUESTS)
    remote = remote_subject(server, folder)
    n_requests = len(REQUESTS) - before
    return SimpleNamespace(remote=remote, here=NNsightSubject(model), n_requests=n_requests)


on_gpt2 = pytest.mark.parametrize("pair", ["gpt2"], indirect=True)  # where one architecture shows it


def assert_equal_reports(ours, theirs):
    names = [f.name for f in fields(ours) if isinstance(getattr(ours, f.name), Tensor)]
    assert len(names) >= 6
    for name in names:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-6)
    for name in ours.extras:
        torch.testing.assert_close(ours.extras[name], theirs.extras[name], rtol=1e-5, atol=1e-5, equal_nan=True)


@dataclass(frozen=True)
class ShrinkFirstToken(Edit):
    share: float

    def residual(self, block: int, x: Tensor) -> Tensor:
        return torch.cat((x[:, :1] * self.share, x[:, 1:]), 1) if block == 2 else x


@dataclass(frozen=True)
class SigmoidInLayerOne(Edit):
    def call(self, call: AttentionCall) -> AttentionCall:
        return replace(call, kernel=Kernel(similarity=Sigmoid(), normaliser=Unit())) if call.layer == 1 else call


@dataclass(frozen=True)
class SilenceHeadOne(Edit):
    def output(self, call: AttentionCall, z: Tensor) -> Tensor:
        return torch.cat((z[:, :1], torch.zeros_like(z[:, 1:2]), z[:, 2:]), 1)


def key_sizes(call: AttentionCall) -> Tensor:
    return call.k.abs().sum((1, 2, 3))


def test_a_measurement_is_the_local_one(pair):
    reports = [si.measure(subject, TOKENS, instruments=ALL) for subject in (pair.remote, pair.here)]
    assert_equal_reports(*reports)
    assert pair.remote.shape == pair.here.shape


def test_a_subject_is_checked_in_three_requests(pair):
    assert pair.n_requests == 3


@pytest.mark.parametrize("edit", [ShrinkFirstToken(0.25), SigmoidInLayerOne(), SilenceHeadOne()], ids=str)
def test_edits_written_in_a_users_file_do_there_what_they_do_here(pair, edit):
    bare = pair.here.run(TOKENS).logits
    logits = [subject.run(TOKENS, edits=[edit]).logits for subject in (pair.remote, pair.here)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)
    assert (logits[0] - bare).abs().max() > 1e-2


def test_positions_are_swapped_there_as_here(pair):
    swap = si.SwapPositions(0, 4)
    assert_equal_reports(*(si.measure(subject, TOKENS, edits=[swap]) for subject in (pair.remote, pair.here)))


@on_gpt2
def test_reads_may_be_functions_lambdas_closures_and_name_our_modules(pair):
    import einops

    direction = torch.randn(12)
    reads = {
        "function": key_sizes,
        "lambda": lambda call: proxy(call).pattern().amax((1, 2, 3)),
        "einops": lambda call: einops.reduce(call.k.abs(), "sequence head pos d -> sequence", "sum"),
        "closure": lambda call: (call.v @ direction.to(call.v.device)).sum((1, 2)),
    }
    residuals = {"residual": lambda x: x.norm(dim=-1)}
    there, here = (subject.run(TOKENS, calls=reads, residuals=residuals) for subject in (pair.remote, pair.here))
    for name in reads:
        torch.testing.assert_close(there.calls[name], here.calls[name], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(there.residuals["residual"], here.residuals["residual"], rtol=1e-6, atol=1e-6)


@on_gpt2
def test_what_is_sent_imports_torch_and_names_nothing_of_ours(pair):
    REQUESTS.clear()
    si.measure(pair.remote, TOKENS, edits=[SigmoidInLayerOne()])
    (request,) = REQUESTS  # one request: logits, which no read asked for, stay there
    assert set(request["named"]) <= NAMED
    assert {name.split(".")[0] for name in request["imported"]} <= IMPORTED
    assert request["bytes"] < 20_000


@on_gpt2
def test_logits_come_once_and_only_when_asked_for(pair):
    trace = pair.remote.run(TOKENS, calls={"keys": key_sizes})
    REQUESTS.clear()
    torch.testing.assert_close(trace.logits, pair.here.run(TOKENS).logits, rtol=0, atol=1e-5)
    assert trace.logits is trace.logits
    assert len(REQUESTS) == 1


@on_gpt2
def test_side_effects_of_a_read_stay_on_the_server(pair):
    seen = []
    pair.remote.run(TOKENS, calls={"keys": lambda call: (seen.append(call.layer), key_sizes(call))[1]})
    assert seen == []


@on_gpt2
def test_what_cannot_be_sent_is_refused_by_name(pair):
    import jaxtyping

    lock = threading.Lock()

    class Inner(Edit):
        def mlp(self, block, x):
            return x

    def importing(call: AttentionCall) -> Tensor:
        import numpy

        return torch.from_numpy(numpy.ones(len(call.q)))

    refused = {
        "needs jaxtyping": {"calls": {"x": lambda call: (jaxtyping.Float, key_sizes(call))[1]}},
        "needs numpy": {"calls": {"x": importing}},
        "cannot pickle": {"calls": {"x": lambda call: (lock, key_sizes(call))[1]}},
        "top level of a file": {"edits": [Inner()]},
    }
    REQUESTS.clear()
    for message, asked in refused.items():
        with pytest.raises(InputError, match=message):
            pair.remote.run(TOKENS, **asked)
    assert not REQUESTS


@on_gpt2
def test_an_error_there_is_an_error_here(pair):
    with pytest.raises(RuntimeError, match="size"):
        pair.remote.run(TOKENS, calls={"x": lambda call: call.k @ call.k})


@on_gpt2
@pytest.mark.parametrize("edits", EACH, ids=lambda edits: "+".join(type(edit).__name__ for edit in edits))
def test_interventions_do_there_what_they_do_here(pair, edits):
    bare = pair.here.run(FEW).logits
    there, here = (subject.run(FEW, edits=edits).logits for subject in (pair.remote, pair.here))
    torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
    assert (there - bare).abs().max() > 1e-3


@on_gpt2
@pytest.mark.parametrize(
    "edit", [iv.ZeroKeyBias(), iv.ZeroQueryBias(heads=[(1, 2)]), iv.ZeroValueBias(), iv.BlindKeys([3])], ids=str
)
def test_weights_of_a_server_are_left_alone(pair, edit):
    REQUESTS.clear()
    with pytest.raises(InputError, match="runs on a server, where weights are not to be changed; load it here"):
        pair.remote.run(FEW, edits=[edit])
    assert not REQUESTS


@on_gpt2
def test_what_does_not_fit_is_refused_before_a_request_and_what_lacks_a_slot_by_the_server(pair):
    REQUESTS.clear()
    for edit in (
        iv.ChangeValues(iv.Zero(), positions=[17]),
        iv.ChangeKeys(iv.Zero(), heads=[(3, 0)]),
        iv.SwapPositions(0, 17),
    ):
        with pytest.raises(InputError, match=r"no position 17|no head \(3, 0\)|position 17 is outside"):
            pair.remote.run(FEW, edits=[edit])
    assert not REQUESTS
    with pytest.raises(RuntimeError, match="layer 0 has no slot to change"):
        pair.remote.run(FEW, edits=[iv.ZeroKeySlot()])


def test_a_program_holds_what_is_needed_without_annotations():
    text = text_of({("sinkinterp.metrics.importance", "importance")})
    assert "def importance(call, " in text
    assert not any(word in text for word in ("jaxtyping", "Float", "-> ", '"""', "hashlib", "class Slots", "sink_rate"))


def test_only_the_registry_knows_that_there_is_a_server():
    package = Path(si.__file__).parent
    names = ("attention", "backends", "interventions", "measurement", "metrics")
    paths = [path for name in names for path in (package / name).rglob("*.py")]
    others = [path for path in paths if path.name != "load.py" and path.parent.name != "ndif"]
    for path in [*others, package / "spec.py"]:
        assert not re.search(r"\bndif\b|\bserver|\bremote", path.read_text(), re.IGNORECASE), path


def test_remote_needs_nnsight_a_name_on_the_hub_and_a_key(tmp_path, monkeypatch):
    import nnsight

    with pytest.raises(InputError, match="huggingface does not run models remotely; add backend='nnsight'"):
        si.load("gpt2", remote=True)
    with pytest.raises(InputError, match="transformer_lens does not run models remotely"):
        si.load("gpt2", backend="transformer_lens", remote=True)
    with pytest.raises(InputError, match="models of the Hub only"):
        si.load(str(tmp_path), backend="nnsight", remote=True)
    monkeypatch.setattr(nnsight.CONFIG.API, "APIKEY", None)
    with pytest.raises(InputError, match="set NDIF_API_KEY"):
        si.load("org/model", backend="nnsight", remote=True)
    monkeypatch.setattr(nnsight.CONFIG.API, "APIKEY", "key")
    with pytest.raises(InputError, match="cannot find org/no-such-model on the Hub"):
        si.load("org/no-such-model", backend="nnsight", remote=True)
