"""A model's folder names files of the user's; they are read if the user names them too."""

import json

import pytest
from refusals import refused

import sinkinterp as si
from sinkinterp.data.packing import PackedText
from sinkinterp.data.sources import Embedded, PythonCode, Repeating, Texts
from sinkinterp.data.texts import texts_of
from sinkinterp.data.tokenisers import ByteBPE, Pretrained
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.runs.case import Inputs
from sinkinterp.seals import seal
from sinkinterp.train.recipe import Recipe


def folder_trained_on(data, folder):
    model = LMSpec(vocab=data.vocab, n_ctx=16, n_layers=1, d_model=16, n_heads=2, ffn=GatedFFN(width=24))
    recipe = Recipe(model=model, data=data)
    build(recipe.model, 0).save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    seal(folder)
    return folder


@pytest.fixture
def read(monkeypatch):
    """The sources that are read."""
    names = []

    def noted(source, *args):
        names.append(source)
        return texts_of(source, *args)

    monkeypatch.setattr("sinkinterp.data.sources.texts_of", noted)
    return names


def packed(source):
    return PackedText(source=source, tokenizer=ByteBPE(300), length=11)


@pytest.mark.parametrize("wrap", [lambda source: source, Repeating])
def test_a_file_that_only_the_folder_names_is_asked_for(tmp_path, monkeypatch, read, wrap):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    secret = tmp_path / "secret.txt"
    secret.write_text("\n\n".join(f"a secret of mine {i}" for i in range(300)))
    folder = folder_trained_on(packed(wrap(Texts(str(secret)))), tmp_path / "model")
    subject = si.load(folder)
    said = f"was trained on {secret}, which is read if you name it: text="
    refused(lambda: Inputs(7, 3).token_set(subject, str(folder)), said)
    assert read == []
    assert Inputs(7, 3, text=str(secret)).token_set(subject, str(folder)).tokens.shape == (3, 7)
    assert set(read) == {str(secret)}


def test_what_is_outside_the_installation_is_known_of_every_source():
    assert packed(Texts("a.txt")).outside == packed(Repeating(Texts("a.txt"))).outside == "a.txt"
    assert PackedText(tokenizer=Pretrained(300, "folder")).outside == "folder"
    assert {packed(source).outside for source in (Embedded(), PythonCode(), Repeating())} == {""}
