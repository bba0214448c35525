"""Every public intervention, on every architecture and backend."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from backends import zoo
from refusals import refused
from transformers import AutoModelForCausalLM, GPTBigCodeConfig

from benchmarks import gpu_checks
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import SOFTMAX, ExpMinusOne, Kernel, PositiveShare, Sigmoid
from sinkinterp.backends.load import BACKENDS, load
from sinkinterp.backends.patched import patched
from sinkinterp.interventions import attention_layers, changes
from sinkinterp.interventions.attention_layers import BlindKeys, Dropped, First, KeepHeaviest, Share, SpreadEvenly
from sinkinterp.interventions.changes import ClampNorm, Operation, RemovePosition, ReplacePosition, WithoutMassive
from sinkinterp.lm.model import build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.metrics.importance import importance

TOKENS = zoo.tokens_of()
LENGTH = TOKENS.shape[1]
POSITIONS = torch.arange(LENGTH)
READS = {"alpha": lambda call: importance(call, POSITIONS)}
torch.manual_seed(1)
OTHER = {"residual": torch.randn(1, LENGTH, 48), "heads": torch.randn(1, 4, LENGTH, 12)}

EDITS = (
    *gpu_checks.EDITS, iv.PatchNormalization(Sigmoid(), heads=[(1, 0), (1, 3)]),
    iv.RemoveColumn(SpreadEvenly(), heads=[(1, 2)]), iv.RemoveColumn(Dropped(), positions=[0, 3]),
    KeepHeaviest(4, 1, First.EVICTED, seed=3),
    iv.ChangeResidual(iv.Put({1: OTHER["residual"]}), layers=[1], positions=[2], dims=[3, 7]),
    iv.ChangeValues(iv.Zero(), positions=[0], kv_heads=[(1, 1)]),
    iv.Change(sites.QUERIES, ClampNorm(0.3)),  # queries of OPT are scaled before the call
)  # fmt: skip


class Own(iv.Edit):
    """An edit that a user wrote."""

    def residual(self, block, x):
        return x if block != 2 else torch.cat((x[:, :1] / 3, x[:, 1:]), 1)

    def output(self, call, z):
        return torch.cat((z[:, :1], torch.zeros_like(z[:, 1:2]), z[:, 2:]), 1)


MORE_EDITS = (
    Own(),
    iv.ZeroKeyBias(kv_heads=[(1, 1)]), iv.ZeroQueryBias(heads=[(0, 1), (1, 2)]), iv.ZeroValueBias(kv_heads=[(1, 0)]),
    iv.PatchNormalization(Kernel(similarity=ExpMinusOne(), normaliser=PositiveShare())), iv.ZeroKeySlot(heads=[(1, 1)]),
    iv.BiasColumn(4.0, positions=[2, 3], heads=[(1, 1)]), iv.Temperature(0.1, heads=[(1, 1), (2, 0)]),
    iv.ChangeResidual(ClampNorm(0.1)), iv.ChangeResidual(WithoutMassive(0.1, 2.0)),
    iv.ChangeMLP(iv.Zero(), positions=[0]),
    iv.ChangeKeys(iv.Zero(), kv_heads=[(1, 1)], dims=range(8)),
    iv.ChangeOutputs(iv.Add({1: OTHER["heads"]}), layers=[1]),
    iv.Change(sites.PATTERN, iv.SetTo(0.1), positions=[9], heads=[(1, 0)]),
)  # fmt: skip
IN_MORE = ("gpt2", "pythia", "qwen2", "gpt-oss with sink logits")
IN_BOTH = {*IN_MORE, *zoo.LEARNED_POSITIONS}  # so that every edit runs on both other backends with two architectures
IN_SHAPE = ("gpt2", "gpt-oss with sink logits")
BIASED = ("gpt2", "opt", "llama with biases", "qwen2", "pythia", "gpt-oss with sink logits")
ROTARY = tuple(sorted(set(zoo.CONFIGS) - {*zoo.LEARNED_POSITIONS, "jamba with mamba layers"}))
EXPERTS = ("qwen3-moe", "jamba with mamba layers", "gpt-oss with sink logits")
MOVABLE, SLOTTED = (*zoo.LEARNED_POSITIONS, *ROTARY), ("gpt-oss with sink logits",)
LACKING = {  # interventions -> architectures that have what they change, and how the others refuse
    (RemovePosition, sites.POSITION_EMBEDDING): (zoo.LEARNED_POSITIONS, "has no table of learned positions"),
    (iv.SwapPositions, ReplacePosition): (MOVABLE, "has no positions that could"),
    (iv.ZeroQueryBias, iv.ZeroKeyBias, iv.ZeroValueBias): (BIASED, "has no such bias to zero"),
    (iv.RemoveKeySlot, iv.ZeroKeySlot): (SLOTTED, "has no slot to change"),
    (sites.NEURONS,): (tuple(set(zoo.CONFIGS) - {*EXPERTS}), "not every block shows its neurons"),
    (iv.AddSinkLogit,): (tuple(set(zoo.CONFIGS) - {*SLOTTED}), "has a slot already"),
}
MODULES = (attention_layers, changes)
EVERY = {  # classes of edits, operations and shares that have no classes below them
    kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and kind.__module__ == module.__name__ and name[0] != "_"
    if issubclass(kind, iv.Edit | Operation | Share) and not kind.__subclasses__() and kind is not iv.Change
}
FUSED, INTERLEAVED, SPLIT = "gpt2", "pythia", "qwen2"


def kind_of(edit: iv.Edit) -> object:
    return edit.site if isinstance(edit, iv.Change) else type(edit)


def refusal(edit: iv.Edit, name: str) -> str | None:
    return next(
        (words for kinds, (able, words) in LACKING.items() if kind_of(edit) in kinds and name not in able), None
    )


def is_null(edit: iv.Edit, name: str) -> bool:
    return isinstance(edit, iv.ZeroKeyBias) and name in zoo.LEARNED_POSITIONS


def run(subject, *edits: iv.Edit):
    trace = subject.run(TOKENS, reads=READS, edits=edits)
    return {**trace.answers, "logits": trace.logits}


def worst(first, second) -> float:
    return max(((value - second[read]).abs() / value.abs().clamp(min=1)).max().item() for read, value in first.items())


def test_every_public_intervention_is_listed():
    edits = EDITS + MORE_EDITS
    listed = {kind_of(edit) for edit in edits}
    listed |= {type(edit.operation) for edit in edits if isinstance(edit, iv.Change)}
    listed |= {type(edit.share) for edit in edits if isinstance(edit, iv.RemoveColumn)}
    listed |= {type(edit.first) for edit in edits if isinstance(edit, KeepHeaviest)}
    elsewhere = {changes.PutAt, changes.Apply, changes.CallFunction}  # below, and in the tests of edits
    assert {*EVERY, *changes.CHANGED} <= listed | elsewhere


@pytest.mark.parametrize("name", zoo.CONFIGS)
def test_every_intervention_does_the_same_on_every_backend(name, request):
    """The architectures outside `IN_BOTH` meet the other two backends by turns; shapes are checked in two of all."""
    if name not in IN_SHAPE:
        request.getfixturevalue("as_users_run_it")
    subjects = [zoo.subject_of(name, backend) for backend in BACKENDS]
    before = [zoo.state_of(subject.model) for subject in subjects]
    plain = run(subjects[0])
    for i, edit in enumerate((*EDITS, *MORE_EDITS) if name in IN_MORE else EDITS, list(zoo.CONFIGS).index(name)):
        words = refusal(edit, name)
        if words:
            for subject in subjects:
                refused(partial(run, subject, edit), words)
            continue
        first = run(subjects[0], edit)
        for other in subjects[1:] if name in IN_BOTH else (subjects[1 + i % 2],):
            assert worst(first, run(other, edit)) < 1e-5, edit
        effect = (first["logits"] - plain["logits"]).abs().max()
        assert effect < 1e-6 if is_null(edit, name) else effect > 1e-4, (edit, effect)
    assert all(zoo.has_weights(subject.model, state) for subject, state in zip(subjects, before, strict=True))


OUTSIDE = {  # the tests of selectors have all of them
    iv.ChangeResidual(iv.Zero(), layers=[4]): "no layer 4; this model and input have 0 to 3",
    iv.ChangeKeys(iv.Zero(), kv_heads=[(1, 4)]): "no kv_head 4 of layer 1",
    iv.ChangeOutputs(iv.SwapWith(0, LENGTH)): "no position 17",
    BlindKeys([48]): "no dimension 48",
    iv.ChangeValues(positions=[0]): "an edit without an operation only names a site",
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_place_outside_the_model_is_refused_before_anything_runs(backend):
    subject = zoo.subject_of("gpt2", backend)
    before, ran = zoo.state_of(subject.model), []
    for edit, message in OUTSIDE.items():
        refused(partial(subject.run, TOKENS, reads={"x": ran.append}, edits=[iv.ZeroValueBias(), edit]), message)
    assert not ran and zoo.has_weights(subject.model, before)


def test_weights_that_a_model_lacks_or_lays_out_otherwise_are_refused_with_nothing_changed():
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = GPTBigCodeConfig(vocab_size=zoo.VOCAB, n_embd=72, n_layer=2, n_head=6, n_positions=64, **ends)
    for subject, edits, message in (
        (zoo.subject_of("llama"), [BlindKeys([3]), iv.ZeroKeyBias()], "layer 0 has no such bias to zero"),
        (load(AutoModelForCausalLM.from_config(config)), [iv.ZeroKeyBias()], "key weights of layer 0 are not found"),
    ):
        before = zoo.everything_of(subject.model)
        for use in (partial(subject.run, TOKENS, edits=edits), patched(subject.model, edits=edits).__enter__):
            refused(use, message)
        assert zoo.everything_of(subject.model) == before


def assert_as_by_hand(model, subjects, oracles) -> None:
    """An edit has the logits of a copy of the model that was changed by hand."""
    for edit, change in oracles.items():
        own = copy.deepcopy(model)
        with torch.no_grad():
            change(own)
        expected = zoo.bare_logits(own, TOKENS)
        for subject in subjects:
            torch.testing.assert_close(subject.run(TOKENS, edits=[edit]).logits, expected, rtol=0, atol=1e-6)


def _views(model, name: str, layer: int, role: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight `head d_head d_model` and bias `head d_head` of a layer's queries, keys or values, cut out by hand."""
    if name == FUSED:
        conv = model.transformer.h[layer].attn.c_attn
        own = slice(48 * role, 48 * role + 48)
        return conv.weight[:, own].T.unflatten(0, (4, 12)), conv.bias[own].view(4, 12)
    if name == INTERLEAVED:
        linear = model.gpt_neox.layers[layer].attention.query_key_value
        start = 12 * role
        return linear.weight.view(4, 36, 48)[:, start : start + 12], linear.bias.view(4, 36)[:, start : start + 12]
    attention = model.model.layers[layer].self_attn
    linear = (attention.q_proj, attention.k_proj, attention.v_proj)[role]
    return linear.weight.view(-1, 12, 48), linear.bias.view(-1, 12)


@pytest.mark.parametrize("name", [FUSED, INTERLEAVED, SPLIT])
def test_edits_of_weights_are_weights_edited_by_hand(name):
    model = zoo.model_of(name)
    subjects = [zoo.subject_of(name, backend) for backend in BACKENDS]
    last = subjects[0].shape.n_kv_heads - 1

    def no_bias(role, chosen):
        def change(own):
            for layer, heads in chosen.items():
                _views(own, name, layer, role)[1][heads] = 0

        return change

    def blind(own):
        for layer in (0, 2):
            _views(own, name, layer, 1)[0][..., [3, 40]] = 0

    everywhere = dict.fromkeys((0, 1, 2), slice(None))
    some = {1: [last - 1, last], 2: [0]}
    oracles = {
        iv.ZeroQueryBias(): no_bias(0, everywhere),
        iv.ZeroKeyBias(): no_bias(1, everywhere),
        iv.ZeroValueBias(): no_bias(2, everywhere),
        iv.ZeroQueryBias(heads=[(1, 2), (1, 3), (2, 0)]): no_bias(0, {1: [2, 3], 2: [0]}),
        iv.ZeroKeyBias(kv_heads=[(1, last - 1), (1, last), (2, 0)]): no_bias(1, some),
        iv.ZeroValueBias(kv_heads=[(1, last - 1), (1, last), (2, 0)]): no_bias(2, some),
        iv.ZeroValueBias(layers=[2]): no_bias(2, {2: slice(None)}),
        BlindKeys([3, 40], layers=[0, 2]): blind,
    }
    assert_as_by_hand(model, subjects, oracles)


SITES = (
    iv.ChangeResidual(), iv.ChangeMLP(), iv.Change(sites.QUERIES), iv.ChangeKeys(), iv.ChangeValues(),
    iv.ChangeOutputs(), iv.Change(sites.PATTERN),
)  # fmt: skip
EXACT = (sites.RESIDUAL, sites.MLP)  # the others make attention run through our own function
SAME = changes.Apply(lambda x: x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", IN_SHAPE)
def test_an_identity_and_what_is_put_back_where_it_was_taken_change_nothing(name, backend):
    subject = zoo.subject_of(name, backend)
    plain = run(subject)
    for edits in ([iv.Change(sites.TOKEN_EMBEDDING, SAME)], [iv.SwapPositions(0, 4), iv.SwapPositions(4, 0)]):
        assert all(plain[read].equal(same) for read, same in run(subject, *edits).items())
    for edit in (iv.PatchNormalization(SOFTMAX), iv.Temperature(1.0), iv.BiasColumn(0.0)):
        assert worst(plain, run(subject, edit)) < 1e-6, edit
    for site in SITES:
        assert all(plain[read].equal(same) for read, same in run(subject, replace(site, operation=SAME)).items())
        taken = subject.run(TOKENS, reads={"site": site.read()})["site"]
        values = {layer: taken[:, i] for i, layer in enumerate(site.site.layers(subject.shape))}
        for operation in (iv.Put(values), iv.Add({layer: torch.zeros_like(x) for layer, x in values.items()})):
            again = run(subject, replace(site, operation=operation))
            assert worst(plain, again) < 1e-6, site
            assert site.site not in EXACT or all(plain[read].equal(again[read]) for read in plain), site
        other = {layer: x[[1, 1, 2, 3, 4]] for layer, x in values.items()}
        assert worst(plain, run(subject, replace(site, operation=iv.Put(other)))) > 1e-4, site
        shorter = {layer: x[..., :-1, :] for layer, x in values.items()}
        refused(partial(run, subject, replace(site, operation=iv.Put(shorter))))


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_models_know_distances_only(name):
    subject = zoo.subject_of(name)
    plain = run(subject)
    assert worst(plain, run(subject, zoo.ShiftPositions(11, start=0))) < 1e-4
    assert worst(plain, run(subject, zoo.ShiftPositions(11, start=3))) > 1e-3
    run(subject, zoo.ShiftPositions(100, start=0))  # beyond its context, which is no table


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", zoo.LEARNED_POSITIONS)
def test_a_table_of_positions_ends_somewhere(name, backend):
    subject = zoo.subject_of(name, backend)
    run(subject, zoo.ShiftPositions(64 - LENGTH, start=0))
    refused(lambda: run(subject, zoo.ShiftPositions(65 - LENGTH, start=0)))


def _table(model, name: str) -> tuple[torch.nn.Parameter, int]:
    """The table of learned positions and the row of position 0."""
    if name == "gpt2":
        return model.transformer.wpe.weight, 0
    if name == "opt":
        return model.model.decoder.embed_positions.weight, 2
    return model.model.position.table.weight, 0


@pytest.mark.parametrize("name", [*zoo.LEARNED_POSITIONS, "ours"])
def test_positions_are_rows_of_a_table_edited_by_hand(name):
    spec = replace(VARIANTS["softmax"], vocab=zoo.VOCAB, d_model=42, n_heads=3, n_layers=2, n_ctx=29)
    model = build(spec) if name == "ours" else zoo.model_of(name)
    subjects = [load(model)] if name == "ours" else [zoo.subject_of(name, backend) for backend in BACKENDS]

    def changed(change, own):
        table, first = _table(own, name)
        table[first : first + LENGTH] = change(table[first : first + LENGTH].clone())

    def zeroed(rows):
        rows[[0, 3]] = 0
        return rows

    oracles = {
        RemovePosition([0, 3]): zeroed,
        RemovePosition(): torch.zeros_like,
        iv.SwapPositions(0, 4): lambda rows: rows[[4, 1, 2, 3, 0, *range(5, LENGTH)]],
        ReplacePosition(0, 4): lambda rows: rows[[4, *range(1, LENGTH)]],
        iv.Change(sites.POSITION_EMBEDDING, iv.SwapWith(0, 4)): lambda rows: rows[[4, 1, 2, 3, 0, *range(5, LENGTH)]],
        iv.Change(sites.POSITION_EMBEDDING, iv.Scale(0.5)): lambda rows: rows / 2,
    }
    assert_as_by_hand(model, subjects, {edit: partial(changed, change) for edit, change in oracles.items()})


def test_gradients_pass_edits_of_activations_and_of_weights():
    subject = zoo.subject_of("gpt2")
    added = torch.zeros(1, LENGTH, 48, requires_grad=True)
    edits = [iv.ChangeResidual(iv.Add({1: added}), layers=[1]), iv.ChangeOutputs(iv.Scale(0.5)), iv.Temperature(2.0)]
    found = []
    for more in ([], [iv.ZeroQueryBias(), BlindKeys(range(20))]):
        trace = subject.run(TOKENS, edits=[*edits, *more], gradients=True)
        found.append(torch.autograd.grad(trace.logits.square().sum(), added)[0])
    own = copy.deepcopy(subject.model)
    with torch.no_grad():
        for layer in range(3):
            _views(own, "gpt2", layer, 0)[1].zero_()
            _views(own, "gpt2", layer, 1)[0][..., :20] = 0
    trace = load(own).run(TOKENS, edits=edits, gradients=True)
    torch.testing.assert_close(found[1], torch.autograd.grad(trace.logits.square().sum(), added)[0])
    assert (found[0] - found[1]).abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [FUSED, INTERLEAVED, SPLIT])
def test_edits_of_weights_write_nothing_into_a_model_also_during_a_pass_and_when_it_fails(name, backend):
    subject = zoo.subject_of(name, backend)
    before, during = zoo.state_of(subject.model), []
    edits = [iv.ZeroKeyBias(), iv.ZeroQueryBias(heads=[(1, 2)]), iv.ZeroValueBias(layers=[0]), BlindKeys([3, 5])]

    def look_and_fail(call):
        during.append(zoo.has_weights(subject.model, before))
        if call.layer == 1:
            raise RuntimeError("a read that fails")
        return call.q.sum((1, 2, 3))

    with pytest.raises(Exception, match="a read that fails"):
        subject.run(TOKENS, reads={"look": look_and_fail}, edits=edits)
    assert during == [True, True] and zoo.has_weights(subject.model, before)
