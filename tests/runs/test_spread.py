"""How far the change of one token goes: two plain passes of transformers, and the edits that the table has."""

import pytest
import torch
from backends.zoo import model_of, subject_of, tokens_of
from refusals import refused
from sinkinterp._experiments.shared.spread import ALL, FAR, NEAR, TIMES, WITH, changes, spread, with_other_token

from sinkinterp.table import BLOCK

AT = 5


@pytest.mark.parametrize("name", ["gpt2", "mistral with a window"])
@torch.no_grad()
def test_without_edits_changes_are_those_of_two_plain_passes_of_transformers(name):
    subject, tokens = subject_of(name), tokens_of()
    changed = with_other_token(tokens, AT)
    model = model_of(name)
    mask, finals = torch.ones_like(tokens), []
    blocks = model.transformer.h if name == "gpt2" else model.model.layers
    handle = blocks[-1].register_forward_hook(lambda module, args, y: finals.append(y if torch.is_tensor(y) else y[0]))
    before, after = (model(x, attention_mask=mask, output_hidden_states=True) for x in (tokens, changed))
    handle.remove()
    x, y = (torch.stack([*run.hidden_states[:-1], end], 1) for run, end in zip((before, after), finals, strict=True))
    expected = ((y - x).norm(dim=-1) / x.norm(dim=-1))[:, :, AT + 1 :]
    found, loss = changes(subject, tokens, changed, AT)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    logits = before.logits[:, :-1].transpose(1, 2)
    plain = torch.nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1)
    torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)
    table = spread(subject, tokens, position=AT, edits={WITH: []})
    rows = table.where(**{BLOCK: 3})
    assert rows.numbers(ALL)[0] == pytest.approx(expected[:, 3].mean().item(), rel=1e-3)
    assert rows.numbers(NEAR)[0] == pytest.approx(expected[:, 3, :8].mean().item(), rel=1e-3)
    assert rows.numbers(FAR)[0] == pytest.approx(expected[:, 3, -4:].mean().item(), rel=1e-3)
    assert rows.numbers(TIMES) == [1] and table.plot().data


def test_the_other_token_is_another_one_of_the_texts_at_this_position_alone():
    tokens = tokens_of()
    changed = with_other_token(tokens, AT, seed=3)
    assert (changed != tokens).nonzero().tolist() == [[i, AT] for i in range(len(tokens))]
    assert all(token in tokens[:, AT:] for token in changed[:, AT]) and changed.equal(with_other_token(tokens, AT, 3))
    refused(lambda: with_other_token(torch.full((2, 7), 5), AT))
