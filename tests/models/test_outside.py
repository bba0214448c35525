"""First tokens of genuine models, computed once more from transformers alone: eager attention and plain torch."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import sinkinterp as si
from sinkinterp.backends.named_models import MADE, downloads
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS

TEXT = (
    "The harbour was built by monks in 1374, who carried the stones from the hills on sledges. A century later the "
    "town around it had grown to nine thousand people, and ships from eleven countries lay at its quays each spring. "
)
SIZES = {"smollm2": (3, 37), "qwen2.5-coder-0.5b": (2, 23), "gemma3-270m": (1, 541)}  # sequences, T; its window: 512
CASES = [
    pytest.param(name, *size, marks=pytest.mark.skipif(
        not (downloads() / MADE[name]).is_dir(), reason=f"needs {name}: make models MODELS={name}"
    ), id=name)
    for name, size in SIZES.items()
]  # fmt: skip


def tokens_of(tokenizer, sequences, length):
    """Sequences that begin at different words of one text, with BOS where the tokenizer puts one."""
    words = (TEXT * 20).split(" ")
    texts = [" ".join(words[3 * i :]) for i in range(sequences)]
    return torch.tensor([tokenizer(text)["input_ids"][:length] for text in texts])


def queries_that_see_the_first(config, length):
    """Of every layer: all, or as many as its window holds."""
    types = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    return torch.tensor([min(length, config.sliding_window) if kind[0] == "s" else length for kind in types])


@pytest.mark.timeout(400)  # of genuine models, on machines that are shared
@pytest.mark.parametrize(("name", "sequences", "length"), CASES)
def test_the_first_tokens_numbers_are_those_of_eager_attention(name, sequences, length):
    subject, folder = si.load(name), downloads() / MADE[name]
    tokens = tokens_of(subject.tokenizer, sequences, length)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        kept = 1 if length > 512 else 0  # logits: of a vocabulary of 262,144 they take as long as the blocks
        told = {"output_attentions": True, "output_hidden_states": True, "use_cache": False, "logits_to_keep": kept}
        output = model(tokens, **told)
    received = torch.stack(output.attentions, 1)[..., 0].sum(-1)  # sequence layer head
    alpha = received / queries_that_see_the_first(model.config, length)[:, None]
    streams = torch.stack(output.hidden_states[:-1], 1)  # the last one is after the final norm

    report = si.measure(subject, tokens, positions=(0,), instruments=() if kept else si.measurement.instruments.LOSS)
    states, norms = si.hidden_states(subject, tokens), report.residual_norms
    assert torch.allclose(report.importance[..., 0], alpha, atol=2e-5)
    assert report.sink_rate(0).mean == pytest.approx((alpha > 0.3).float().mean().item(), abs=1e-3)
    if not kept:
        loss = cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        assert report.extra(NEXT_TOKEN_LOSS).mean() == pytest.approx(loss.item(), rel=1e-4)
    assert torch.allclose(states[:, :-1, 0], streams[:, :, 0], rtol=1e-3, atol=1e-4 * streams.abs().max())
    assert torch.allclose(norms[:, :-1], streams.norm(dim=-1), rtol=1e-3)
