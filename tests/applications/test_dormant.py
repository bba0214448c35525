"""Heads that were made dormant are found among heads that look so, and what leaving them out costs is exact."""

import pytest
import torch
from backends.zoo import VOCAB, model_of
from refusals import refused

import sinkinterp as si
from sinkinterp.applications.dormant import (
    ADDED,
    AS_MANY,
    AT_RANDOM,
    BY_ATTRIBUTION,
    BY_WRITE,
    CHOSEN_BY,
    DORMANT,
    HEADS,
    HELD_OUT,
    LARGEST_WRITE,
    OTHER,
    WRITE,
    dormant_heads,
)
from sinkinterp.attention.sites import ATTENTION_INPUT
from sinkinterp.table import ALPHA_1, INPUT

SIZE, FIRST, WORDS = 12, 7, torch.tensor([3, 31, 59])  # of a head; the first token of all texts; their other tokens
SILENT, EMPTY = (1, 2), (2, 0)  # looks at the first token: its rows of the output map are 0, or the first value is
IDLE, USEFUL = (0, 1), (2, 3)  # rows of 0 but looks everywhere; looks at the first token and predicts the words


def texts_of(count, length, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = WORDS[torch.randint(3, (count, length), generator=generator)]
    tokens[:, 0] = FIRST
    return tokens


def rows_of(head, part=0):
    return slice(48 * part + SIZE * head, 48 * part + SIZE * (head + 1))


@pytest.fixture(scope="module")
def planted():
    """A GPT-2 of 12 heads, two of which are dormant."""
    model = model_of("gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :48], block.attn.c_attn.bias[:48] = 0, 0  # all look everywhere
        for layer, head in (SILENT, IDLE):
            model.transformer.h[layer].attn.c_proj.weight[rows_of(head)] = 0
        for layer, head in (SILENT, EMPTY, USEFUL):  # from the lowest layer up, as each reads what is below
            look_at_first(model, layer, head)
        write_words(model, *USEFUL)
    return si.load(model)


def look_at_first(model, layer, head):
    """Sets the queries of a head to 2000 in one dimension, in which the first token has the largest key."""
    attention = model.transformer.h[layer].attn.c_attn
    read = {"x": ATTENTION_INPUT.read(lambda x: x[:, 0])}
    first = si.load(model).run(texts_of(1, 3, 0), reads=read)["x"][0, layer]
    attention.bias[rows_of(head, 0)][0] = 2000.0
    attention.weight[:, rows_of(head, 1)], attention.bias[rows_of(head, 1)] = 0, 0
    attention.weight[:, rows_of(head, 1)][:, 0] = first / first.square().sum()
    if (layer, head) == EMPTY:
        values = attention.weight[:, rows_of(head, 2)]
        values -= torch.outer(first, first @ values + attention.bias[rows_of(head, 2)]) / first.square().sum()


def write_words(model, layer, head):
    """Sets what a head writes to the sum of the words' embeddings, at any token."""
    attention = model.transformer.h[layer].attn
    attention.c_attn.weight[:, rows_of(head, 2)], attention.c_attn.bias[rows_of(head, 2)] = 0, 1 / SIZE
    attention.c_proj.weight[rows_of(head)] = 100 * model.transformer.wte.weight[WORDS].sum(0)


@pytest.fixture(scope="module")
def found(planted):
    return dormant_heads(planted, texts_of(7, 17, 1), texts_of(3, 13, 2), budget=1e-4, progress=False)


def cell(found, way, text, column):
    (row,) = found.cuts.where(**{CHOSEN_BY: way, INPUT: text}).records()
    return row[column]


def test_planted_dormant_heads_are_found_and_heads_that_only_look_dormant_are_not(found):
    assert set(found.heads) == {SILENT, EMPTY}
    rows = {(row["layer"], row["head"]): row for row in found.table().records()}
    assert all(rows[head][ALPHA_1] > 0.999 for head in (SILENT, EMPTY, USEFUL)) and rows[IDLE][ALPHA_1] < 0.3
    assert rows[SILENT][LARGEST_WRITE] < 1e-6 > rows[IDLE][LARGEST_WRITE] and rows[EMPTY][LARGEST_WRITE] < 1e-4
    assert found.to_dict()["heads"] == [list(SILENT), list(EMPTY)] and found.plot().data and found.table().plot().data
    assert "2 of 12 heads" in found.answer() and "1.2, 2.0" in found.answer()


def test_dormant_heads_cost_nothing_on_texts_that_did_not_choose_them_and_random_ones_do(found):
    for text in (HELD_OUT, OTHER):
        assert abs(cell(found, DORMANT, text, ADDED)) < 1e-5 > abs(cell(found, BY_WRITE, text, AS_MANY))
        assert abs(cell(found, AT_RANDOM, text, AS_MANY)) > 1e-3
    assert cell(found, BY_WRITE, OTHER, HEADS) >= 3 <= cell(found, BY_ATTRIBUTION, OTHER, HEADS)


def test_texts_that_are_given_twice_choose_as_many_heads(planted):
    """The budget is of the mean over texts: a sum would be twice as large."""
    tokens, counts = texts_of(4, 17, 1), set()
    for budget in (1e-6, 1e-2, 1.0, 10.0):
        once, twice = (
            dormant_heads(planted, some, budget=budget, progress=False) for some in (tokens, tokens.repeat(2, 1))
        )
        ways = [cell(once, way, HELD_OUT, HEADS) for way in (BY_WRITE, AT_RANDOM)]
        assert ways == [cell(twice, way, HELD_OUT, HEADS) for way in (BY_WRITE, AT_RANDOM)]
        counts.add(tuple(ways))
    assert len(counts) >= 2


def test_writes_are_those_of_the_output_map_and_losses_those_of_a_model_without_its_rows(planted):
    tokens, held = texts_of(7, 17, 1), texts_of(7, 17, 1)[1::2]
    found = dormant_heads(planted, tokens, budget=50.0, progress=False)
    assert set(found.heads) == {SILENT, EMPTY, USEFUL}
    model, outputs = planted.model, []
    maps = [block.attn.c_proj for block in model.transformer.h]
    handles = [c_proj.register_forward_pre_hook(lambda module, args: outputs.append(args[0])) for c_proj in maps]
    with torch.no_grad():
        before = model(tokens[::2], output_hidden_states=True)
    for handle in handles:
        handle.remove()
    for row in found.table().records():
        layer, at = row["layer"], rows_of(row["head"])
        written = outputs[layer][..., at] @ maps[layer].weight[at]
        expected = (written.norm(dim=-1) / before.hidden_states[layer].norm(dim=-1))[:, 1:].mean()
        assert row[WRITE] == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    whole = loss(model, held)
    saved = {layer: maps[layer].weight.clone() for layer, _ in found.heads}
    with torch.no_grad():
        for layer, head in found.heads:
            maps[layer].weight[rows_of(head)] = 0
        added = loss(model, held) - whole
        for layer, weight in saved.items():
            maps[layer].weight.copy_(weight)
    assert added > 0.1 and cell(found, DORMANT, HELD_OUT, ADDED) == pytest.approx(added, rel=1e-4)


@torch.no_grad()
def test_random_heads_cost_the_mean_of_three_draws(planted, found):
    held, maps = texts_of(7, 17, 1)[1::2], [block.attn.c_proj for block in planted.model.transformer.h]
    generator, whole, costs = torch.Generator().manual_seed(0), loss(planted.model, held), []
    for _ in range(3):
        saved = [c_proj.weight.clone() for c_proj in maps]
        for head in torch.randperm(12, generator=generator)[: len(found.heads)].tolist():
            maps[head // 4].weight[rows_of(head % 4)] = 0
        costs.append(loss(planted.model, held) - whole)
        for c_proj, weight in zip(maps, saved, strict=True):
            c_proj.weight.copy_(weight)
    assert cell(found, AT_RANDOM, HELD_OUT, AS_MANY) == pytest.approx(sum(costs) / 3, rel=1e-3)


@torch.no_grad()
def loss(model, tokens):
    logits = model(tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def test_without_a_head_that_looks_at_the_sink_none_is_dormant(planted):
    uniform = [(layer, head) for layer in range(3) for head in range(4) if (layer, head) not in (SILENT, EMPTY, USEFUL)]
    found = dormant_heads(planted, torch.randint(VOCAB, (4, 11)), budget=1e-4, epsilon=0.99999, progress=False)
    assert not set(found.heads) & set(uniform)
    assert "No head" in dormant_heads(si.load(model_of("gpt2")), texts_of(2, 9, 1), epsilon=0.99999).answer()


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"budget": "0.1"}, {"epsilon": 2}, {"seed": -1}])
def test_a_budget_and_texts_that_decide_nothing_are_refused(planted, wrong):
    refused(lambda: dormant_heads(planted, texts_of(4, 9, 1), **wrong))
    refused(lambda: dormant_heads(planted, texts_of(1, 9, 1)))
