"""place_or_token: an independent computation on plain transformers, and models whose answer is known."""

import argparse
import heapq
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from backends.zoo import VOCAB, model_of
from refusals import refused
from torch import nn
from transformers import AutoModelForCausalLM

import sinkinterp as si
from sinkinterp.backends.named_models import downloads
from sinkinterp.measurement import measure, place_or_token as por
from sinkinterp.measurement.place_or_token import Answer, answer_of, depth_of, place_or_token

T, N, PLACES, BOS = 19, 5, (3, 7, 12), 23


@torch.no_grad()
def alphas(model, tokens, position, layers):
    """alpha of every key by eager attention of transformers: `sequence layer head key`; row `position` sees itself."""

    def masked(block, args, kwargs):
        mask = kwargs["attention_mask"].clone()
        mask[:, :, position] = torch.finfo(mask.dtype).min
        mask[:, :, position, position] = 0
        return args, kwargs | {"attention_mask": mask}

    model.set_attn_implementation("eager")
    blocks = getattr(model, "model", model).layers
    handles = [blocks[n].self_attn.register_forward_pre_hook(masked, with_kwargs=True) for n in layers]
    output = model(tokens, output_attentions=True, use_cache=False)
    for handle in handles:
        handle.remove()
    loss = F.cross_entropy(output.logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    loss = loss[:, [i for i in range(tokens.shape[1] - 1) if i not in (position - 1, position)]].mean()
    attention = torch.stack(output.attentions, 1)
    return attention.sum(-2), (attention > 0).sum(-2), loss


def agrees(table, model, tokens, epsilon):
    """Whether each row is that of eager attention, but those of the random control."""
    for row in table.records():
        if row["edit"] not in (por.AS_IS, por.ALONE):
            continue
        k, edited = row["position"], row["edit"] == por.ALONE
        layers = range(row["first layer"], row["last layer"] + 1) if edited else ()
        mass, watchers, loss = alphas(model, tokens, k, layers)
        alpha = mass / watchers
        assert row["alpha_k"] == pytest.approx(alpha[..., k].mean().item(), abs=1e-4)
        assert row["Sink_k"] == pytest.approx((alpha[..., k] > epsilon).float().mean().item(), abs=1e-4)
        assert row["Sink_1"] == pytest.approx((alpha[..., 0] > epsilon).float().mean().item(), abs=1e-4)
        assert row["loss"] is None or row["loss"] == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.parametrize("name", ["llama with grouped queries", "qwen2", "gemma3"])
def test_every_depth_is_that_of_eager_attention_with_a_mask_of_ones_own(name):
    model, tokens = model_of(name), torch.randint(VOCAB, (N, T), generator=torch.Generator().manual_seed(1))
    table = place_or_token(model, tokens, positions=PLACES, epsilon=0.15, progress=False)
    assert len(table.records()) == len(PLACES) * (3 + 2 * 2)
    agrees(table, model, tokens, 0.15)


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m"])
def test_genuine_models_agree_with_plain_transformers(name):
    if not (downloads() / name).is_dir():
        pytest.skip(f"needs local/{name}: run make models")
    subject = si.load(f"local/{name}")
    tokens = subject.tokens([argparse.__doc__, heapq.__about__], 24).tokens
    table = place_or_token(subject, tokens, positions=(10,), layers=(2,), progress=False)
    # float64: eager attention in float32 is 1e-4 nats off
    agrees(table, AutoModelForCausalLM.from_pretrained(downloads() / name, dtype=torch.float64).eval(), tokens, 0.3)
    (whole,) = [row for row in table.records() if row["edit"] == por.ALONE and row["loss"] is not None]
    assert (whole["Sink_k"] > 0.25) == (name != "gemma3-270m")  # another answer of each


def test_without_leaving_out_blocks_the_numbers_are_the_same(monkeypatch):
    subject = si.load(model_of("llama"))
    tokens = torch.randint(VOCAB, (N, T), generator=torch.Generator().manual_seed(1))
    short, whole = (
        place_or_token(subject, tokens, positions=(5,), progress=monkeypatch.setitem(vars(subject), *left_out) or False)
        for left_out in (("leaves_out_blocks", True), ("leaves_out_blocks", False))
    )
    same(short, whole)


def test_texts_of_several_passes_give_the_table_of_one_where_only_the_first_begins_with_bos(monkeypatch):
    subject = si.load(model_of("llama"))
    subject.tokenizer = SimpleNamespace(bos_token_id=0)
    tokens = torch.randint(1, VOCAB, (N, T), generator=torch.Generator().manual_seed(1))
    tokens[0, 0] = 0
    together = place_or_token(subject, tokens, positions=(5,), progress=False)
    monkeypatch.setattr(measure, "sequences_per_pass", lambda subject, length: 1)
    same(together, place_or_token(subject, tokens, positions=(5,), progress=False))


def same(table, other):
    """Asserts that two tables have the same cells, but for rounding."""
    for mine, theirs in zip(table.records(), other.records(), strict=True):
        for name, cell in mine.items():
            assert cell == pytest.approx(theirs[name], abs=1e-5) if isinstance(cell, float) else cell == theirs[name]


D, CONST, MARK, FIRST_PLACE = 2 * (BOS + 1) + 3, -1, -2, -3  # a token each, its mean over what is seen, three more


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x)[:, None] for part in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


class Block(nn.Module):
    """Adds what attention returns, then a mark where one of the `columns` of the residual is above .8."""

    def __init__(self, columns=()):
        super().__init__()
        self.attn, self.columns = Attends(), list(columns)

    def forward(self, x):
        x = x + self.attn(x)
        mark = (10 * x[..., self.columns] - 8).clamp(min=0).sum(-1, keepdim=True).clamp(max=2)
        return x + mark * F.one_hot(torch.tensor(D + MARK), D)


class Marked(nn.Module):
    """Layer 0 averages the tokens that each sees and marks some; layer 1 attends to what is marked."""

    def __init__(self, columns):
        super().__init__()
        self.tokens, self.places = nn.Embedding(BOS + 1, D), nn.Embedding(T, D)
        self.blocks, self.head = nn.ModuleList([Block(columns), Block()]), nn.Linear(D, BOS + 1)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.zero_() if "head" not in name else parameter
            n = BOS + 1
            self.tokens.weight[:, :n] = torch.eye(n)
            self.tokens.weight[:, CONST] = 1
            self.places.weight[0, FIRST_PLACE] = 1
            self.blocks[0].attn.v.weight[n : 2 * n, :n] = torch.eye(n)
            self.blocks[1].attn.q.weight[0, CONST] = self.blocks[1].attn.k.weight[0, MARK] = 20

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


MEANS, IS_BOS = range(BOS + 1, 2 * (BOS + 1)), (BOS,)


@pytest.mark.parametrize(
    ("columns", "answer", "depths"),
    [
        (MEANS, Answer.PLACE, (0, 0)),
        (IS_BOS, Answer.TOKEN, (None, None)),
        ([*MEANS, *IS_BOS], Answer.BOTH, (0, 0)),
        ([D + FIRST_PLACE], Answer.NEITHER, (None, None)),
        ([D + MARK], Answer.NOT_ASKED, (None, None)),
    ],
)
def test_what_marks_a_token_decides_what_its_sink_is_bound_to(columns, answer, depths):
    subject = si.load(Marked(columns))
    subject.tokenizer = SimpleNamespace(bos_token_id=BOS)
    draw = torch.Generator().manual_seed(0)
    texts = torch.stack([torch.randperm(BOS, generator=draw)[: T - 1] for _ in range(N)])
    tokens = torch.cat((torch.full((N, 1), BOS), texts), 1)
    table = place_or_token(subject, tokens, positions=PLACES, progress=False)
    assert answer_of(table) is answer and f"is {answer}" in table.title
    assert depth_of(table) == depths and "of d =" not in table.title
    few = place_or_token(subject, tokens, positions=PLACES, layers=[1], progress=False)
    assert ("of d = 1)" in few.title) == (depths[0] is not None)
    one_more = [row["Sink_k"] for row in table.records() if row["edit"] == por.ONE_MORE]
    assert one_more == [0] * 3
    assert len(table.plot().data) >= len(PLACES)


@pytest.mark.parametrize("wrong", [{"positions": (0,)}, {"positions": (18,)}, {"layers": (2,)}, {"epsilon": 1}])
def test_what_does_not_fit_is_refused(wrong):
    given = {"positions": PLACES, "progress": False} | wrong
    refused(lambda: place_or_token(si.load(Marked(MEANS)), torch.arange(T)[None], **given))
