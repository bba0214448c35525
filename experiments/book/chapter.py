"""A chapter of the book of experiments: its numbers as JSON, and its page."""

import json
import os
import platform
import subprocess
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from sinkinterp._experiments import experiment_names
from sinkinterp.checks import InputError, check_count, refusal
from sinkinterp.data.choices import Scale
from sinkinterp.files import path_of, write_file
from sinkinterp.measurement.measure import PACKAGES
from sinkinterp.pages.page import Section, page
from sinkinterp.runs.experiment import Outcome, Verdict, counted, load_experiment, standing
from sinkinterp.table import SINK_1, Cell, Table, published

_CHAPTER = {"name", "summary", "verdicts", "provenance"}  # names that other JSON does not have
_NOT_A_CHAPTER = (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
NO_VERDICT = "No verdict: scale smoke only checks the path."
_OBSERVED = (Outcome.SINK, Outcome.NO_SINK)
_WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "templates" / "chapter.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Chapter:
    """What the book says of one experiment.

    provenance: how the numbers were made: command, scale, versions, commit, machine, seconds, processor seconds.
    """

    name: str
    summary: str
    table: Table
    verdicts: Sequence[Verdict]
    provenance: Mapping[str, Cell]

    @property
    def scale(self) -> str:
        """The scale at which the numbers were made."""
        return str(self.provenance.get("scale", ""))

    @property
    def stem(self) -> str:
        """What its files are called."""
        return stem_of(self.name, self.scale)

    @property
    def heading(self) -> str:
        """Returns what the experiment asks, without hints at options of the command."""
        return "; ".join(part for part in self.summary.split("; ") if "--" not in part).replace("`", "")

    @property
    def title(self) -> str:
        """The result, and the claim that it is of, which is called one unless it holds."""
        is_fact = self.observes or {verdict.outcome for verdict in counted(self.verdicts)} == {Outcome.HOLDS}
        return f"{self.found} {'' if is_fact else 'The claim: '}{self.table.title}"

    @property
    def observes(self) -> bool:
        """Tells if it says what models have, as the atlas does, and judges no claim of the paper."""
        return any(verdict.outcome in _OBSERVED for verdict in self.verdicts)

    @property
    def found(self) -> str:
        """The result in a few words, such as "On text: no." """
        where = _WORDS["where"].get(self.scale, f"At scale {self.scale}")
        counts = Counter(verdict.outcome for verdict in counted(self.verdicts))
        if self.observes:
            return f"{where}: {', '.join(f'{n} {outcome}' for outcome, n in counts.most_common(2))}."
        held, rules = counts[Outcome.HOLDS], counts.total()
        if not rules:
            return NO_VERDICT if not self.verdicts else f"{where}: not asked."
        if held:
            return f"{where}: yes." if held == rules else f"{where}: in part ({held} of {rules} rules hold)."
        return f"{where}: {'no' if counts[Outcome.FAILS] else 'undecided'}."

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy: the table's title, note and rows, and beside them verdicts and provenance."""
        own = {"name": self.name, "summary": self.summary, "verdicts": list(map(asdict, self.verdicts))}
        return {**self.table.to_dict(), **own, "provenance": dict(self.provenance)}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Chapter":
        """The inverse of `to_dict`."""
        verdicts = [Verdict(**{**v, "outcome": Outcome(v["outcome"])}) for v in plain["verdicts"]]
        return Chapter(plain["name"], plain["summary"], Table.from_dict(plain), verdicts, plain["provenance"])


def stem_of(name: str, scale: str | None) -> str:
    """The name of an experiment's files. Trainings on text have names of their own, beside those of toys."""
    if scale not in (Scale.TEXT, Scale.GPU, Scale.PAPER) or name not in experiment_names():
        return name
    experiment = load_experiment(name)
    return f"{name}_{scale}" if scale in experiment.scales and scale != experiment.default_scale() else name


def chapters_in(folder: Path) -> list[Chapter]:
    """The chapters of a folder, by name. Raises InputError if it has none, and for a damaged file."""
    folder = path_of(folder, "the folder of a book")
    files = sorted(filter(Path.is_file, folder.glob("*.json")))  # a pipe of that name would never end
    chapters = [chapter for chapter in map(chapter_in, files) if chapter is not None]
    check_count(chapters, f"numbers of experiments in {folder}, which `sinkinterp reproduce NAME` makes")
    return chapters


def chapter_in(file: Path) -> Chapter | None:
    """The chapter of a file; None for other JSON. Raises InputError if the file is damaged."""
    with refusal(f"{file} is damaged", "remove it, or reproduce it again", _NOT_A_CHAPTER):
        plain = json.loads(file.read_text(encoding="utf-8"))
        is_chapter = isinstance(plain, dict) and len(_CHAPTER - plain.keys()) < 2  # one name may be damaged
        if not is_chapter and file.stem not in experiment_names():
            return None
        chapter = Chapter.from_dict(plain)
        if chapter.stem != file.stem or plain.keys() - chapter.to_dict().keys():
            raise InputError(f"its name would be {chapter.stem}.json, and it holds {', '.join(plain)}")
        return chapter


TIMES = {"processor seconds": "of processor time", "seconds": "by the clock"}  # older chapters have the second alone


def time_taken(folder: Path, stem: str, command: str) -> tuple[float, str, object]:
    """The hours that this command took for the chapter of the folder, of what, and where.

    0 hours and None if another command made it.
    """
    file = folder / f"{stem}.json"
    with suppress(InputError):  # what is damaged is made again
        made = chapter.provenance if file.is_file() and (chapter := chapter_in(file)) else {}
        if made.get("command") == command:
            for unit, of in TIMES.items():
                if isinstance(seconds := made.get(unit), int | float):
                    return seconds / 3600, of, made.get("machine")
    return 0.0, "", None


INDEX, STORY, PLOTLY = "index.html", "story.html", "plotly.min.js"  # files of a book; its pages share one plotly


def write_numbers(folder: Path, chapter: Chapter) -> Path:
    """Writes the numbers that the book keeps of a chapter."""
    numbers = folder / f"{chapter.stem}.json"
    write_file(numbers, chapter.to_dict())
    return numbers


def write_page(folder: Path, chapter: Chapter, digest: Table, figure: go.Figure, finding: str = "") -> Path:
    """Writes the page of a chapter, with what it found if that is written, and beside it the plotly of all pages."""
    html, library = folder / f"{chapter.stem}.html", folder / PLOTLY
    check_plotly(folder)
    if not library.is_file():
        write_file(library, get_plotlyjs())
    write_file(html, chapter_page(chapter, digest, figure, finding))
    return html


def check_plotly(folder: Path) -> None:
    """Raises InputError unless the plotly of a book, which its pages run, is that of this installation, or absent."""
    library = folder / PLOTLY
    if library.is_file() and library.read_bytes() != get_plotlyjs().encode():
        raise InputError(f"{library} is not the one of this plotly, and the pages would run it")


def chapter_page(chapter: Chapter, digest: Table, figure: go.Figure, finding: str = "") -> str:
    """The page of one experiment: its result, figure, verdicts, digest, all rows, and how the numbers were made.

    finding: a written sentence that says what the rows show.
    """
    verdicts = verdict_table(chapter)
    rule = "A rule says which numbers support the claim; the module of the experiment holds it."
    beside = _WORDS["beside"].get(chapter.scale, "") if published(SINK_1) in chapter.table.frame else ""
    words = " ".join(filter(None, (rule, beside, why_ours_differs(chapter))))
    about = words if chapter.verdicts else chapter.found
    made = Table.of("", "", tuple({"what": name, "value": str(value)} for name, value in chapter.provenance.items()))
    sections = [
        Section("Figure", "", [figure]),
        Section(verdicts.title, about, tables=[verdicts]),
        Section("In short", digest.note, tables=[digest]),
        *([] if len(digest.frame) == len(chapter.table.frame) else [Section("All rows", "", tables=[chapter.table])]),
        Section("How these numbers were made", f"Make them again: {chapter.provenance.get('command')}", tables=[made]),
    ]
    asks = chapter.heading if chapter.heading.endswith(("?", ".")) else f"{chapter.heading}."
    lead = " ".join(filter(None, (finding, asks)))
    return page(chapter.title, lead, sections, PLOTLY)


def verdict_table(chapter: Chapter) -> Table:
    """A row per rule; the title says how many hold."""
    rows = tuple(
        {"rule": v.claim, "verdict": f"{'set-up: ' * v.is_setup}{v.outcome.value}", "because": v.reason}
        for v in chapter.verdicts
    )
    held = standing(chapter.verdicts)
    return Table.of(f"Verdicts: {held}" if held else "Verdicts", "" if rows else chapter.found, rows)


def why_ours_differs(chapter: Chapter, by: float = 0.1) -> str:
    """A sentence that says why our Sink_1 is not the paper's. It is empty if all are within `by`, or not compared."""
    table, paper = chapter.table, published(SINK_1)
    if paper not in table.frame or SINK_1 not in table.frame or chapter.scale not in _WORDS["why"]:
        return ""
    pairs = zip(table.numbers(SINK_1), table.numbers(paper), strict=True)
    return _WORDS["why"][chapter.scale] if any(abs(ours - theirs) > by for ours, theirs in pairs) else ""


def provenance() -> dict[str, Cell]:
    """Versions, commit and machine of this process."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {
        "versions": f"python {platform.python_version()}, {versions}",
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
    }


def _commit() -> str:
    """The commit of this code's repository, with "-dirty" where code differs; "unknown" outside a repository.

    Only code counts, since a book in the repository changes with every chapter.
    """
    # without --no-optional-locks git rewrites its index, and leaves a lock behind where it is killed
    options = ("--porcelain=v2", "--branch", "--untracked-files=no")
    command = ("git", "--no-optional-locks", "status", *options, "--", ":(top)*.py")
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.splitlines()
    ids = [line.split()[2][:12] for line in lines if line.startswith("# branch.oid ")]
    changed = "-dirty" if any(not line.startswith("#") for line in lines) else ""
    return f"{ids[0]}{changed}" if ids else "unknown"
