"""Chapters of the book of experiments: the numbers, verdicts and provenance of each, as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checks import InputError, check_count, refusal
from ..files import path_of
from ..runs.catalogue import Scale, experiment_names
from ..runs.experiment import load_experiment
from ..runs.rules import Outcome, Verdict
from ..seals import SEALED, SHA256, check_signed
from ..table import Cell, Table

_CHAPTER = {"name", "summary", "verdicts", "provenance"}  # names that other JSON does not have
_NOT_A_CHAPTER = (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
NO_VERDICT = "No verdict: scale smoke only checks the path."
_OBSERVED = (Outcome.SINK, Outcome.NO_SINK)
_WHERE: Mapping[str, str] = {
    Scale.DEMO: "On toys",
    Scale.TEXT: "On text",
    Scale.GPU: "On text without BOS",
    Scale.REAL: "In genuine models",
    Scale.PAPER: "In the paper's models",
}


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
        is_fact = self.observes or {v.outcome for v in self.verdicts} - {Outcome.NOT_ASKED} == {Outcome.HOLDS}
        return f"{self.found} {'' if is_fact else 'The claim: '}{self.table.title}"

    @property
    def observes(self) -> bool:
        """Tells if it says what models have, as the atlas does, and judges no claim of the paper."""
        return any(verdict.outcome in _OBSERVED for verdict in self.verdicts)

    @property
    def found(self) -> str:
        """The result in a few words, such as "On text: no." """
        where = _WHERE.get(self.scale, f"At scale {self.scale}")
        counts = Counter(verdict.outcome for verdict in self.verdicts if verdict.outcome is not Outcome.NOT_ASKED)
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
        verdicts = [Verdict(v["claim"], Outcome(v["outcome"]), v["reason"]) for v in plain["verdicts"]]
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
        if not isinstance(plain, dict) or len(_CHAPTER - plain.keys()) > 1:  # one name may be damaged
            if file.stem in experiment_names():
                raise InputError("it holds no chapter")
            return None
        check_signed(plain)
        chapter = Chapter.from_dict(plain)
        if chapter.stem != file.stem or plain.keys() - chapter.to_dict().keys() - {SEALED, SHA256}:
            raise InputError(f"its name would be {chapter.stem}.json, and it holds {', '.join(plain)}")
        return chapter
