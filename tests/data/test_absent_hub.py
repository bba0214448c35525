"""An absent Hub is tried once: huggingface_hub alone tries each of a model's files six times, for minutes."""

import json
import socket
from functools import partial
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
from refusals import refused
from transformers import AutoFeatureExtractor

import sinkinterp as si
from sinkinterp.backends.encoder import _processor
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.checks import InputError
from sinkinterp.data import hub
from sinkinterp.data.texts import texts as texts_of
from sinkinterp.data.tokenizers import pretrained_tokenizer

NAME = "nobody/nothing"
ASKING = {
    "model": si.load,
    "tokenizer": load_tokenizer,
    "tokenizer of a recipe": pretrained_tokenizer,
    "texts": lambda name: next(iter(texts_of(name))),
    "features of sound": lambda name: _processor(AutoFeatureExtractor, SimpleNamespace(name_or_path=name)),
    "mend": lambda name: si.mend(name, "mended"),
}


@pytest.fixture
def tries(monkeypatch):
    """The addresses that were looked up, each in vain."""
    tried = []

    def no_route(*address, **_):
        tried.append(address)
        raise OSError("Network is unreachable")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", no_route)
    monkeypatch.setattr(socket.socket, "connect", no_route)
    monkeypatch.setattr(hub, "getproxies", dict)
    hub._is_reached.cache_clear()
    yield tried
    hub._is_reached.cache_clear()


@pytest.mark.parametrize("asks", ASKING.values(), ids=ASKING)
def test_an_absent_hub_is_tried_once_and_then_the_error_says_what_to_do(asks, tries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"network|jsonl|TokenIds") as error:
        asks(NAME)
    assert len(tries) == 1 and "\n" not in str(error.value)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_an_adapter_says_that_it_is_its_base_that_is_absent(tries, tmp_path):
    said = {"base_model_name_or_path": NAME, "peft_type": "LORA", "r": 3, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    for asks in (si.load, load_tokenizer):
        refused(partial(asks, tmp_path), NAME)
    refused(lambda: si.load(tmp_path), f"is an adapter, which is read with its base model {NAME}")
    assert len(tries) == 1


def test_files_here_are_read_without_asking(tries, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    assert len(list(texts_of(tmp_path / "a.txt"))) == 2
    si.load("sinkinterp/demo-softmax")
    assert tries == []
