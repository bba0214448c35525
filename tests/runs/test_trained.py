import json
import os
import shutil
import subprocess
from dataclasses import replace

import pytest
from refusals import refused
from sinkinterp._experiments.book import chapter as provenance
from sinkinterp._experiments.shared.cases import _variant_of
from sinkinterp._experiments.shared.study import by_model
from transformers import AutoTokenizer

import sinkinterp as si
from sinkinterp.backends.load import load
from sinkinterp.data.packing import PackedText
from sinkinterp.data.sources import Embedded, PythonCode, Repeating
from sinkinterp.data.texts import Texts, files_of
from sinkinterp.data.tokenizers import ByteBPE, Pretrained
from sinkinterp.files import seal
from sinkinterp.lm.block import GatedFFN
from sinkinterp.lm.model import LMSpec, build
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.metrics.metric import next_token_loss
from sinkinterp.runs import trained
from sinkinterp.runs.inputs import Inputs
from sinkinterp.table import ALPHA_1, LOSS, MODEL, NULL, RESIDUAL_RATIO, SEED, SINK_1, Table
from sinkinterp.train.loop import held_out_tokens
from sinkinterp.train.recipe import RECIPES, PrefixLM, Recipe, recipe_in, with_variant


def test_a_run_names_its_text_keeps_its_tokenizer_and_refuses_another_text(tmp_path):
    texts = {name: tmp_path / f"{name}.txt" for name in "ab"}
    for name, file in texts.items():
        file.write_text("\n\n".join(f"{i} sinks {name} gather on first tokens" for i in range(50)))
    data = packed(Texts(str(texts["a"])))
    model = replace(VARIANTS["softmax"], vocab=300)
    recipe = Recipe(model=model, data=data, steps=2, batch=3)
    progress = []
    run = trained.trained(recipe, tmp_path / "cache", on_data=lambda done, of: progress.append((done, of)))
    assert progress and AutoTokenizer.from_pretrained(run.folder).vocab_size <= 300
    task = data.prepare(tmp_path / "cache")
    sha256, n_held_out = task.sha256, len(task.split.held_out)
    assert n_held_out < trained.LEAST_EVALUATION_SEQUENCES and run.history().records()[-1]["valid_loss"] > 0
    assert run.recipe == recipe_in(run.folder) == replace(recipe, data=replace(data, sha256=sha256))
    assert run.folder.parent.name == recipe.key() and trained.trained(recipe, tmp_path / "cache") == run
    texts["a"].write_text("other words\n\n" + texts["b"].read_text())
    other = tmp_path / "other cache"
    refused(lambda: trained.trained(recipe, other, folder=run.folder.parent), f"data.sha256 is {sha256} there")


def test_the_loss_of_an_evaluation_is_that_of_the_predicted_tokens(tmp_path):
    recipe = Recipe(model=VARIANTS["softmax"], objective=PrefixLM(5), steps=2, batch=3)
    run = trained.trained(recipe, folder=tmp_path / "here")
    assert run.folder.parent == tmp_path / "here"
    subject, token_set = run.subject(), held_out_tokens(recipe.data, trained.EVALUATION_SEQUENCES)
    losses = next_token_loss(subject.run(token_set.tokens).logits, token_set.tokens)
    assert run.history().records()[-1]["valid_loss"] == pytest.approx(losses[:, 4:].mean().item(), abs=1e-6)
    assert trained.valid_loss(subject, token_set).mean == pytest.approx(losses.mean().item(), abs=1e-6)


def test_the_folder_of_a_run_is_its_newest_model(tmp_path):
    for step in (1, 2, 10):
        build(VARIANTS["softmax"]).save_pretrained(tmp_path / f"step-{step:07d}")
    assert load(tmp_path).name == str(tmp_path / "step-0000010")
    for name in ("step-0000002", "step-0000010"):
        (tmp_path / name).rename(tmp_path / f"other-{name}")
    (tmp_path / "step-0000001").rename(tmp_path / "model")
    refused(lambda: load(tmp_path))


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Runs git in a repository that holds a copy of the module, which asks for its own commit."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    (tmp_path / "book.json").write_text("{}")
    monkeypatch.setattr(provenance, "__file__", str(module))

    def git(*words):
        user = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        return subprocess.run(["git", *user, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert provenance.provenance()["commit"] == "unknown"  # outside a repository
    for words in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*words)
    return git


def test_the_commit_is_named_with_whether_files_differ_from_it(repository, tmp_path):
    commit = repository("rev-parse", "HEAD")[:12]
    (tmp_path / "notes.txt").write_text("not a part of the commit")
    (tmp_path / "book.json").write_text("numbers, which are no code")
    assert provenance.provenance()["commit"] == commit
    (tmp_path / "module.py").write_text("x = 2\n")
    assert provenance.provenance()["commit"] == f"{commit}-dirty"


def test_asking_for_the_commit_leaves_the_index_of_the_repository_as_it_is(repository, tmp_path):
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    os.utime(tmp_path / "module.py", (0, 0))  # git would note the new time
    provenance.provenance()
    assert index.read_bytes() == before and not index.with_name("index.lock").exists()


QUANTITIES = (RESIDUAL_RATIO, ALPHA_1, SINK_1, LOSS)


def test_every_mark_lies_on_its_axis():
    rows = [
        {MODEL: name, SEED: seed, RESIDUAL_RATIO: 16.6 + seed, ALPHA_1: 0.9, NULL: 0.1, SINK_1: 1.0, LOSS: 3.4}
        for name in ("softmax", "sigmoid")
        for seed in range(3)
    ]
    figure = by_model(Table.of("models", "", tuple(rows)), QUANTITIES)
    axes = [axis.range for axis in figure.select_yaxes()]
    assert len(axes) == len(QUANTITIES)
    for i, quantity in enumerate(QUANTITIES):
        marks = [y for trace in figure.select_traces(row=i + 1, col=1) for y in trace.y]
        low, high = axes[i] or (min(marks), max(marks))
        assert all(low <= mark <= high for mark in marks), quantity


@pytest.mark.parametrize(
    ("recipe", "name"), [("text-repeats", "learned"), ("text-repeats", "softmax"), ("demo", "k_bias")]
)
def test_a_model_of_ours_has_the_name_of_its_architecture_at_any_named_size(recipe, name):
    sized = with_variant(RECIPES[recipe], name)
    assert _variant_of(sized) == name
    assert _variant_of(replace(sized, model=replace(sized.model, d_model=48))) is None


def folder_trained_on(data, folder):
    model = LMSpec(vocab=data.vocab, n_ctx=16, n_layers=1, d_model=16, n_heads=2, ffn=GatedFFN(width=24))
    recipe = Recipe(model=model, data=data)
    build(recipe.model, 0).save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    seal(folder)
    return folder


@pytest.fixture
def read(monkeypatch):
    """The files and folders that are read."""
    paths = []
    monkeypatch.setattr("sinkinterp.data.texts.files_of", lambda path: paths.append(path) or files_of(path))
    return paths


def packed(source):
    return PackedText(source=source, tokenizer=ByteBPE(300), length=11)


@pytest.mark.parametrize("wrap", [lambda source: source, Repeating])
def test_a_file_that_only_the_folder_names_is_asked_for(tmp_path, monkeypatch, read, wrap):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    secret = tmp_path / "secret.txt"
    secret.write_text("\n\n".join(f"a secret of mine {i}" for i in range(300)))
    folder = folder_trained_on(packed(wrap(Texts(str(secret)))), tmp_path / "model")
    subject = si.load(folder)
    said = f"was trained on {secret}, which is read if you name it: text=Path("
    refused(lambda: Inputs(7, 3).token_set(subject, str(folder)), said)
    assert read == []
    assert Inputs(7, 3, text=secret).token_set(subject, str(folder)).tokens.shape == (3, 7)
    assert set(read) == {secret}


def test_what_is_outside_the_installation_is_known_of_every_source():
    assert packed(Texts("a.txt")).outside == packed(Repeating(Texts("a.txt"))).outside == "a.txt"
    assert PackedText(tokenizer=Pretrained(300, "folder")).outside == "folder"
    assert {packed(source).outside for source in (Embedded(), PythonCode(), Repeating())} == {""}
