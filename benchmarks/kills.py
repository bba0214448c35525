"""Kills programs of ours at random moments, and counts what is lost.

    python -m benchmarks.kills [--times 1000] [--seed 0] [--folder FOLDER] [--quick]

A process that has imported everything forks a child, which trains, packs, measures, reproduces or fine-tunes; the child
is killed (SIGKILL) at a random moment. After every kill, all files that stand under their names must be whole, and the
program must be as far as it was before. The next child goes on from there. When one ends, its files must equal, byte
for byte, those of a program that nobody killed. Linux and macOS.
"""

import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import plotly.graph_objects as go
import torch
import typer
from datasets import load_dataset  # noqa: F401  imported once, for all children
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from benchmarks.console import say
from experiments.book.chapter import Chapter
from experiments.book.story import write_chapter
from experiments.shared.rules import has_sink
from experiments.shared.study import BASES, architecture, study
from sinkinterp.backends.load import load
from sinkinterp.data import packing, tokenizers
from sinkinterp.data.choices import Scale
from sinkinterp.data.packing import Corpus, PackedText
from sinkinterp.data.texts import Texts
from sinkinterp.data.tokenizers import ByteBPE
from sinkinterp.data.tokens import TokenSet
from sinkinterp.files import verify
from sinkinterp.lm.variants import VARIANTS
from sinkinterp.measurement.measure import measure
from sinkinterp.report.report import Report
from sinkinterp.runs.experiment import Scope
from sinkinterp.runs.trained import trained
from sinkinterp.runs.workers import Here
from sinkinterp.train import checkpoint
from sinkinterp.train.recipe import Recipe

DRAFT = ".draft-"
LOCK = "lock"
RECIPE = Recipe(model=VARIANTS["k_bias"], steps=40, batch=7, warmup=5, watch_every=20, save_every=4)
STUDY = study(
    claim="a kill changes nothing",
    arms=(architecture("softmax"), architecture("relu")),
    rules=(has_sink("softmax"),),
    bases={Scale.SMOKE: replace(BASES[Scale.SMOKE], steps=12, save_every=4, watch_every=12)},
)
WORDS = ["attention", "sinks", "gather", "on", "first", "tokens", "whose", "values", "are", "small"]


@dataclass(frozen=True)
class Work:
    """What a child does in a folder, and how far what stands there is; `progress` raises where a file is not whole."""

    do: Callable[[Path], object]
    progress: Callable[[Path], int]


def train(folder: Path) -> None:
    """Trains a small model."""
    trained(RECIPE, folder, folder=folder / "run")


def steps_done(folder: Path) -> int:
    """The step of the newest checkpoint in every run of a folder, added up."""
    runs = {path.parent for path in folder.rglob("step-*")}
    for run in runs:
        for step in checkpoint.steps_in(run):
            verify(checkpoint.folder_of(run, step))
    return sum(map(checkpoint.latest, runs))


def pack(folder: Path) -> None:
    """Packs a text in many blocks."""
    _corpus(folder).prepare(folder)


def chunks_done(folder: Path) -> int:
    """How many chunks the record of a corpus names, and one more where packing has ended."""
    record = Corpus(_corpus(folder), _corpus(folder).folder(folder)).record()
    return record.chunks + record.whole


def _corpus(folder: Path) -> PackedText:
    return PackedText(source=Texts(str(folder / "texts.txt")), tokenizer=ByteBPE(277), length=23)


def save_report(folder: Path) -> None:
    """Measures a model and saves the report, over the one that is there."""
    tokens = torch.arange(16).repeat(99, 1)
    measure(load("sinkinterp/demo-softmax"), TokenSet.of(tokens, "some")).save(folder / "report.safetensors")


def reports_done(folder: Path) -> int:
    """Whether the report is there, whole."""
    return int((folder / "report.safetensors").exists() and bool(Report.load(folder / "report.safetensors")))


def reproduce(folder: Path) -> None:
    """Runs an experiment that trains models, and writes its chapter."""
    table = STUDY.table(Scope(Scale.SMOKE, seeds=1, workers=Here(), cache=folder))
    chapter = Chapter("killed", "Kills", table, STUDY.verdicts(table), {"scale": "smoke"})
    write_chapter(folder / "book", chapter, STUDY.digest(table), go.Figure())


def chapter_done(folder: Path) -> int:
    """Steps of the runs, and files of the chapter."""
    numbers = folder / "book" / "killed.json"
    if numbers.exists():
        json.loads(numbers.read_text())
    ends = [page.read_text().rstrip().endswith("</html>") for page in folder.glob("book/*.html")]
    if not all(ends):
        raise ValueError("a page is cut off")
    return steps_done(folder) + len(ends) + numbers.exists()


WORKS: Mapping[str, Work] = {
    "training": Work(train, steps_done),
    "packing": Work(pack, chunks_done),
    "measuring": Work(save_report, reports_done),
    "reproducing": Work(reproduce, chapter_done),
}


def main(
    times: Annotated[int, typer.Option(min=1, help="Kills, over all programs.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the moments.")] = 0,
    folder: Annotated[Path | None, typer.Option(help="Where the programs work; by default a temporary folder.")] = None,
    quick: Annotated[bool, typer.Option(help="Two minutes: 25 kills, which find only what is lost often.")] = False,
) -> None:
    """Print how many kills each program survived; exit code 1 if anything was lost."""
    times = 25 if quick else times
    say(f"{times} kills: about {1 + times / 80:.0f} minutes on two cores")
    torch.set_num_threads(1)
    disable_progress_bar()
    tokenizers.BATCH_CHARACTERS, packing.BLOCK = 997, 1009  # many blocks of a small text
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        campaigns = [Campaign(name, work, Path(temporary) / name) for name, work in WORKS.items()]
        rng = random.Random(seed)
        try:
            for kill in track(range(times), "killing", console=Console(stderr=True)):
                campaign = campaigns[kill % len(campaigns)]
                if kill and kill % 25 == 0:
                    say(f"{kill} kills, {sum(len(each.losses) for each in campaigns)} losses")
                is_killed = False
                while not is_killed:  # a child that ended before the kill does not count
                    is_killed = campaign.killed(rng)
        except KeyboardInterrupt:  # the table says how far it came
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        else:
            for campaign in campaigns:
                campaign.finish()
        _print(campaigns)
    if any(campaign.losses for campaign in campaigns):
        raise typer.Exit(1)


class Campaign:
    """A program that is killed again and again in one folder."""

    def __init__(self, name: str, work: Work, folder: Path) -> None:
        self.name, self.work, self.folder = name, work, folder
        self.counts: Counter[str] = Counter()
        self.losses: list[str] = []
        self.progress = 0
        start = time.monotonic()
        reference = self._fresh()
        if _exit_status(_forked(work.do, reference)) != 0:
            raise SystemExit(f"{name} fails where nobody kills it")
        self.seconds = time.monotonic() - start
        self.expected = contents(reference)
        shutil.rmtree(reference)
        self._fresh()

    def killed(self, rng: random.Random) -> bool:
        """Whether a child was killed before it ended. What its end, or the kill, left behind is checked."""
        child = _forked(self.work.do, self.folder)
        try:
            time.sleep(rng.uniform(0, self.seconds))
        finally:  # also where the user interrupts us
            os.kill(child, signal.SIGKILL)
            status = _exit_status(child)
        return self._checked(status)

    def finish(self) -> None:
        """Lets a child end in peace, and checks what it leaves."""
        self._checked(_exit_status(_forked(self.work.do, self.folder)))

    def _checked(self, status: int) -> bool:
        is_killed = status == -signal.SIGKILL
        self.counts["kills" if is_killed else "ends"] += 1
        try:
            progress = self.work.progress(self.folder)
            if progress < self.progress:
                self._lose(f"from {self.progress} back to {progress}")
            self.progress = progress
        except Exception as error:
            self._lose(f"{type(error).__name__}: {error}")
        if not is_killed:
            if status or contents(self.folder) != self.expected:
                self._lose(f"it ended with {status}, or with other files than if nobody kills it")
            self._fresh()
        return is_killed

    def _lose(self, what: str) -> None:
        self.losses.append(f"{self.name}: {what}")
        sys.stderr.write(f"lost: {self.losses[-1]}\n")

    def _fresh(self) -> Path:
        """The folder with nothing in it but what the program reads."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        rng = random.Random(7)
        texts = [" ".join(rng.choices(WORDS, k=rng.randrange(3, 40))) for _ in range(300)]
        (self.folder / "texts.txt").write_text("\n\n".join(texts))
        self.progress = 0
        return self.folder


def contents(folder: Path) -> dict[str, bytes]:
    """The files in a folder by their paths, apart from locks and from drafts of killed programs."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    names = {name: path for name, path in files.items() if not any(part.startswith(DRAFT) for part in name.parts)}
    return {str(name): path.read_bytes() for name, path in names.items() if name.name != LOCK}


def _forked(do: Callable[[Path], object], folder: Path) -> int:
    """The process id of a child that does some work and exits: with 0, with 1 if it fails, with 2 at any damage."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    logging.getLogger("sinkinterp").addHandler(_Exits())  # no kill may damage a file
    try:
        do(folder)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class _Exits(logging.Handler):
    """Ends the program where it names a damaged file."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.getMessage()}\n")
        os._exit(2)


def _exit_status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _print(campaigns: list[Campaign]) -> None:
    table = Table(title="Kills at random moments (SIGKILL), and what they lost", title_justify="left")
    for column in ("program", "kills", "ended", "lost"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for campaign in campaigns:
        kills, ends, losses = campaign.counts["kills"], campaign.counts["ends"], len(campaign.losses)
        table.add_row(campaign.name, *map(str, (kills, ends, losses)))
    console = Console()
    console.print(table)
    for campaign in campaigns:
        for loss in campaign.losses:
            console.print(loss, highlight=False, markup=False)
    total, lost = sum(c.counts["kills"] for c in campaigns), sum(len(c.losses) for c in campaigns)
    console.print(f"{total} kills, {lost} losses", highlight=False)


if __name__ == "__main__":
    typer.run(main)
