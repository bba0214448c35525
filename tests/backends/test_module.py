"""PyTorch modules of the user's own: found, read and edited as an eager computation of each says."""

from functools import partial

import pytest
import torch
from backends import own_modules as zoo
from backends.own_modules import LAYERS, ROWS, VOCAB, D, H, written_out
from backends.test_interventions import EDITS, MORE_EDITS, TOKENS
from backends.zoo import ShiftPositions
from refusals import refused
from torch import nn

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.sites import RESIDUAL, WEIGHT_SITES
from sinkinterp.backends.anatomy import removed_after
from sinkinterp.checks import InputError

ALL, IDS = tuple(range(LAYERS)), torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))
ATTENTION = si.AttentionOf("blocks.*.attn", zoo.attended)
# the module, what si.load is told, its kv heads, the blocks whose updates are found, whether positions can be moved,
# the name of what is added for positions
MODULES = {
    "nanoGPT": (zoo.NanoGPT, {}, H, ALL, True, "wpe"),
    "litgpt": (zoo.Litgpt, {}, 1, ALL, True, ""),
    "llama": (zoo.LlamaReference, {}, H, ALL, True, ""),
    "nanochat": (zoo.Nanochat, {}, 1, (), True, ""),  # updates are scaled before the next block
    "parallel": (zoo.Parallel, {}, 1, ALL, True, ""),
    "post-norm": (zoo.PostNorm, {}, H, (), True, "pe"),
    "encoder": (zoo.Encoder, {}, H, ALL, True, "pos"),
    "encoder, positions first": (lambda: zoo.Encoder(False), {}, H, ALL, True, "pos"),
    "multihead": (zoo.Multihead, {}, H, ALL, True, "wpe"),
    "no blocks": (zoo.NoBlocks, {}, 1, ALL, True, ""),
    "course": (zoo.Course, {"attention": ATTENTION}, H, ALL, True, "wpe"),
}


def peaked(make):
    torch.manual_seed(0)
    model = make().train()
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model


@pytest.fixture(scope="module")
def subjects():
    return {name: si.load(peaked(make), parts=si.ModuleParts(**told)) for name, (make, told, *_) in MODULES.items()}


def logits_of(out):
    out = out["logits"] if isinstance(out, dict) else out
    return out[0] if isinstance(out, tuple) else out


def close(ours, right):
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=5e-5)


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
    with removed_after(hooks), written_out(patterns):
        logits = bare(model)
    trace = subject.run(IDS, reads={"p": lambda call: call.pattern(), "x": RESIDUAL.read(lambda x: x.clone())})
    close(trace.logits, logits)
    if patterns:
        close(trace["p"], torch.stack(patterns, 1))
    if stream:
        expected = torch.stack([x.transpose(0, 1) if x.shape[0] == IDS.shape[1] else x for x in stream], 1)
        close(trace["x"][:, :-1], expected)
    shape, able = subject.shape, subject._abilities
    assert (shape.n_layers, shape.n_heads, shape.n_kv_heads, shape.d_model, shape.vocab) == (
        LAYERS, H, n_kv_heads, D, VOCAB,
    )  # fmt: skip
    assert shape.mlp_layers == mlp_layers and able.takes_positions == moves and able.positions_are_plain == moves
    assert positions in repr(subject) and subject._positions_source.removesuffix(".weight") == positions
    assert model.training and all("forward" not in vars(module) for module in model.modules())


SWAPPED = [0, 1, 7, 3, 4, 5, 6, 2, *range(8, ROWS)]


def change_rows(name, model, rows=SWAPPED):
    """Changes the order of what is added for positions, or of the rotation that a module keeps."""
    tables = {"wpe": [("wpe.weight", 0)], "pos": [("pos", 1)], "pe": [("pe", 1)], "": [("cos", 1), ("sin", 1)]}
    for key, axis in tables[MODULES[name][-1]]:
        tensor = {**dict(model.named_parameters()), **dict(model.named_buffers())}[key]
        tensor.data = tensor.data.index_select(axis, torch.tensor(rows))


@pytest.mark.parametrize("name", ["nanochat", "post-norm"])
def test_updates_that_are_not_what_blocks_add_are_refused_in_all_blocks(name, subjects):
    for asked in ({"edits": [iv.ChangeMLP(iv.Zero())]}, {"reads": {"x": iv.ChangeMLP().read()}}):
        refused(partial(subjects[name].run, IDS, **asked))


class Growing(zoo.GroupedAttention):
    """Rotations of the longest input so far are kept, as in many models."""

    turns = torch.zeros(0, D // H)

    def rotated(self, x):
        if len(self.turns) < x.shape[2]:
            self.turns = 1.0 * zoo.angles(x.shape[2], x.shape[3]).repeat(1, 2)
        first, second = x.chunk(2, -1)
        cos, sin = (t[: x.shape[2]] for t in (self.turns.cos(), self.turns.sin()))
        return x * cos + torch.cat((-second, first), -1) * sin


class Hidden(Growing):
    """Half of the rotation is written with another function."""

    def rotated(self, x):
        angle = zoo.angles(x.shape[2], x.shape[3]).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return torch.addcmul(x * angle.cos(), torch.cat((-second, first), -1), angle.sin())


def rotary(attention):
    def make():
        model = zoo.Litgpt()
        model.blocks = nn.ModuleList([zoo.PreNorm(attention, zoo.RMSNorm, zoo.SwiGLU) for _ in range(LAYERS)])
        return model

    return make


def computing(model):
    """The same weights in a module that computes its rotations."""
    twin = zoo.Litgpt()
    twin.load_state_dict(model.state_dict())
    return si.load(twin)


def test_a_module_that_keeps_rotations_is_read_at_any_length():
    subject = si.load(peaked(rotary(Growing)))
    plain = computing(subject.model)
    for edits in ([si.SwapPositions(2, 7)], [], [iv.ChangeResidual(iv.Zero(), layers=[1], positions=[3])]):
        logits = subject.run(IDS, edits=edits).logits
        close(logits, plain.run(IDS, edits=edits).logits)


def test_positions_that_are_found_only_in_part_cannot_be_moved():
    subject = si.load(peaked(rotary(Hidden)))
    torch.testing.assert_close(subject.run(IDS).logits, computing(subject.model).run(IDS).logits)
    refused(lambda: subject.run(IDS, edits=[si.SwapPositions(2, 7)]))


KEPT = [name for name in MODULES if MODULES[name][-1] or name == "nanochat"]


@pytest.mark.parametrize("name", KEPT)
def test_a_swap_of_positions_is_a_swap_of_the_rows_that_a_module_keeps(name, subjects):
    logits, model = subjects[name].run(IDS, edits=[si.SwapPositions(2, 7)]).logits, peaked(MODULES[name][0])
    change_rows(name, model)
    close(logits, bare(model))
    assert not torch.allclose(logits, bare(subjects[name].model), atol=1e-3)


@pytest.mark.parametrize("name", KEPT)
def test_tokens_move_to_rows_that_their_text_does_not_reach(name, subjects):
    logits, model = subjects[name].run(IDS, edits=[ShiftPositions(5, start=2)]).logits, peaked(MODULES[name][0])
    change_rows(name, model, [0, 1, *range(7, ROWS), *range(2, 7)])
    close(logits, bare(model))
    refused(lambda: subjects[name].run(IDS, edits=[ShiftPositions(ROWS)]), str(ROWS))


@pytest.mark.parametrize("name", [name for name in MODULES if MODULES[name][-1]])
def test_edits_of_embeddings_are_those_of_what_the_tables_return(name, subjects):
    subject, model = subjects[name], peaked(MODULES[name][0])
    table = {**dict(model.named_parameters()), **dict(model.named_buffers())}[subject.anatomy.positions.source]
    table.data.view(-1, D)[[2, 5]] *= 0.5
    edit = iv.Change(sites.POSITION_EMBEDDING, iv.Scale(0.5), positions=[2, 5])
    close(subject.run(IDS, edits=[edit]).logits, bare(model))

    def changed(table, args, x):
        return torch.cat((x[:, :3], 0.5 * x[:, 3:4], x[:, 4:]), 1)

    with subject.model.wte.register_forward_hook(changed):
        expected = bare(subject.model)
    edit = iv.Change(sites.TOKEN_EMBEDDING, iv.Scale(0.5), positions=[3])
    close(subject.run(IDS, edits=[edit]).logits, expected)


@pytest.mark.parametrize("name", ["nanoGPT", "nanochat"])
def test_a_module_that_its_owner_moves_or_changes_is_read_as_it_is_then(name):
    subject, model = si.load(peaked(MODULES[name][0])), peaked(MODULES[name][0])
    for one in (subject.model, model):
        one.double()
        change_rows(name, one)
        one.wte.weight = one.head.weight = nn.Parameter(one.wte.weight.data.flip(0))
    change_rows(name, model)
    torch.testing.assert_close(subject.run(IDS, edits=[si.SwapPositions(2, 7)]).logits, bare(model))
    torch.testing.assert_close(subject.run(IDS).logits, bare(subject.model))
    assert subject.dtype == torch.float64


def test_a_swap_of_rotations_that_are_computed_is_that_of_kept_ones(monkeypatch, subjects):
    turns = zoo.angles
    rows = [0, 1, 7, 3, 4, 5, 6, 2, 8, 9, 10]
    for name in ("litgpt", "llama", "parallel", "no blocks"):
        logits = subjects[name].run(IDS, edits=[si.SwapPositions(2, 7)]).logits
        with monkeypatch.context() as patch:
            patch.setattr(zoo, "angles", lambda length, d: turns(length, d)[rows])
            close(logits, bare(subjects[name].model))


def gpt_and_twin():
    subject = si.load(peaked(zoo.NanoGPT))
    return subject, si.load(zoo.gpt2_of(subject.model))


def either_axis_first():
    return [si.load(peaked(lambda first=first: zoo.Encoder(first))) for first in (True, False)]


@pytest.mark.parametrize("twins", [gpt_and_twin, either_axis_first])
def test_every_intervention_does_the_same_to_a_twin(twins, monkeypatch):
    """The same weights in transformers, and an encoder whose positions are the first axis."""
    for size, value in {"D": 48, "H": 4, "VOCAB": 97}.items():  # those of the edits
        monkeypatch.setattr(zoo, size, value)
    subjects = twins()
    for edit in (*EDITS, *MORE_EDITS):
        ours, theirs = (outcome(subject, edit) for subject in subjects)
        if getattr(edit, "site", None) in (sites.ATTENTION_INPUT, sites.NEURONS):  # found by names of transformers
            assert f"not every block shows its {edit.site.label}" in ours, edit
        elif any(map(edit.touches, WEIGHT_SITES)):
            assert "are not found; edit its call instead" in ours, edit
        elif isinstance(theirs, str):
            assert ours.partition(" ")[2] == theirs.partition(" ")[2], edit  # beside the name of the model
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=str(edit))


def outcome(subject, edit):
    """The logits under an edit, or the refusal."""
    try:
        return subject.run(TOKENS, edits=[edit]).logits
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("name", MODULES)
def test_a_patched_module_returns_what_an_edited_run_does(name, subjects):
    subject, edit = subjects[name], si.SwapPositions(1, 4)
    expected, before = subject.run(IDS, edits=[edit]).logits, bare(subject.model)
    with si.patched(subject, edit):
        torch.testing.assert_close(bare(subject.model), expected)
        if name == "nanoGPT":  # without targets it computes no loss
            torch.testing.assert_close(subject.model.eval()(IDS)[0], expected[:, -1:])
            subject.model.train()
    assert bare(subject.model).equal(before) and "forward" not in vars(subject.model)


class Mutant(zoo.FusedAttention):
    """Attention of NanoGPT whose call, or what is done with it, is changed; by class, so that one test tells all."""

    def attended(self, q, k, v):
        return zoo.sdpa(q, k, v, is_causal=True)

    def forward(self, x):
        q, k, v = (zoo.heads(part, H) for part in self.c_attn(x).split(D, dim=2))
        return self.c_proj(zoo.merged(self.attended(q, k, v)))


def attending(call):
    return type("Attention", (Mutant,), {"attended": call})


def asking(**options):
    return attending(lambda self, q, k, v: zoo.sdpa(q, k, v, **options))


def masked(allowed):
    """Attention under a mask of booleans."""
    return attending(lambda self, q, k, v: zoo.sdpa(q, k, v, attn_mask=allowed(q.shape[2])))


class WideValues(nn.Module):
    """Attention of two heads whose values are wider than their queries and keys."""

    def __init__(self):
        super().__init__()
        self.qk, self.v, self.out = nn.Linear(D, 20), nn.Linear(D, 34), nn.Linear(34, D)

    def forward(self, x):
        parts = (*self.qk(x).split(10, -1), self.v(x))
        return self.out(zoo.merged(zoo.sdpa(*(zoo.heads(part, 2) for part in parts), is_causal=True)))


def gpt_with(attention, **changes):
    """NanoGPT with other attention and other methods."""

    def make():
        model = type("Mutated", (zoo.NanoGPT,), changes)()
        model.blocks = nn.ModuleList([zoo.PreNorm(attention) for _ in range(LAYERS)])
        return model

    return make


def ones(n):
    return torch.ones(n, n, dtype=torch.bool)


def distances(n):
    return (torch.arange(n)[:, None] - torch.arange(n)).float()


def alibi(self, q, k, v):
    bias = -0.3 * torch.arange(1, H + 1)[:, None, None] * distances(q.shape[2])
    return zoo.sdpa(q, k, v, attn_mask=bias.masked_fill(~ones(q.shape[2]).tril(), -1e9))


def unused(self, q, k, v):
    return zoo.sdpa(q, k, v, is_causal=True) * 0 + v


def head_by_head(self, q, k, v):
    return torch.stack([zoo.sdpa(*(t[:, i] for t in (q, k, v)), is_causal=True) for i in range(H)], 1)


def in_one_axis(self, q, k, v):
    return zoo.sdpa(*(t.flatten(0, 1) for t in (q, k, v)), is_causal=True).unflatten(0, (len(q), H))


def two_tables(self, ids):
    return zoo.NanoGPT.embed(self, ids) + self.pos[: ids.shape[1]]


def added_to_nothing(self, x):
    return self.mlp(self.ln_2(self.attn(self.ln_1(x))))


def with_second_table():
    model = gpt_with(Mutant, embed=two_tables)()
    model.pos = nn.Parameter(torch.randn(ROWS, D))
    return model


def shared_block():
    model = zoo.NanoGPT()
    model.blocks = nn.ModuleList([model.blocks[0]] * LAYERS)
    return model


def one_written_out():
    model = zoo.NanoGPT()
    model.blocks[1] = zoo.PreNorm(zoo.Heads)
    return model


def twice(self, x):
    return zoo.PreNorm.forward(self, x + self.attn(self.ln_1(x)))


def with_blocks(forward, attention=Mutant):
    def make():
        model = zoo.NanoGPT()
        block = type("Block", (zoo.PreNorm,), {"forward": forward})
        model.blocks = nn.ModuleList([block(attention) for _ in range(LAYERS)])
        return model

    return make


def scaled(self, x):
    x = self.ln_1(2 * x + self.attn(x))
    return self.ln_2(2 * x + self.mlp(x))


WRONG = si.AttentionOf("blocks.*.attn", partial(zoo.attended, parts=("query", "value", "key")))


def test_a_described_module_equals_the_one_that_is_found(as_users_run_it):
    model = peaked(zoo.NanoGPT)
    told = si.load(model, parts=si.ModuleParts(lambda module, ids: module(ids, ids)[0], "blocks", "wpe"))
    found = si.load(model)
    assert told.anatomy == found.anatomy and told.shape == found.shape
    refused(lambda: si.load(zoo.gpt2_of(model), parts=si.ModuleParts(blocks="transformer.h")), "parts")


REFUSED = {
    "not causal": (gpt_with(asking(is_causal=False)), {}),
    "one key too many": (gpt_with(masked(lambda n: ones(n).tril(1))), {}),
    "dropout that stays on": (gpt_with(asking(is_causal=True, dropout_p=0.3)), {}),
    "attention that is not used": (gpt_with(attending(unused)), {}, "block 0"),
    "attention added to nothing": (with_blocks(added_to_nothing), {}, "blocks='blocks') (3"),
    "heads one at a time": (gpt_with(attending(head_by_head)), {}, "AttentionOf"),
    "heads and sequences in one axis": (gpt_with(attending(in_one_axis)), {}, "AttentionOf"),
    "two tables of positions": (with_second_table, {}, "positions='wpe'", "positions='pos'"),
    "a scaled stream": (with_blocks(scaled), {}, "blocks='blocks') (3"),
    "positions that are not there": (zoo.NanoGPT, {"positions": "wte"}, "positions='wpe'"),
    "blocks that are not there": (zoo.NanoGPT, {"blocks": "wte"}, "blocks='blocks') (3"),
    "attention written out": (zoo.Course, {}, "blocks.*.attn.heads.*", "AttentionOf"),
    "one block that writes attention out": (one_written_out, {}, "AttentionOf"),
    "a wrong description": (zoo.Course, {"attention": WRONG}, "blocks.0.attn", "off by"),
    "no attention": (lambda: nn.Embedding(5, 3), {}, "AttentionOf"),
    "the last position's logits": (zoo.NanoGPT, {"forward": lambda model, ids: model(ids)[0]}, "forward="),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_fails_a_check_is_refused_by_name(name):
    make, told, *words = REFUSED[name]
    model = peaked(make)
    refused(lambda: si.load(model, parts=si.ModuleParts(**told)), *words)
    assert all("forward" not in vars(module) for module in model.modules())


MEASURED = {
    "another scale": gpt_with(asking(is_causal=True, scale=1.7)),
    "a window": gpt_with(masked(lambda n: ones(n).tril() & ~ones(n).tril(-4))),
    "ALiBi": gpt_with(attending(alibi)),
    "a mask that is causal": gpt_with(masked(lambda n: ones(n).tril())),
    "one block thrice": shared_block,
    "two calls in a block": with_blocks(twice),
    "a chosen table": with_second_table,
    "a scaled stream": with_blocks(scaled),
    "values wider than keys": gpt_with(WideValues),
}


CHOSEN = {"a chosen table": {"positions": "pos"}, "a scaled stream": {"blocks": "blocks"}}


@pytest.mark.parametrize("name", MEASURED)
def test_unusual_attention_is_measured_as_it_is(name):
    model, patterns = peaked(MEASURED[name]), []
    subject = si.load(model, parts=si.ModuleParts(**CHOSEN[name]) if name in CHOSEN else None)
    with written_out(patterns):
        logits = bare(model)
    reads = {"p": lambda call: call.pattern(), "seen": pairs_seen}
    trace = subject.run(IDS, reads=reads | {"masked": lambda call: torch.full(IDS.shape[:1], call.mask is not None)})
    close(trace.logits, logits)
    close(trace["p"], torch.stack(patterns, 1))
    n = IDS.shape[1]
    assert trace["seen"].eq(4 * n - 6 if name == "a window" else n * (n + 1) // 2).all()
    assert name != "a mask that is causal" or not trace["masked"].any()  # it is computed as without a mask


def pairs_seen(call):
    return call.allowed().float().mean(1).expand(len(IDS), -1, -1).sum((1, 2))


class Flexible(zoo.FusedAttention):
    """Attention by `flex_attention`, which compiles itself."""

    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = (zoo.heads(part, H) for part in self.c_attn(x).split(D, dim=2))
        z = flex_attention(q, k, v, lambda score, b, h, i, j: torch.where(i >= j, score, -torch.inf))
        return self.c_proj(zoo.merged(z))


@pytest.mark.filterwarnings("ignore")
def test_flex_attention_is_refused_and_read_where_it_is_described():
    def attend(module, x):
        q, k, v = (zoo.heads(part, H) for part in module.c_attn(x).split(D, dim=2))
        return module.c_proj(zoo.merged(zoo.sdpa(q, k, v, is_causal=True)))

    model = peaked(gpt_with(Flexible))
    refused(lambda: si.load(model))
    subject = si.load(model, parts=si.ModuleParts(attention=si.AttentionOf("blocks.*.attn", attend)))
    close(subject.run(IDS).logits, bare(model))


TOKENIZERS = {"an object": zoo.Words(), "two functions": (zoo.Words().encode, zoo.Words().decode)}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_module_reads_text_with_any_tokenizer(name):
    subject = si.load(zoo.NanoGPT(), tokenizer=TOKENIZERS[name])
    assert subject.tokens("one three eleven").tokens.tolist() == [[3, 5, 6]]
    assert subject.tokens(["one three eleven"] * 2, length=3).tokens.tolist() == [[3, 5, 6]] * 2
    assert subject.tokenizer.decode([3]) == "xxx"
