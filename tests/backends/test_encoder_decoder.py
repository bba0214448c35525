"""Encoder-decoder models: the decoder's self-attention, beside what transformers' eager model returns."""

import copy
import struct
import wave
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch
from backends import zoo
from backends.encoder_decoders import (
    DEPTH,
    HEADS,
    LEARNED_POSITIONS,
    MODELS,
    SOURCE,
    TEXT_MODELS,
    model_of,
    save_bart,
    source_of,
    tokens_of,
)
from refusals import refused
from scipy.io import wavfile
from transformers import BartForCausalLM, MarianForCausalLM, WhisperFeatureExtractor, WhisperForCausalLM

import sinkinterp as si
from sinkinterp.attention.sites import ATTENTION_INPUT, KEY_WEIGHTS, MLP, RESIDUAL
from sinkinterp.backends.encoder import NoEncoder, Silence, Sound, Text, TokenIds, encoder_input
from sinkinterp.backends.huggingface import HuggingFaceSubject
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.data.choices import Bos
from sinkinterp.data.tokens import TextToTokens
from sinkinterp.interventions import ChangeOutputs, Zero
from sinkinterp.interventions.changes import RemovePosition, ReplacePosition, SwapPositions
from sinkinterp.report.readings import Protocol

every_model = pytest.mark.parametrize("name", MODELS)
TOKENS = tokens_of()


@cache
def subject_of(name, encoder=None):
    """One subject for all tests that leave it as it was."""
    return si.load(model_of(name), encoder=encoder or source_of(name))


@torch.no_grad()
def eager_output(name, **inputs):
    """What the eager model returns, encoder and all."""
    model = model_of(name)
    model.set_attn_implementation("eager")
    features = {
        key: value.expand(len(TOKENS), *value.shape[1:]) for key, value in source_of(name).features(model).items()
    }
    return model(**features, decoder_input_ids=TOKENS, output_attentions=True, **inputs)


def close(a, b, atol=1e-6):
    torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


@every_model
def test_logits_are_those_of_encoder_and_decoder_and_importance_that_of_self_attention(name):
    output = eager_output(name)
    patterns = torch.stack(output.decoder_attentions, 1)
    close(subject_of(name).run(TOKENS).logits, output.logits, atol=1e-5 * output.logits.abs().max().item())
    report = si.measure(subject_of(name), TOKENS)
    seen = patterns.ne(0).any(2).any(0).sum(1)  # any: a weight of T5 may underflow
    close(report.raw_importance, patterns.sum(-2) / seen[:, None])
    assert report.attention_layers == tuple(range(DEPTH)) and report.importance.shape == (5, DEPTH, HEADS, 17)


STREAM, UPDATES = {"all": RESIDUAL.read(lambda x: x)}, {"mlp": MLP.read(lambda x: x)}
SILENCED = ChangeOutputs(Zero())  # no head returns anything


@every_model
def test_a_pass_for_reads_alone_computes_the_logits_of_the_last_position(name):
    subject, reads = subject_of(name), {"mass": lambda call: call.column_mass()}
    whole, last = (subject.run(TOKENS, reads=reads, logits=logits) for logits in (True, False))
    assert last["mass"].equal(whole["mass"]) and last.logits.shape == whole.logits[:, -1:].shape
    torch.testing.assert_close(last.logits, whole.logits[:, -1:])


@every_model
def test_residuals_and_updates_are_the_decoders(name):
    subject = subject_of(name)
    assert subject.run(TOKENS, reads=STREAM)["all"].shape == (5, DEPTH + 1, 17, 24)
    if name in ("whisper", "t5"):
        assert subject.run(TOKENS, reads=UPDATES)["mlp"].shape == (5, DEPTH, 17, 24)
    else:  # BART and Marian normalise the sum; T5Gemma does not run alone, so that its updates cannot be checked
        refused(lambda: subject.run(TOKENS, reads=UPDATES))
    assert subject.shape.n_layers == DEPTH and subject.shape.n_heads == HEADS
    assert subject.shape.n_ctx == (None if name == "t5" else 40)


@pytest.mark.parametrize("name", ["whisper", "t5"])  # the others normalise the sum
def test_without_attention_residuals_gain_the_updates_that_are_read_and_a_bias(name):
    trace = subject_of(name, NoEncoder()).run(TOKENS, reads=STREAM | UPDATES, edits=[SILENCED])
    gained = trace["all"].diff(dim=1) - trace["mlp"]
    close(gained, gained[:1, :, :1].expand_as(gained), atol=1e-5)
    assert trace["mlp"].std() > 0.01


def test_the_relative_bias_of_t5_is_the_bias_of_its_calls():
    model = model_of("t5")
    read = {"bias": lambda call: call.bias.expand(len(call.q), -1, -1, -1)}
    bias = si.load(model, encoder=source_of("t5")).run(TOKENS, reads=read)["bias"]
    table = model.decoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        assert bias.equal(table.compute_bias(17, 17)[:, None].expand(5, DEPTH, -1, -1, -1))
    report = si.measure(subject_of("t5"), TOKENS)
    assert not report.bias_null.equal(report.null)


@pytest.mark.parametrize("name", ["whisper", "t5"])  # the others skip a norm behind cross-attention, too
def test_off_is_a_decoder_whose_cross_attention_adds_nothing(name):
    model = model_of(name)
    cross = [m for key, m in model.named_modules() if key.endswith(("encoder_attn.out_proj", "EncDecAttention.o"))]
    assert len(cross) == DEPTH
    for linear in cross:
        for parameter in linear.parameters():
            torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        states = torch.randn(5, 3, 24)
        silenced = model(encoder_outputs=(states,), decoder_input_ids=TOKENS, use_cache=False).logits
    subject = subject_of(name, NoEncoder())
    close(subject.run(TOKENS).logits, silenced)
    refused(lambda: si.load(model, encoder=source_of(name)), "encoder")


@pytest.mark.parametrize(
    ("name", "decoder_class"),
    [("whisper", WhisperForCausalLM), ("bart", BartForCausalLM), ("marian", MarianForCausalLM)],
)
def test_a_decoder_alone_is_measured_as_off_and_says_so(name, decoder_class):
    model = model_of(name)
    alone = decoder_class(copy.deepcopy(model.config))
    alone.load_state_dict(model.state_dict(), strict=False)
    report, off = si.measure(si.load(alone), TOKENS), si.measure(subject_of(name, NoEncoder()), TOKENS)
    assert report.protocol.encoder == off.protocol.encoder == "off (no cross-attention)"
    assert ", encoder off (no cross-attention), float32" in off.protocol.line()
    old = {key: value for key, value in vars(off.protocol).items() if key != "encoder"}  # as older files say it
    assert Protocol(**old).encoder == "" and ", encoder" not in Protocol(**old).line()
    close(report.importance, off.importance)
    assert not report.importance.allclose(si.measure(subject_of(name), TOKENS).importance, atol=1e-3)


EDITS = (SwapPositions(0, 4), ReplacePosition(0, 4), zoo.ShiftPositions(5, start=2), RemovePosition([0]))


@pytest.mark.parametrize("name", LEARNED_POSITIONS)
@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_other_positions_are_other_rows_of_the_decoders_table(name, edit):
    edited = si.measure(subject_of(name), TOKENS, edits=[edit])
    model, offset = model_of(name), {"whisper": 0, "bart": 2}[name]
    weight = model.get_decoder().embed_positions.weight
    with torch.no_grad():
        rows = weight[offset + edit.position_ids(torch.arange(17))].clone()
        rows[[0] if isinstance(edit, RemovePosition) else []] = 0
        weight[offset : offset + 17] = rows
    close(edited.importance, si.measure(si.load(model, encoder=source_of(name)), TOKENS).importance)
    assert not edited.importance.allclose(si.measure(subject_of(name), TOKENS).importance, atol=1e-3)


@pytest.mark.parametrize("name", ["whisper", "t5gemma"])
def test_a_swap_is_what_the_models_own_argument_does(name):
    ids = SwapPositions(0, 4).position_ids(torch.arange(17))[None].expand(5, -1)
    own = eager_output(name, decoder_position_ids=ids, decoder_attention_mask=torch.ones_like(TOKENS)).logits
    close(subject_of(name).run(TOKENS, edits=[SwapPositions(0, 4)]).logits, own)


@every_model
def test_the_encoder_runs_once_and_the_model_is_left_as_it_was(name):
    model, passes = model_of(name), []
    before = zoo.everything_of(model)
    with model.get_encoder().register_forward_hook(lambda *_: passes.append(1)):
        subject = si.load(model, encoder=source_of(name))
        si.measure(subject, TOKENS, edits=[] if name == "t5" else [SwapPositions(0, 4)])
    assert passes == [1] and zoo.everything_of(model) == before


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_input_of_the_encoder_changes_the_numbers(name):
    reports = [si.measure(subject_of(name, TokenIds(ids)), TOKENS) for ids in (SOURCE, SOURCE[:4])]
    assert not reports[0].importance.equal(reports[1].importance)
    assert reports[0].protocol.encoder != reports[1].protocol.encoder


def test_a_model_that_is_not_causal_is_refused():
    model = zoo.model_of("llama")
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, update: update + update.mean(1, keepdim=True))
    refused(lambda: si.load(model))


@every_model
def test_cross_attention_is_a_second_set_of_calls(name):
    patterns = torch.stack(eager_output(name).cross_attentions, 1)
    subject = subject_of(name)
    crossing = subject.cross_attention()
    report = si.measure(crossing, TOKENS)
    close(report.importance, patterns.mean(-2))
    assert report.importance.shape[-1] == report.value_norms.shape[-1] == crossing.n_keys != TOKENS.shape[1]
    assert report.protocol.model.endswith(", cross-attention") and "cross" not in subject.name
    close(report.null, torch.full_like(report.null, 1 / crossing.n_keys))
    assert report.bias_null.equal(report.null)
    alone = si.measure(crossing, TOKENS, positions=(crossing.n_keys - 1,))
    close(alone.importance[..., 0], report.importance[..., -1])
    close(report.residual_norms, si.measure(subject, TOKENS).residual_norms)


def test_edits_of_calls_reach_the_attention_that_is_read():
    subject = subject_of("bart")
    crossing, plain = subject.cross_attention(), subject.run(TOKENS).logits
    silenced = [each.run(TOKENS, edits=[SILENCED]).logits for each in (subject, crossing)]
    assert not any(a.allclose(b, atol=1e-3) for a, b in ((silenced[0], plain), (silenced[1], plain), silenced))
    refused(lambda: crossing.run(TOKENS, reads={"x": ATTENTION_INPUT.read(torch.clone)}))  # of the other attention
    (module,) = [found.module for found in crossing.maps() if (found.layer, found.site) == (1, KEY_WEIGHTS)]
    assert module is subject.model.model.decoder.layers[1].encoder_attn.k_proj


GPT2, BART = zoo.model_of("gpt2"), model_of("bart")
REFUSED = {
    "a model that needs its encoder": lambda: subject_of("t5gemma", NoEncoder()),
    "a position outside the table": lambda: subject_of("bart").run(TOKENS, edits=[zoo.ShiftPositions(30)]),
    "more tokens than the context": lambda: subject_of("whisper").run(tokens_of(41)),
    "no positions": lambda: subject_of("t5").run(TOKENS, edits=[SwapPositions(0, 4)]),
    "text for sound": lambda: subject_of("whisper", TokenIds(SOURCE)),
    "an encoder that is not there": lambda: si.load(GPT2, encoder=NoEncoder()),
    "no extractor of features": lambda: subject_of("whisper", Silence()),
    "nnsight": lambda: si.load(BART, backend="nnsight", encoder=NoEncoder()),
    "TransformerLens": lambda: si.load(BART, backend="transformer_lens", encoder=NoEncoder()),
    "a subject of decoders": lambda: HuggingFaceSubject(BART),
    "a patched block": lambda: si.patched(BART, SwapPositions(0, 4)).__enter__(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_encoder_decoder_cannot_do_is_refused_in_one_line(name):
    refused(REFUSED[name])


TEXT = "word7 word9 word50 word12"
SAMPLES = [0.0, 0.5, -0.5, -1.0, 0.25]


def wav(file, width, samples=SAMPLES, rate=16_000, channels=1):
    """Writes samples as whole numbers of some bytes, every channel alike."""
    half = 1 << (8 * width - 1)
    numbers = [int(sample * half) + (half if width == 1 else 0) for sample in samples for _ in range(channels)]
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(b"".join(struct.pack("<q", number)[:width] for number in numbers))
    return file


@pytest.fixture
def whisper(tmp_path):
    """The folder of a model that hears one second, with its feature extractor."""
    folder = tmp_path / "whisper"
    model_of("whisper").save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    return folder


@pytest.fixture
def bart(tmp_path):
    return save_bart(tmp_path / "bart")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_every_width_are_read(tmp_path, width, channels):
    samples = Sound(wav(tmp_path / "a.wav", width, channels=channels)).samples()
    torch.testing.assert_close(samples, torch.tensor(SAMPLES), atol=1e-6, rtol=0)


def test_samples_that_are_floats_are_read_as_they_are(tmp_path):
    wavfile.write(tmp_path / "a.wav", 16_000, np.float32(SAMPLES))
    torch.testing.assert_close(Sound(tmp_path / "a.wav").samples(), torch.tensor(SAMPLES), atol=0, rtol=0)


def test_a_sound_that_cannot_be_read_or_ends_before_its_header_says_is_named(tmp_path):
    (tmp_path / "b.wav").write_bytes(b"no sound")
    wrong = [wav(tmp_path / "a.wav", 2, rate=44_100), wav(tmp_path / "c.wav", 2, samples=[]), tmp_path / "b.wav"]
    for channels, lost in product((1, 2), (1, 2, 3, 4, 7)):
        wrong.append(wav(tmp_path / f"{channels}-{lost}.wav", 2, channels=channels))
        wrong[-1].write_bytes(wrong[-1].read_bytes()[:-lost])
    for file in wrong:
        refused(Sound(file).samples, str(file))


def test_a_sound_is_named_by_any_path(tmp_path):
    file = wav(tmp_path / "a.wav", 2)
    assert Sound(str(file)) == Sound(file) and Sound(str(file)).description == Sound(file).description
    assert Sound(file).description.startswith("sound a.wav (sha256 ")
    refused(lambda: Sound("nowhere.wav"), "nowhere")
    refused(lambda: Sound(5), "5")


def test_silence_is_what_the_extractor_makes_of_zeros(whisper):
    model, hear = model_of("whisper"), WhisperFeatureExtractor.from_pretrained(whisper)
    features = hear(np.zeros(16_000, np.float32), sampling_rate=16_000, return_tensors="pt").input_features
    with torch.no_grad():
        states = model.model.encoder(features).last_hidden_state.expand(5, -1, -1)
        want = model(encoder_outputs=(states,), decoder_input_ids=tokens_of(), use_cache=False).logits
    subject = si.load(whisper, encoder=Silence())
    torch.testing.assert_close(subject.run(tokens_of()).logits, want, rtol=1e-5, atol=1e-6)


def test_a_text_is_read_as_the_tokenizer_encodes_it(bart):
    by_text, by_ids = (
        si.measure(si.load(bart, encoder=given), tokens_of()) for given in (Text(TEXT), TokenIds((1, 7, 9, 50, 12, 2)))
    )
    assert by_text.importance.equal(by_ids.importance)
    assert by_text.protocol.encoder.startswith(f'text "{TEXT}" (sha256 ')


def test_the_option_names_every_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    wav(tmp_path / "a.wav", 2)
    phrase = "a phrase. of text"
    kinds = {"silence": Silence(), "off": NoEncoder(), "a.txt": Text(TEXT), phrase: Text(phrase)}
    assert all(encoder_input(words) == given for words, given in kinds.items())
    assert encoder_input("a.wav").description == Sound(tmp_path / "a.wav").description
    for absent in ("b.wav", "b.txt"):
        refused(partial(encoder_input, absent), str(absent))


def test_bos_is_the_token_that_the_decoder_starts_with(bart):
    tokenizer = load_tokenizer(bart)
    assert tokenizer.bos_token_id == 2 and tokenizer.bos_token == "</s>"
    token_set = TextToTokens(tokenizer, Bos.ALWAYS).of_length([TEXT], 5, 1, "a text")
    assert token_set.tokens.tolist() == [[2, 7, 9, 50, 12]] and token_set.bos == "always (id 2 first)"


@pytest.mark.parametrize(("length", "texts"), [(3, [TEXT]), (5, [TEXT]), (5, ["word7 word9 word50", TEXT])])
def test_no_text_ends_in_what_the_tokenizer_appends(bart, length, texts):
    tokenizer = load_tokenizer(bart)
    token_set = TextToTokens(tokenizer).of_length(texts, length, 1, "texts")
    assert token_set.tokens.tolist() == [[1, 7, 9, 50, 12][:length]] and token_set.too_short == len(texts) - 1
    assert TextToTokens(tokenizer).one(TEXT).tokens.tolist() == [[1, 7, 9, 50, 12]]
