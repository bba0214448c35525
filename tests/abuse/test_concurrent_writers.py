"""Processes that write to one place at the same time: one waits for the other."""

import json

from abuse.damage import contents
from corpora import packed, text_in
from forks import ended, forked, forks

from sinkinterp.lm.variants import VARIANTS
from sinkinterp.train import checkpoint, loop
from sinkinterp.train.loop import job_of
from sinkinterp.train.recipe import Recipe

RECIPE = Recipe(model=VARIANTS["k_bias"], steps=24, batch=7, warmup=5, watch_every=6, save_every=6)
JOB = job_of(RECIPE, RECIPE.data, lambda model: {"head": model.lm_head.weight.sum().item()})


@forks
def test_three_processes_train_once_and_pack_once_and_share_the_result(tmp_path):
    text = packed(text_in(tmp_path))

    def train_and_pack(i):
        steps, documents = [], []
        loop.train(JOB, tmp_path / "run", lambda step, metrics: steps.append(step))
        sha256 = text.prepare(tmp_path, lambda done, of: documents.append(done)).sha256
        (tmp_path / f"{i}.json").write_text(json.dumps([steps, documents, sha256]))

    children = [forked(lambda i=i: train_and_pack(i)) for i in range(3)]
    assert [*map(ended, children)] == [0, 0, 0]
    steps, documents, hashes = zip(*(json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)), strict=True)
    assert sorted(steps) == [[], [], list(range(1, 25))]
    assert sorted(documents) == [[], [], list(range(1, 100))] and len(set(hashes)) == 1
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {"lock", "step-0000018", "step-0000024"}
    assert contents(loop.train(JOB, tmp_path / "alone")) == contents(checkpoint.folder_of(run, 24))
