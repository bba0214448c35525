import struct
import wave

import numpy as np
import pytest
import torch
from backends.encoder_decoders import model_of, save_bart, tokens_of
from refusals import refused
from transformers import WhisperFeatureExtractor

import sinkinterp as si
from sinkinterp.backends.encoder.encoder_input import NoEncoder, Silence, Sound, Text, TokenIds, encoder_input
from sinkinterp.backends.files.model_files import load_tokenizer
from sinkinterp.data.choices import Bos
from sinkinterp.data.token_sources import TextToTokens
from sinkinterp.errors import InputError

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


def test_a_sound_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "b.wav").write_bytes(b"no sound")
    wrong = (wav(tmp_path / "a.wav", 2, rate=44_100), wav(tmp_path / "c.wav", 2, samples=[]), tmp_path / "b.wav")
    for file in wrong:
        refused(Sound(file).samples, str(file))


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_sound_that_ends_before_its_header_says_is_refused(tmp_path, lost, channels):
    file = wav(tmp_path / "a.wav", 2, channels=channels)
    file.write_bytes(file.read_bytes()[:-lost])
    refused(lambda: Sound(file).samples())


def test_a_sound_is_named_by_any_path(tmp_path):
    file = wav(tmp_path / "a.wav", 2)
    assert Sound(str(file)) == Sound(file) and Sound(str(file)).description == Sound(file).description
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


def test_a_sound_differs_from_silence_and_from_none(whisper, tmp_path):
    noise = (np.random.default_rng(0).standard_normal(12_000).clip(-3, 3) / 3).tolist()
    inputs = (Silence(), Sound(wav(tmp_path / "noise.wav", 2, noise)), NoEncoder())
    reports = [si.measure(si.load(whisper, encoder=given), tokens_of()) for given in inputs]
    assert len({report.importance.sum().item() for report in reports}) == 3
    assert reports[1].protocol.encoder.startswith("sound noise.wav (sha256 ")


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
        with pytest.raises(InputError, match=f"there is no file {absent}"):
            encoder_input(absent)


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


def test_the_commands_measure_and_view_ask_for_an_encoder_input_and_take_it(call, bart):
    drawn = ("--drawn", "random", "--length", 9, "--sequences", 5, "--first-only")
    code, output = call("measure", bart, *drawn)
    assert code == 2 and "add --encoder silence, off, FILE or TEXT" in output
    code, output = call("measure", bart, *drawn, "--encoder", TEXT, "--bos", "always")
    assert code == 0 and f'BOS id 2 first, encoder text "{TEXT}"' in output
    code, output = call("view", bart, "--text", TEXT, "--encoder", "off", "--out", "page.html")
    assert code == 0 and "wrote page.html" in output
