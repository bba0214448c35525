import json

import pytest
import torch
from backends.zoo import model_of, tokens_of
from refusals import refused

import sinkinterp as si
from sinkinterp.backends.model_files import origin_of
from sinkinterp.backends.named_models import located
from sinkinterp.files import cache_folder, seal


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def saved(folder, **source):
    model_of("llama").save_pretrained(folder)
    if source:
        (folder / "SOURCE.json").write_text(json.dumps(source))
    return folder


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SINKINTERP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "sinkinterp"


def test_a_local_name_is_a_model_of_the_cache(cache):
    folder = saved(cache / "models" / "tiny")
    (cache / "models" / "smollm2-135m-instruct").mkdir()
    seal(cache / "models" / "smollm2-135m-instruct", {"model": "smollm2-135m-instruct"})
    assert located("tiny") == located("local/tiny") == folder
    assert located("smollm2") == located("local/smollm2-135m-instruct") == folder.with_name("smollm2-135m-instruct")
    subject = si.load("local/tiny")
    assert subject.folder == folder and subject.name == "local/tiny" and subject.revision == ""
    with torch.no_grad():
        want = model_of("llama")(tokens_of()).logits
    torch.testing.assert_close(subject.run(tokens_of()).logits, want, atol=1e-6, rtol=1e-5)  # weights lie elsewhere


@pytest.mark.parametrize("text", ["{}", "[]", "3", "no json", '{"of": "somebody else"}'])
def test_a_source_file_of_somebody_else_says_nothing(tmp_path, text):
    folder = saved(tmp_path / "tiny")
    (folder / "SOURCE.json").write_text(text)
    assert origin_of(folder) == ""


def test_a_report_says_where_the_weights_of_a_folder_come_from(cache):
    folder = saved(cache / "models" / "tiny", **{"from": "GGUF Q4_1 of a package 1.0, dequantised"})
    for source in ("local/tiny", folder, str(folder)):
        assert si.load(source).revision == origin_of(source) == "GGUF Q4_1 of a package 1.0, dequantised"
    assert si.measure(si.load("local/tiny"), tokens_of()).protocol.revision == origin_of(folder)


@pytest.mark.parametrize("name", ["smollm2", "local/nothing", "local/", "local/../models/tiny", "local/.draft-1"])
def test_a_model_that_is_not_there_names_the_command_that_makes_it(cache, name):
    saved(cache / "models" / "tiny")
    (cache / "models" / ".draft-1").mkdir()
    refused(lambda: si.load(name))


def test_a_folder_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    saved(tmp_path / "local" / "mine")
    monkeypatch.chdir(tmp_path)
    assert located("local/mine") == "local/mine" and si.load("local/mine").name == "local/mine"
