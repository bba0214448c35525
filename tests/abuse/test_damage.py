"""Damaged files are noticed when they are read, and what is lost is made again, bit for bit."""

import json
import logging
import pickle
import random
import shutil
from dataclasses import replace

import plotly.graph_objects as go
import pytest
import torch
from abuse.damage import DAMAGES, blank, contents, cut, damaged_copies, empty_object, files_in, flip, lose
from corpora import packed, text_in
from refusals import refused
from sinkinterp._experiments.book.chapter import Chapter
from sinkinterp._experiments.book.story import write_chapter

import sinkinterp as si
from sinkinterp import files
from sinkinterp.backends.model_files import load_tokenizer
from sinkinterp.backends.named_models import SHIPPED
from sinkinterp.checks import InputError
from sinkinterp.data import packing, sources as docstrings
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import Damaged, seal, verify
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.table import Table
from sinkinterp.train import checkpoint, loop, recipe as recipes
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

TIMES = 3  # random bytes per file and kind of damage


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text, and a corpus and a finished run made of it."""
    home = tmp_path_factory.mktemp("home")
    text_in(home)
    train(recipe_in(home), home / "cache", home / "run")
    return home


@pytest.fixture(scope="module")
def report():
    return si.measure(si.load("sinkinterp/demo-softmax"), TokenSet.of(torch.arange(14).reshape(2, 7), "some"))


def recipe_in(home):
    model = replace(VARIANTS["k_bias"], vocab=300)
    return Recipe(model=model, data=packed(home / "text.txt"), steps=9, batch=3, warmup=2, watch_every=3, save_every=3)


def train(recipe, cache, run):
    """The last checkpoint of a run."""
    job = job_of(recipe, recipe.data.prepare(cache), lambda model: {"head": model.lm_head.weight.sum().item()})
    return loop.train(job, run)


@pytest.fixture
def lines(caplog):
    """What is said on standard error."""
    caplog.set_level(logging.WARNING, "sinkinterp")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "sinkinterp"]


def test_every_damage_of_every_file_of_a_checkpoint_is_noticed(home, tmp_path):
    whole = checkpoint.folder_of(home / "run", 9)
    verify(whole)
    assert {"optimizer.safetensors", "recipe.json", "history.json", "tokenizer.json"} < set(files_in(whole))
    for copy, name, damage in damaged_copies(whole, tmp_path / "copy", TIMES):
        with pytest.raises(Damaged):
            verify(copy)
            raise AssertionError((name, damage))


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_from_the_older_checkpoint_bit_for_bit(home, tmp_path, lines, damage):
    recipe, whole = recipe_in(home), checkpoint.folder_of(home / "run", 9)
    rng, names = random.Random(3), files_in(whole)
    for i, name in enumerate(names):
        run = shutil.copytree(home / "run", tmp_path / str(i))
        damage(run / whole.name / name, rng)
        assert contents(train(recipe, home / "cache", run)) == contents(whole)
        line = f"{run / whole.name / name} is damaged: "
        action = f"; the checkpoint is renamed to damaged-{whole.name}, and training goes on from step 6"
        assert len(lines()) == i + 1 and lines()[-1].startswith(line) and lines()[-1].endswith(action)
        assert {path.name for path in run.iterdir()} == {"lock", "step-0000006", whole.name, f"damaged-{whole.name}"}


def test_training_begins_again_where_every_checkpoint_is_damaged(home, tmp_path, lines):
    run = shutil.copytree(home / "run", tmp_path / "run")
    for folder in run.glob("step-*"):
        flip(folder / "model.safetensors", random.Random(5))
    assert contents(train(recipe_in(home), home / "cache", run)) == contents(checkpoint.folder_of(home / "run", 9))
    assert [line.rpartition(" from ")[2] for line in lines()] == ["step 6", "the beginning"]


def test_a_folder_that_only_looks_like_a_checkpoint_is_none(home, tmp_path, lines):
    run = shutil.copytree(home / "run", tmp_path / "run", ignore=lambda *_: {"step-0000009"})
    (run / "step-0000060").mkdir()
    (run / "step-0000061").write_text("a file")
    for name in ("step-old", "step-6", "step-00000060", "step-"):
        (run / name).mkdir()
    assert contents(train(recipe_in(home), home / "cache", run)) == contents(checkpoint.folder_of(home / "run", 9))
    assert len(lines()) == 2 and {"step-old", "step-6", "step-00000060", "step-"} < {p.name for p in run.iterdir()}


def test_every_damage_of_every_file_of_a_corpus_is_noticed_and_it_is_packed_again(home, tmp_path, lines):
    recipe = recipe_in(home).data
    whole = recipe.prepare(home / "cache")
    names, count = set(), 0
    target = recipe.folder(tmp_path)
    target.parent.mkdir()
    for copy, name, damage in damaged_copies(whole.folder, target, 1, (flip, cut, blank, lose)):
        if (name, damage) == (packing.RECORD, lose):
            continue
        again, count = recipe.prepare(tmp_path), count + 1
        assert again.sha256 == whole.sha256 and contents(copy) == contents(whole.folder), (name, damage)
        assert len(lines()) == count and "; the text is packed again" in lines()[-1], (name, damage)
        names.add(name)
    assert names == {packing.RECORD, packing.IDS, *TOKENIZER}


TOKENIZER = ("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")


def test_a_damaged_corpus_whose_text_is_gone_stays_as_it_is(tmp_path):
    text = text_in(tmp_path)
    recipe = packed(text)
    folder = recipe.prepare(tmp_path).folder
    flip(folder / packing.IDS, random.Random(1))
    text.unlink()
    left = contents(folder)
    refused(lambda: recipe.prepare(tmp_path))
    assert contents(folder) == left


@pytest.mark.parametrize("damage", [flip, cut, lose])
def test_damage_in_what_a_killed_packing_left_is_noticed(home, tmp_path, monkeypatch, lines, damage):
    recipe = recipe_in(home).data
    whole = recipe.prepare(home / "cache")
    monkeypatch.setattr(packing, "BLOCK", 211)

    def stop(*_):
        raise KeyboardInterrupt

    for i, name in enumerate((packing.RECORD, packing.IDS, *TOKENIZER)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(packing, "_has_words", stop)
            recipe.prepare(tmp_path / str(i))
        damage(recipe.folder(tmp_path / str(i)) / name, random.Random(i))
        assert recipe.prepare(tmp_path / str(i)).sha256 == whole.sha256
    assert all(line.endswith("; the text is packed again") for line in lines())
    assert len(lines()) == 4 - (damage is lose)  # without the record there is nothing to go on from


def test_every_damage_of_the_docstrings_is_noticed_and_they_are_gathered_again(tmp_path, monkeypatch, lines):
    text = "says a thing or two. " * 20
    (tmp_path / "a.py").write_text(f'"""{text}"""\n')
    monkeypatch.setattr(docstrings, "_documented_files", lambda: [tmp_path / "a.py"])
    texts = docstrings.embedded_texts(tmp_path / "whole")
    for count, (copy, name, damage) in enumerate(damaged_copies(tmp_path / "whole", tmp_path / "copy", 7), 1):
        assert docstrings.embedded_texts(copy) == texts == docstrings.embedded_texts(copy), (name, damage)
        assert len(lines()) == count and lines()[-1].endswith("; the docstrings are gathered again"), (name, damage)


def test_every_byte_of_a_report_counts(report, tmp_path):
    file = tmp_path / "report.safetensors"
    report.save(file)
    content = file.read_bytes()
    assert si.Report.load(file) == report
    head = 8 + int.from_bytes(content[:8], "little")
    for place in (*range(head), *range(head, len(content), 7)):
        other = bytearray(content)
        other[place] = ord("1") if other[place] == ord(" ") else ord(" ")
        file.write_bytes(other)
        assert file.name in refused(lambda: si.Report.load(file)), place
    for end in range(0, len(content), 97):
        file.write_bytes(content[:end])
        refused(lambda: si.Report.load(file), file.name)


@pytest.mark.parametrize("damage", [cut, empty_object])
def test_a_damaged_chapter_is_one_line_and_what_was_reproduced_is_kept(tmp_path, damage):
    table = Table.of("claim", "", ({"x": 1.0},))
    for name in ("first", "second"):
        write_chapter(tmp_path, Chapter(name, "", table, (), {}), table, go.Figure())
    damage(tmp_path / "first.json", random.Random(1))
    third = Chapter("third", "", table, (), {})
    if damage is cut:
        refused(lambda: write_chapter(tmp_path, third, table, go.Figure()))
    else:  # JSON that is no chapter
        write_chapter(tmp_path, third, table, go.Figure())
    assert json.loads((tmp_path / "third.json").read_text())["name"] == "third"


def test_the_checkpoints_that_ship_are_as_they_were_written(tmp_path):
    for folder in (path for path in SHIPPED.iterdir() if path.is_dir()):
        assert (folder / files.SEAL).exists(), folder
        verify(folder)
        expected = {name for name in files_in(folder) if name != files.SEAL}
        assert set(files.sealed_hashes(folder, {"model": folder.name})) == expected


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "recipe.json", "history.json"])
def test_a_damaged_checkpoint_that_ships_is_one_line(tmp_path, name):
    folder = shutil.copytree(SHIPPED / "text-softmax", tmp_path / "copy")
    flip(folder / name, random.Random(4))
    readers = {
        "tokenizer.json": load_tokenizer,
        "recipe.json": recipes.recipe_in,
        "history.json": checkpoint.history_of,
    }
    with pytest.raises(Damaged, match=rf"^[^\n]+{name} is damaged: [^\n]+; copy it again, [^\n]+$"):
        readers.get(name, si.load)(folder)


def test_a_damaged_model_from_elsewhere_is_one_line_or_loads(tmp_path):
    whole = shutil.copytree(SHIPPED / "text-softmax", tmp_path / "whole", ignore=lambda *_: {files.SEAL, files.RECIPE})
    outcomes = set()
    for copy, name, damage in damaged_copies(whole, tmp_path / "copy", 1, DAMAGES, left_out=("history.json",)):
        for read in (si.load, load_tokenizer):
            try:
                read(copy)
            except InputError as error:
                assert "\n" not in str(error), (name, damage)
                outcomes.add(type(error))
            else:
                outcomes.add(None)
    assert outcomes == {InputError, None}


def test_what_is_said_of_a_damaged_file_crosses_processes(tmp_path):
    error = pickle.loads(pickle.dumps(Damaged(tmp_path / "file", "it is\ncut off", "copy it")))
    assert str(error) == f"{tmp_path}/file is damaged: it is cut off; copy it" and error.path == tmp_path / "file"


def test_a_folder_that_is_sealed_says_what_is_missing(tmp_path):
    (tmp_path / "a").write_text("1")
    seal(tmp_path)
    verify(tmp_path)
    (tmp_path / "b").write_text("what is added later is not looked at")
    verify(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(Damaged, match=f"^{tmp_path}/a is damaged: [^;]+; copy it again"):
        verify(tmp_path)
