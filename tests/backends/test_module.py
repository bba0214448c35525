"""PyTorch modules of the user's own: found, read and edited as an eager computation of each says."""

import pytest
import torch

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.errors import InputError
from tests.backends import own_modules as zoo
from tests.backends.own_modules import LAYERS, ROWS, VOCAB, D, H, written_out

ALL, IDS = tuple(range(LAYERS)), torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))
PARTS = si.AttentionOf(
    "blocks.*.attn", queries="heads.*.query", keys="heads.*.key", values="heads.*.value", output="proj"
)
# the module, what si.load is told, its kv heads, the blocks whose updates are found, whether positions can be moved,
# the name of what is added for positions
MODULES = {
    "nanoGPT": (zoo.NanoGPT, {}, H, ALL, True, "wpe"),
    "litgpt": (zoo.Litgpt, {}, 1, ALL, True, ""),
    "llama": (zoo.LlamaReference, {}, H, ALL, True, ""),
    "nanochat": (zoo.Nanochat, {}, 1, ALL[-1:], True, ""),  # the others are scaled before the next block
    "parallel": (zoo.Parallel, {}, 1, ALL, True, ""),
    "post-norm": (zoo.PostNorm, {}, H, (), True, "pe"),
    "encoder": (zoo.Encoder, {}, H, ALL, True, "pos"),
    "encoder, positions first": (lambda: zoo.Encoder(False), {}, H, ALL, True, "pos"),
    "multihead": (zoo.Multihead, {}, H, ALL, True, "wpe"),
    "no blocks": (zoo.NoBlocks, {}, 1, ALL, True, ""),
    "course": (zoo.Course, {"attention": PARTS}, H, ALL, True, "wpe"),
}


def peaked(make):
    torch.manual_seed(0)
    model = make().train()
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model


@pytest.fixture(scope="module")
def subjects():
    return {name: si.load(peaked(make), **told) for name, (make, told, *_) in MODULES.items()}


def logits_of(out):
    out = out["logits"] if isinstance(out, dict) else out
    return out[0] if isinstance(out, tuple) else out


def bare(model, ids=IDS):
    with torch.no_grad():
        model.eval()
        has_targets = isinstance(model, zoo.NanoGPT)
        logits = logits_of(model(ids, ids) if has_targets else model(ids))
        model.train()
    return logits


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_read_as_its_own_eager_computation(name, subjects):
    subject, (_, _, n_kv_heads, mlp_layers, moves, positions) = subjects[name], MODULES[name]
    model, patterns, stream = subject.model, [], []
    blocks = [] if name == "no blocks" else model.blocks
    hooks = [block.register_forward_pre_hook(lambda block, args: stream.append(args[0])) for block in blocks]
    with written_out(patterns):
        logits = bare(model)
    for hook in hooks:
        hook.remove()
    trace = subject.run(IDS, calls={"p": lambda call: call.pattern()}, residuals={"x": lambda x: x.clone()})
    torch.testing.assert_close(trace.logits, logits, rtol=1e-5, atol=1e-5)
    if patterns:
        torch.testing.assert_close(trace.calls["p"], torch.stack(patterns, 1), rtol=1e-5, atol=1e-5)
    if stream:
        expected = torch.stack([x.transpose(0, 1) if x.shape[0] == IDS.shape[1] else x for x in stream], 1)
        torch.testing.assert_close(trace.residuals["x"][:, :-1], expected, rtol=1e-5, atol=1e-5)
    shape, able = subject.shape, subject._abilities
    assert (shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.d_model, shape.vocab) == (
        LAYERS, H, n_kv_heads, D, VOCAB,
    )  # fmt: skip
    assert shape.mlp_layers == mlp_layers and able.takes_positions == moves and able.positions_are_plain == moves
    assert subject.anatomy.positions_name == positions and positions in repr(subject)
    assert model.training and all("forward" not in vars(module) for module in model.modules())


def swapped_rows(name, model):
    """Exchanges positions 2 and 7 of what is added for positions, or of the rotation that a module keeps."""
    rows = [*range(ROWS)]
    rows[2], rows[7] = 7, 2
    tables = {"wpe": [("wpe.weight", 0)], "pos": [("pos", 1)], "pe": [("pe", 1)], "": [("cos", 1), ("sin", 1)]}
    for key, axis in tables[MODULES[name][-1]]:
        tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[key]
        tensor.data = tensor.data.index_select(axis, torch.tensor(rows))


KEPT = [name for name in MODULES if MODULES[name][-1] or name == "nanochat"]


@pytest.mark.parametrize("name", KEPT)
def test_a_swap_of_positions_is_a_swap_of_the_rows_that_a_module_keeps(name, subjects):
    logits, model = subjects[name].run(IDS, edits=[si.SwapPositions(2, 7)]).logits, peaked(MODULES[name][0])
    swapped_rows(name, model)
    torch.testing.assert_close(logits, bare(model), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits, bare(subjects[name].model), atol=1e-3)


def test_a_swap_of_rotations_that_are_computed_is_that_of_kept_ones(monkeypatch, subjects):
    turns = zoo.angles
    rows = [0, 1, 7, 3, 4, 5, 6, 2, 8, 9, 10]
    for name in ("litgpt", "llama", "parallel", "no blocks"):
        logits = subjects[name].run(IDS, edits=[si.SwapPositions(2, 7)]).logits
        with monkeypatch.context() as patch:
            patch.setattr(zoo, "angles", lambda length, d: turns(length, d)[rows])
            torch.testing.assert_close(logits, bare(subjects[name].model), rtol=1e-5, atol=1e-5)


EDITS = [
    iv.RemovePosition([0]), iv.ChangeMLP(iv.Scale(0.5), layers=[1]), iv.ChangeResidual(iv.Scale(0.5), layers=[2]),
    iv.Temperature(2.0, layers=[1]), si.PatchNormalization(si.attention.kernels.Sigmoid()), si.SwapPositions(0, 3),
]  # fmt: skip


def test_edits_of_a_gpt_are_those_of_the_same_weights_in_transformers(subjects):
    subject = subjects["nanoGPT"]
    twin = si.load(si.to_transformers(subject))
    for edit in [(), *([edit] for edit in EDITS)]:
        ours, theirs = (one.run(IDS, edits=edit).logits for one in (subject, twin))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    measured, reference = (si.measure(one, IDS) for one in (subject, twin))
    for ours, theirs in zip(measured.value_ratio(), reference.value_ratio(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert str(measured.sink(epsilon=0.1)) == str(reference.sink(epsilon=0.1)) != "0 [0, 0]"


@pytest.mark.parametrize("name", MODULES)
def test_a_patched_module_returns_what_an_edited_run_does(name, subjects):
    subject, edit = subjects[name], si.SwapPositions(1, 4)
    expected, before = subject.run(IDS, edits=[edit]).logits, bare(subject.model)
    with si.patched(subject, edit):
        torch.testing.assert_close(bare(subject.model), expected)
    assert bare(subject.model).equal(before) and "forward" not in vars(subject.model)


@pytest.mark.parametrize("name, kind", {"nanoGPT": "GPT2", "course": None, "litgpt": "Llama", "llama": "Llama"}.items())
def test_a_module_shaped_as_gpt2_or_llama_leaves_as_one_and_is_read_again(name, kind, subjects, tmp_path):
    subject = subjects[name]
    if kind is None:
        with pytest.raises(InputError, match="not shaped as GPT-2 or Llama"):
            si.to_transformers(subject)
        return
    model = si.to_transformers(subject)
    assert type(model).__name__.startswith(kind)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(si.load(tmp_path).run(IDS).logits, subject.run(IDS).logits, rtol=1e-5, atol=1e-5)
