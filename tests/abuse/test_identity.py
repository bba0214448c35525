"""A sealed file in the place of another is refused in one line, or what belongs there is made again."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch
from corpora import packed, text_in
from refusals import refused
from safetensors.torch import load_file
from sinkinterp._experiments.book.chapter import PLOTLY, Chapter, chapter_in, write_numbers
from sinkinterp._experiments.book.story import write_chapter, write_front_pages
from sinkinterp._experiments.figure30_fine_tuning import history_of
from sinkinterp._experiments.shared.fine_tuning import ChatRecipe
from transformers import PreTrainedTokenizerFast

import sinkinterp as si
from sinkinterp import files
from sinkinterp.applications.mend import mend_recipe, mended
from sinkinterp.backends import named_models
from sinkinterp.backends.named_models import SHIPPED
from sinkinterp.checks import InputError
from sinkinterp.data import sources as docstrings
from sinkinterp.data.packing import RECORD
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.runs.trained import run_of, trained
from sinkinterp.table import Table
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.recipe import Recipe


@dataclass(frozen=True)
class Kind:
    """Two sealed files or folders of one kind.

    places: makes both in a folder and returns them. read: what is read at place 0 or 1 of that folder.
    """

    places: Callable[[Path], tuple[Path, Path]]
    read: Callable[[Path, int], Any]


def exchanged(one, other):
    one.rename(one.with_name("third"))
    other.rename(one)
    one.with_name("third").rename(other)


def renamed(one, other):
    one.rename(one.with_name("third"))
    other.rename(one)


def renamed_without_its_seal(one, other):
    renamed(one, other)
    if one.is_dir():
        for name in (files.SEAL, RECORD):
            (one / name).unlink(missing_ok=True)


def weights(folder):
    return {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}


TOY = Recipe(model=VARIANTS["softmax"], steps=6, batch=2, warmup=1, watch_every=3, save_every=3)


def steps(home):
    folder = trained(TOY, home, folder=home / "run").folder
    return folder, folder.parent / "step-0000003"


def read_end(home, i):
    return None if i else weights(trained(TOY, home, folder=home / "run").folder)


def chat_recipe(home, seed):
    made = {"model": str(home / "base"), "data": str(home / "chats.jsonl")}
    return ChatRecipe(**made, length=61, steps=2, batch=2, watch_every=1, seed=seed)


def runs_on_chats(home):
    """The folders of two runs with different seeds."""
    save_base(home / "base", seed=1)
    chats = [[{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba" * i}] for i in range(1, 24)]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (home / "chats.jsonl").write_text("\n".join(lines))
    return tuple(run_of(chat_recipe(home, seed), home) for seed in (0, 1))


def save_base(folder, seed):
    tokenizer = SHIPPED / "text-softmax"
    build(LMSpec(vocab=1024, d_model=8, n_heads=1, n_ctx=64), seed).save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(tokenizer).save_pretrained(folder)


def evaluations(home):
    one, other = runs_on_chats(home)
    for seed in (0, 1):
        history_of(chat_recipe(home, seed), home)
    return one / "step-0000002", other / "step-0000002"


def adapted(home, i):
    """The adapter of one of two runs that mend one model, at different rates."""
    recipe = mend_recipe(str(home / "base"), text_in(home), 11, steps=2, batch=2, lr=(1e-3, 2e-3)[i])
    return mended(recipe, home / str(i), home).folder


def adapters(home):
    save_base(home / "base", seed=1)
    return adapted(home, 0), adapted(home, 1)


def loaded_logits(folder):
    return si.load(folder).run(torch.arange(14).reshape(2, 7)).logits.tolist()


def bases(home):
    """The model that a run began with, and another one."""
    runs_on_chats(home)
    save_base(home / "other", seed=2)
    loop.train(chat_recipe(home, 0).job(), home / "run")
    return home / "base", home / "other"


def read_base(home, i):
    """The weights that the run goes on from. The other place is the user's own."""
    return None if i else loop.train(chat_recipe(home, 0).job(), home / "run") and weights(home / "base")


def corpus(home, i):
    return packed(home / "text.txt", (300, 310)[i]).prepare(home)


def corpora(home):
    text_in(home)
    return tuple(corpus(home, i).folder for i in (0, 1))


def documents(home, i, monkeypatch):
    (home / str(i)).mkdir(exist_ok=True)
    (home / str(i) / "a.py").write_text(f'"""{"says a thing or two. " * 20} {i}"""\n')
    monkeypatch.setattr(docstrings, "DEPENDENCIES", [("torch",), ("numpy",)][i])
    monkeypatch.setattr(docstrings, "_documented_files", lambda: [home / str(i) / "a.py"])
    return docstrings.embedded_texts(home)


def read_documents(home, i):
    with pytest.MonkeyPatch.context() as patch:
        return documents(home, i, patch)


def documented(home):
    places = []
    for i in (0, 1):
        read_documents(home, i)
        places += [file for file in home.glob("embedded-*.json") if file not in places]
    return tuple(places)


NAMES = ("demo-softmax", "demo-sigmoid")


def shipped(home):
    for name in NAMES:
        shutil.copytree(SHIPPED / name, home / name)
    return tuple(home / name for name in NAMES)


def read_shipped(home, i, by_path=False):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_models, "SHIPPED", home)
        return loaded_logits(home / NAMES[i] if by_path else f"sinkinterp/{NAMES[i]}")


MADE = ("smollm2-135m-instruct", "gemma3-270m")


def downloaded(home):
    for made, name in zip(MADE, NAMES, strict=True):
        folder = shutil.copytree(SHIPPED / name, home / "models" / made, ignore=lambda *_: {files.SEAL})
        files.seal(folder, named_models.owner_by_name(folder))
    return tuple(home / "models" / made for made in MADE)


def read_downloaded(home, i, by_path=False):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKINTERP_CACHE", str(home))
        return weights(Path(named_models.located(home / "models" / MADE[i] if by_path else MADE[i])))


def chapters(home):
    made = [Chapter(name, "", Table.of(name, "", ({"x": 1.5},)), (), {}) for name in ("one", "other")]
    return tuple(write_numbers(home, chapter) for chapter in made)


KINDS = {
    "a step of a run, as a model": Kind(steps, lambda home, i: weights(loaded(steps_of(home)[i]))),
    "a step of a run, as a history": Kind(steps, lambda home, i: checkpoint.history_of(steps_of(home)[i])),
    "a step of a run, at its end": Kind(steps, read_end),
    "evaluations of two seeds": Kind(evaluations, lambda home, i: history_of(chat_recipe(home, i), home)),
    "adapters of two runs": Kind(adapters, lambda home, i: loaded_logits(adapted(home, i))),
    "the base model of a run": Kind(bases, read_base),
    "corpora of two tokenizers": Kind(corpora, lambda home, i: corpus(home, i).sha256),
    "docstrings of two versions": Kind(documented, read_documents),
    "models that ship": Kind(shipped, read_shipped),
    "models that are downloaded": Kind(downloaded, read_downloaded),
    "models that ship, by path": Kind(shipped, partial(read_shipped, by_path=True)),
    "models that are downloaded, by path": Kind(downloaded, partial(read_downloaded, by_path=True)),
    "chapters of a book": Kind(chapters, lambda home, i: chapter_in(home / f"{('one', 'other')[i]}.json").to_dict()),
}


def steps_of(home):
    return home / "run" / "step-0000006", home / "run" / "step-0000003"


def loaded(folder):
    si.load(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_of_something_else_is_refused_in_one_line_or_made_again(tmp_path, kind):
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir()
    one, other = kind.places(home)
    whole = [kind.read(home, i) for i in (0, 1)]
    shutil.copytree(home, kept, symlinks=True)
    for misplace in (exchanged, renamed, renamed_without_its_seal):
        shutil.rmtree(home)
        shutil.copytree(kept, home, symlinks=True)
        misplace(one, other)
        for i in (0, 1) if misplace is exchanged else (0,):
            try:
                assert kind.read(home, i) == whole[i], misplace
            except InputError as error:
                assert "\n" not in str(error), misplace


def test_the_plotly_that_the_pages_of_a_book_run_is_that_of_this_installation(tmp_path):
    table = Table.of("claim", "", ({"x": 1.0},))
    chapter = Chapter("one", "", table, (), {})
    write_chapter(tmp_path, chapter, table, go.Figure())
    library = tmp_path / PLOTLY
    library.write_bytes(library.read_bytes() + b"\nfetch('https://example.org')")
    for write in (lambda: write_chapter(tmp_path, chapter, table, go.Figure()), lambda: write_front_pages(tmp_path)):
        refused(write)
    library.unlink()
    write_chapter(tmp_path, chapter, table, go.Figure())
    assert library.is_file()
