import pytest
import torch
from refusals import refused
from tiny_whisper import tensors_of, tiny_whisper, write_binary, write_settings, write_tokenizer
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

from models import ctranslate2, whisper


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tiny_whisper()


@pytest.fixture
def tensors(model):
    return tensors_of(model)


@pytest.fixture
def folder(tmp_path, tensors):
    binary = write_binary(tmp_path / "model.bin", tensors)
    settings, tokenizer = write_settings(tmp_path / "config.json"), write_tokenizer(tmp_path / "tokenizer.json")
    whisper.convert(binary, tokenizer, settings, tmp_path / "folder")
    return tmp_path / "folder"


def logits_of(model):
    sound = torch.randn(2, 13, 34, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(50371, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(input_features=sound, decoder_input_ids=tokens).logits


def test_a_binary_is_read_as_it_was_written(tmp_path, tensors):
    tensors |= {f"kind/{dtype}": torch.tensor([[3, -1, 2]], dtype=dtype) for dtype in ctranslate2.DTYPES}
    binary = ctranslate2.read(write_binary(tmp_path / "model.bin", tensors))
    assert binary.specification == "WhisperSpec" and list(binary.tensors) == list(tensors)
    assert binary.aliases == {"decoder/projection/weight": "decoder/embeddings/weight"}
    for name, tensor in tensors.items():
        assert binary.tensors[name].dtype == tensor.dtype and binary.tensors[name].equal(tensor), name


@pytest.mark.parametrize("last", [0, 3, 40, 5000, -1])
def test_a_binary_that_ends_too_early_is_refused(tmp_path, tensors, last):
    file = write_binary(tmp_path / "model.bin", tensors)
    file.write_bytes(file.read_bytes()[:last])
    refused(lambda: ctranslate2.read(file))


def test_a_binary_of_another_version_or_with_more_behind_its_end_is_refused(tmp_path, tensors):
    refused(lambda: ctranslate2.read(write_binary(tmp_path / "model.bin", tensors, version=5)), "version")
    file = write_binary(tmp_path / "model.bin", tensors)
    file.write_bytes(file.read_bytes() + b"ab")
    refused(lambda: ctranslate2.read(file))


def test_a_converted_model_has_the_logits_of_the_model_that_was_written(model, folder):
    again = WhisperForConditionalGeneration.from_pretrained(folder)
    assert again.dtype == torch.float32
    assert logits_of(again).equal(logits_of(model))


def test_a_converted_folder_has_its_sizes_its_tokenizer_and_its_settings(folder):
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    config, generation = model.config, model.generation_config
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.vocab_size) == (2, 3, 30, 50371)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (3, 5)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim, config.max_target_positions) == (7, 11, 19)
    assert (config.decoder_start_token_id, config.eos_token_id) == (50257, 50256)
    assert generation.suppress_tokens == [1, 2] and generation.begin_suppress_tokens == [220]
    assert WhisperFeatureExtractor.from_pretrained(folder).feature_size == 13
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = ["<|startoftranscript|>", "<|notimestamps|>", "ab", "<|endoftext|>"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("ab")["input_ids"]) == words
    assert tokenizer.bos_token == words[0]


KEYS, GATE = "decoder/layer_1/self_attention/linear_0", "decoder/layer_0/attention/gate"
LACKING = ("decoder/layer_2/ffn/linear_1/bias", "encoder/conv1/weight", "decoder/pre_norm")
WRONG = [
    *((name, None, f"is no Whisper model: it lacks '{name}'") for name in LACKING),
    (GATE, lambda tensors: torch.ones(2), f"nothing in one takes {GATE}"),
    (f"{KEYS}/bias", lambda tensors: torch.ones_like(tensors[f"{KEYS}/bias"]), f"the keys of {KEYS} have a bias"),
    ("decoder/activation", lambda tensors: torch.tensor(0, dtype=torch.int8), "its activation is not 3"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG)
def test_tensors_that_are_not_those_of_whisper_are_refused_by_their_names(tmp_path, tensors, name, wrong, message):
    tensors |= {name: wrong and wrong(tensors)}
    there = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    refused(lambda: whisper.converted(ctranslate2.read(write_binary(tmp_path / "model.bin", there))), message)
