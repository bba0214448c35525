"""ALiBi under edits that a constant of the row changes: other kernels than softmax, and sink logits."""

import copy
from functools import cache

import pytest
import torch
from lm.family import SPECS
from refusals import refused
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, MptConfig

from sinkinterp.attention import call as calls, kernels
from sinkinterp.backends.anatomy import removed_after
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.patched import patched
from sinkinterp.interventions import AddSinkLogit, PatchNormalization
from sinkinterp.lm.model import build
from sinkinterp.measurement.measure import measure

VOCAB, HEADS, LENGTH = 97, 4, 13
FALCON = FalconConfig(
    vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=HEADS, alibi=True, multi_query=False,
    new_decoder_architecture=False, parallel_attn=False, bias=True,
)  # fmt: skip
CONFIGS = {
    "bloom": (BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=HEADS), "eager"),
    "mpt": (MptConfig(vocab_size=VOCAB, d_model=48, n_layers=2, n_heads=HEADS, max_seq_len=64), "eager"),
    "falcon, sdpa": (FALCON, "sdpa"),
    "falcon, eager": (FALCON, "eager"),
}
TIMES = {"bloom": 1, "mpt": 1, "falcon, sdpa": 12**-0.5, "falcon, eager": 2 * 12**-0.5}  # ALiBi in each family
OURS = ("alibi", "t5", "bucket_index")
KERNELS = {
    "sigmoid": PatchNormalization(kernels.Sigmoid()),
    "sigmoid, normalised": PatchNormalization(kernels.Kernel(similarity=kernels.Sigmoid(), normaliser=kernels.PNorm())),
    "elu": PatchNormalization(kernels.EluPlusOne()),
    "linear": PatchNormalization(kernels.Kernel(similarity=kernels.Raw(), normaliser=kernels.ClampedSum())),
    "softpick": PatchNormalization(
        kernels.Kernel(similarity=kernels.ExpMinusOne(), normaliser=kernels.PositiveShare())
    ),
    "off by one": AddSinkLogit(0.0),
    "a large sink logit": AddSinkLogit(5.0),
}
every_family = pytest.mark.parametrize("name", [*CONFIGS, *OURS])
every_edit = pytest.mark.parametrize("edit", KERNELS.values(), ids=list(KERNELS))


def model_of(name):
    torch.manual_seed(0)
    if name in OURS:
        return build(SPECS[name]).eval()
    config, attention = CONFIGS[name]
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention).eval()


@cache
def subject_of(name):
    """One subject for all tests that leave it as it was."""
    return HuggingFaceSubject(model_of(name))


def tokens_of():
    return torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def bias_of(call):
    return call.bias.expand(len(call.q), -1, -1, -1).clone()


@pytest.mark.parametrize("name", CONFIGS)
def test_alibi_is_minus_slope_times_distance(name):
    bias = subject_of(name).run(tokens_of(), reads={"bias": bias_of})["bias"][0, 0]
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8])  # of four heads, by hand
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    by_hand = -slopes[:, None, None] * distance * TIMES[name]
    past = distance >= 0
    torch.testing.assert_close(bias[:, past], by_hand[:, past])


@every_edit
@every_family
def test_later_tokens_change_no_earlier_logit_under_any_kernel_or_slot_nor_does_a_cache(name, edit):
    subject, tokens = subject_of(name), tokens_of()
    whole, beginning = (subject.run(ids, edits=[edit]).logits for ids in (tokens, tokens[:, :5]))
    torch.testing.assert_close(whole[:, :5], beginning, rtol=0, atol=1e-5)
    model = subject.model
    with torch.no_grad(), patched(model, edit):
        full = model(tokens, use_cache=False).logits
        cache = model(tokens[:, :4], use_cache=True).past_key_values
        steps = [model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(4, LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), full[:, 4:], rtol=0, atol=1e-5)


RELATIVE = calls.relative_to_own_key


def test_the_own_keys_bias_is_taken_off_in_fp32_or_fp64_however_it_is_stored():
    """Worked by hand. The stored numbers are exact in bf16; their differences are not."""
    stored = torch.tensor([1 + 2**-7, 256.0, -3.0], dtype=torch.bfloat16).view(1, 1, 1, 3)
    by_hand = torch.tensor([[1 + 2**-7 - 256, 0, -259], [4 + 2**-7, 259, 0]])
    for dtype, kept in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        relative = RELATIVE(stored.to(dtype), 2)
        assert relative.dtype == kept and relative[0, 0].equal(by_hand.to(kept)), dtype


STORED = {
    "one number for each key": lambda bias, n: bias.expand(-1, -1, n, -1),
    "a constant that grows with the length": lambda bias, n: RELATIVE(bias, n) - bias.shape[-1],
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_whose_bias_softmax_alone_makes_causal_is_refused(name, stored, monkeypatch):
    monkeypatch.setattr(calls, "relative_to_own_key", STORED[stored])
    refused(lambda: HuggingFaceSubject(model_of(name)), "bias")


def test_the_protocol_names_the_attention_and_that_eager_falcon_adds_alibi_twice():
    said = {name: measure(subject_of(name), tokens_of(), progress=False) for name in CONFIGS}
    assert {name: report.protocol.attention for name, report in said.items()} == {
        "bloom": "eager", "mpt": "eager", "falcon, sdpa": "sdpa", "falcon, eager": "eager",
    }  # fmt: skip
    twice = "eager Falcon adds ALiBi twice, sdpa once"
    assert {name for name, report in said.items() if twice in report.protocol.line()} == {"falcon, eager"}


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_are_left_out_only_where_they_return_a_residual_alone(name):
    subject, seen = subject_of(name), []
    with removed_after([subject.modules.blocks[0].register_forward_hook(lambda *given: seen.append(given[-1]))]):
        read = subject.run(tokens_of(), reads={"mass": lambda call: call.column_mass()}, blocks=range(1))["mass"]
    assert read.shape[1] == (1 if isinstance(seen[-1], torch.Tensor) else 2)
