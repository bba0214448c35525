"""Models at the edge of what can be measured, each read as it is or refused in one line.

Weights of zeros, no blocks, rounded weights, several widths, positions of other kinds, and heads of any scale:
tolerances are shares of the size of what they compare, so that what is accepted does not depend on it.
"""

import itertools
from functools import cache, partial

import pytest
import torch
from backends.own_modules import VOCAB as OWN_VOCAB, Litgpt, NanoGPT
from backends.zoo import CONFIGS, SIZES, VOCAB, bare_logits, model_of, peaked, subject_of, tokens_of
from refusals import refused
from torch.ao.quantization import default_dynamic_qconfig, quantize_dynamic
from transformer_lens.model_bridge import sources
from transformers import AutoModelForCausalLM, OPTConfig, RecurrentGemmaConfig, XLMRobertaConfig

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.attention.shapes import Gap
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.load import BACKENDS
from sinkinterp.interventions.attention_layers import BlindKeys
from sinkinterp.measurement.parity import dense_patterns, parity
from sinkinterp.metrics.instruments import ALL
from sinkinterp.report.summary import sink_summary

TOKENS = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]


@torch.no_grad()
def zeroed(name, *parts):
    """A model in which the weights and biases of modules whose names end so are zeros."""
    model = model_of(name)
    chosen = [module for path, module in model.named_modules() if path.endswith(parts)]
    assert chosen
    for weight in (weight for module in chosen for weight in module.parameters()):
        weight.zero_()
    return model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "parts"), {
    "no attention": ("gpt2", ("attn.c_proj",)),
    "in one block": ("gpt2", ("h.1.attn.c_proj",)),
    "identity": ("llama", ("o_proj", "down_proj")),
    "no logits": ("llama", ("lm_head",)),
}.values(), ids=str)  # fmt: skip
def test_weights_of_zeros_are_measured_as_eager_attention_has_them(name, parts, backend):
    model = zeroed(name, *parts)
    expected = dense_patterns(model, TOKENS)
    report = si.measure(si.load(model, backend=backend), TOKENS)
    watchers = torch.arange(11, 0, -1)
    assert torch.allclose(report.importance, expected.sum(-2) / watchers, atol=1e-5)


@pytest.mark.parametrize(("kind", "ending"), [(NanoGPT, "attn.c_proj.weight"), (Litgpt, "o_proj.weight")])
def test_a_module_of_ones_own_may_begin_with_output_projections_of_zeros(kind, ending):
    module = kind().eval()
    projections = [weight for name, weight in module.named_parameters() if name.endswith(ending)]
    for weight in projections:
        weight.data.zero_()
    assert projections
    tokens = TOKENS % OWN_VOCAB
    report = si.measure(si.load(module), tokens)
    assert not any(weight.any() for weight in projections)
    for weight in projections:  # the first layer's attention does not depend on what it returns
        weight.data.normal_()
    assert torch.allclose(report.importance[:, 0], si.measure(si.load(module), tokens).importance[:, 0], atol=1e-6)


def test_an_edit_that_is_lost_in_a_block_that_does_mix_positions_is_still_refused(monkeypatch):
    """A model that computes attention by itself beside the interface: what the interface returns is dropped."""
    model = model_of("llama")
    attention = model.model.layers[1].self_attn
    plain, inside = attention.forward, attention.o_proj.forward
    attention.o_proj.forward = lambda x: inside(torch.ones_like(x))
    attention.forward = lambda hidden_states, *args, **kwargs: (
        plain(hidden_states, *args, **kwargs)[0] + hidden_states.cumsum(1), None
    )  # fmt: skip
    refused(lambda: si.load(model), "block 1")


def test_a_model_without_blocks_is_refused():
    model = model_of("llama")
    model.model.layers, model.config.num_hidden_layers = torch.nn.ModuleList(), 0
    refused(lambda: si.load(model), "no blocks")


def test_an_embedding_without_its_sizes_is_refused_by_name():
    model = model_of("llama")

    model.set_input_embeddings(torch.nn.Sequential(model.get_input_embeddings()))
    refused(lambda: si.load(model), "Sequential")


def test_weights_in_several_processes_are_refused_where_they_are_edited():
    model = model_of("qwen2")
    subject = si.load(model)
    model.model.layers[1].self_attn.k_proj.weight.device_mesh = "as a DTensor has it"
    refused(lambda: subject.run(TOKENS, edits=[iv.ZeroKeyBias()]), "DTensor")
    subject.run(TOKENS)


# widths, positions and rounding

OPT_350M = OPTConfig(**SIZES, ffn_dim=40, word_embed_proj_dim=24, do_layer_norm_before=False)


def test_positions_that_also_reset_a_recurrence_are_refused():
    config = RecurrentGemmaConfig(**SIZES, num_key_value_heads=1, lru_width=48, attention_window_size=32)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(8 if "linear_" in name else 1)  # what a block writes is seen
    subject = HuggingFaceSubject(model)
    refused(lambda: si.measure(subject, tokens_of(), edits=[iv.SwapPositions(0, 4)]))


def test_positions_that_count_from_another_number_are_refused():
    config = XLMRobertaConfig(**SIZES, is_decoder=True)
    config.pad_token_id = 1
    subject = HuggingFaceSubject(peaked(AutoModelForCausalLM.from_config(config).eval()))
    refused(lambda: si.measure(subject, tokens_of(), edits=[iv.SwapPositions(0, 4)]), "0")


@pytest.mark.parametrize("edit", [iv.RemoveColumn(), iv.PatchNormalization(Sigmoid(), heads=[(1, 2)])], ids=str)
def test_every_instrument_measures_a_pattern_that_was_set(edit):
    subject = subject_of("llama")
    report = si.measure(subject, tokens_of(), edits=[edit], instruments=ALL)
    assert all(value.isfinite().any() for value in report.extras.values())


def test_widths_are_those_of_blocks_embeddings_and_values():
    subject = HuggingFaceSubject(peaked(AutoModelForCausalLM.from_config(OPT_350M).eval()))
    assert (subject.shape.d_model, subject.shape.d_embedding) == (48, 24)
    plain = subject.run(tokens_of()).logits
    assert not subject.run(tokens_of(), edits=[BlindKeys([40])]).logits.equal(plain)
    refused(lambda: subject.run(tokens_of(), edits=[iv.Change(sites.TOKEN_EMBEDDING, iv.Zero(), dims=[24])]), "24")


def test_values_may_be_wider_than_queries():
    subject = HuggingFaceSubject(model_of("deepseek-v3 with wide values"))
    assert (subject.shape.d_head, subject.shape.d_value) == (12, 20)
    plain = subject.run(tokens_of()).logits
    for change in (iv.ChangeValues, iv.ChangeOutputs):
        assert not subject.run(tokens_of(), edits=[change(iv.Zero(), dims=[18])]).logits.equal(plain)
        refused(partial(subject.run, tokens_of(), edits=[change(iv.Zero(), dims=[20])]), "20")


def test_the_divisor_is_named_where_a_window_is_narrower_than_the_text():
    for name, is_named in (("mistral with a window", True), ("llama", False)):
        note = sink_summary(si.measure(subject_of(name), tokens_of())).note
        assert ("the paper divides by T - k + 1" in note) is is_named


def test_a_double_precision_model_keeps_its_logits():
    model = model_of("gpt2").double()
    subject = HuggingFaceSubject(model)
    torch.testing.assert_close(subject.run(tokens_of()).logits, bare_logits(model, tokens_of()), rtol=0, atol=1e-12)
    assert si.measure(subject, tokens_of()).sink_rate().mean >= 0


def rounded(model, part="", dtype=torch.qint8):
    """The model with its linear layers rounded, those whose names hold `part`."""
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and part in name]
    return quantize_dynamic(model, dict.fromkeys(linear, default_dynamic_qconfig) if part else None, dtype=dtype)


NAMES = ("gpt2", "qwen2", "gemma2 with softcap", "gpt-oss with sink logits")
ROUNDED = {
    **{name: lambda name=name: si.load(rounded(model_of(name))) for name in NAMES},
    **{part: lambda part=part: si.load(rounded(model_of("llama"), part)) for part in ("k_proj", "mlp", "lm_head")},
    **{name: lambda name=name: si.load(rounded(model_of("llama")), backend=name) for name in BACKENDS},
    "a module of one's own": lambda: si.load(rounded(NanoGPT().eval())),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_model_that_rounds_all_texts_by_one_scale_is_refused(name):
    refused(ROUNDED[name])


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_weights_alone_may_be_rounded(name):
    model = rounded(model_of(name), dtype=torch.float16)
    assert isinstance(model.lm_head.weight(), torch.Tensor)  # packed: no parameter
    right = dense_patterns(model, tokens_of())
    seen = torch.arange(right.shape[-1], 0, -1)
    importance = si.measure(model, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, right.sum(-2) / seen, rtol=0, atol=1e-5)


# the scale of logits

SCALES = (1e3, 1e-3)
every_scale = pytest.mark.parametrize("scale", SCALES)
# every architecture at both scales, and the backends by turns
PAIRS = [(name, scale) for name in CONFIGS for scale in SCALES]
BY_TURNS = [(*pair, backend) for pair, backend in zip(PAIRS, itertools.cycle(BACKENDS), strict=False)]


@torch.no_grad()
def scaled(model, scale):
    """The model, whose logits are `scale` times as large before a softcap."""
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight * scale)  # no longer tied to the embedding
    model.config.tie_word_embeddings = False
    return model


@cache
def plain_importance(name, backend):
    return si.measure(subject_of(name, backend), tokens_of(), progress=False).importance


@pytest.mark.parametrize(("name", "scale", "backend"), BY_TURNS)
def test_the_scale_of_a_head_changes_no_acceptance(name, scale, backend):
    subject = si.load(scaled(model_of(name), scale), backend=backend)
    assert subject.shape == subject_of(name, backend).shape
    importance = si.measure(subject, tokens_of(), progress=False).importance
    torch.testing.assert_close(importance, plain_importance(name, backend), rtol=0, atol=1e-6)


@every_scale
def test_the_gate_of_parity_is_relative(scale):
    rows = parity(scaled(model_of("llama"), scale), "llama").records()
    assert all(row["verdict"] == "agrees" and row["largest number"] >= 0 for row in rows)


@every_scale
def test_patching_accepts_every_scale(scale):
    model = scaled(model_of("llama"), scale)
    clean, corrupted = tokens_of()[:1], tokens_of()[1:2]
    shares = [
        si.activation_patching(each, clean, corrupted, metric=lambda logits: logits[:, -1, 3], progress=False)
        for each in (model, model_of("llama"))
    ]
    for ours, theirs in zip(*(table.frame["restored"].tolist() for table in shares), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("scale", (1.0, *SCALES))
def test_a_bridge_that_is_wrong_is_refused_at_every_scale_with_the_difference_and_the_size(scale, monkeypatch):
    model = scaled(model_of("llama"), scale)
    honest = sources.build_bridge_from_module

    def damaged(copied, *args, **kwargs):
        with torch.no_grad():
            copied.model.layers[1].mlp.down_proj.weight[3] += 0.05
        return honest(copied, *args, **kwargs)

    monkeypatch.setattr(sources, "build_bridge_from_module", damaged)
    refused(lambda: si.load(model, backend="transformer_lens"))


@pytest.mark.parametrize("scale", (1.0, *SCALES))
def test_a_backend_that_is_wrong_is_refused_at_every_scale(scale, monkeypatch):
    honest = HuggingFaceSubject._pass

    def wrong(self, tokens, recorder, **positions):
        return honest(self, tokens, recorder, **positions) * 1.001

    monkeypatch.setattr(HuggingFaceSubject, "_pass", wrong)
    refused(lambda: si.load(scaled(model_of("llama"), scale)))


@every_scale
def test_the_scale_of_an_own_module_changes_no_acceptance(scale):
    torch.manual_seed(0)
    model = NanoGPT().eval()
    plain = si.load(model).shape
    with torch.no_grad():
        model.norm.weight.mul_(scale)
        model.norm.bias.mul_(scale)
    assert si.load(model).shape == plain


def test_a_gap_by_hand():
    right = torch.tensor([3.0, -4.0])
    gap = Gap.of(torch.tensor([3.0, -4.5]), right)
    assert gap == Gap(0.5, 4.0) and gap.is_within(0.125) and not gap.is_within(0.12)
    assert str(gap) == "off by 0.5 where the largest is 4"
    assert Gap.of(right[:1], right).difference == torch.inf
    assert Gap.of(torch.tensor([torch.nan]), torch.tensor([1.0])).difference == torch.inf
    assert Gap.of(torch.zeros(3), torch.zeros(3)).is_within(1e-9)
