"""Changes single operators and numbers of the core, and counts how many changes the fast tests notice.

    python -m benchmarks.mutants [--sample 200] [--seed 0] [--quick]

The mutants are those of Cosmic Ray (`pip install 'sinkinterp[mutants]'`). For each mutant of a random sample, a fork of
a warm process runs the tests of its folder, those of its module first, up to the first that fails. Mutants that change
nothing that anybody could notice stand in equivalent_mutants.txt, each with the reason; they do not count. Linux and
macOS.
"""

import csv
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import binomtest

from .console import say
from .forked_tests import ForkedTests, Outcome
from .mutations import RULES, Mutant, draw

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "benchmarks" / "equivalent_mutants.txt"
FROZEN = "tests/test_frozen.py"
MUTATED = {
    "sinkinterp/attention/*.py": ("tests/attention/test_*.py", FROZEN),
    "sinkinterp/metrics/*.py": ("tests/metrics/test_*.py", FROZEN),
    "sinkinterp/interventions/*.py": ("tests/interventions/test_*.py", FROZEN),
    "sinkinterp/report/report.py": ("tests/report/test_*.py", FROZEN),
    "sinkinterp/report/readings.py": ("tests/report/test_*.py", FROZEN),
}
QUICK = {
    "sinkinterp/attention/masks.py": ("tests/attention/test_masks.py",),
    "sinkinterp/metrics/residuals.py": ("tests/metrics/test_residuals.py",),
}


def main(
    sample: Annotated[int, typer.Option(min=1, help="How many mutants are tested.")] = 200,
    seed: Annotated[int, typer.Option(help="Which mutants are tested.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds beyond the usual that count as noticed.")] = 60,
    quick: Annotated[bool, typer.Option(help="Two minutes: 8 mutants of two files, with fewer tests.")] = False,
) -> None:
    """Prints what share of small changes of the core the tests notice, and every change that they do not."""
    console = Console()
    console.print(RULES, highlight=False, markup=False)
    with tempfile.TemporaryDirectory() as folder:
        sample = min(sample, 8) if quick else sample
        say(f"{sample} mutants: about {2 if quick else 3 + sample / 12:.0f} minutes on an idle core")
        tested = Tested(ForkedTests(ROOT, Path(folder)), timeout, QUICK if quick else MUTATED)
        mutants = draw(tested.tests, sample, seed)
        for number, mutant in enumerate(track(mutants, f"{len(mutants)} mutants, seed {seed}", console=console), 1):
            verdict = tested.verdict(mutant)
            say(f"{number}: {where(mutant)}: {verdict}")
            if verdict == "survived":
                console.print(f"{number}: {described(mutant)}", highlight=False, markup=False, soft_wrap=True)
    print_score(tested.counts, console)


class Tested:
    """Tests mutants, and counts by folder what becomes of them."""

    def __init__(self, forks: ForkedTests, timeout: float, mutated: Mapping[str, tuple[str, ...]]) -> None:
        self.forks, self.equivalent = forks, read_equivalent()
        self.tests = {path: tests_of(path, mutated) for path in mutated_files(mutated)}
        self.timeout = timeout + forks.warm(sorted({test for tests in self.tests.values() for test in tests}))
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def verdict(self, mutant: Mutant) -> str:
        """What becomes of a mutant, which is counted: a column of the table."""
        verdict = self._verdict(mutant)
        self.counts[mutant.place.path.parent.name][verdict] += 1
        return verdict

    def _verdict(self, mutant: Mutant) -> str:
        if (where(mutant), *mutant.change) in self.equivalent:
            return "equivalent"
        first, *others = self.tests[mutant.place.path]
        for files in ([first], others):
            outcome = self.forks.run(files, mutant.place.path, mutant.code, self.timeout)
            if outcome is not Outcome.PASSED:
                return "killed by a test" if outcome is Outcome.FAILED else "killed by time"
        return "survived"


def mutated_files(mutated: Mapping[str, tuple[str, ...]]) -> Iterator[Path]:
    """The files that are mutated."""
    for pattern in mutated:
        yield from sorted(ROOT.glob(pattern))


def tests_of(path: Path, mutated: Mapping[str, tuple[str, ...]] = MUTATED) -> list[Path]:
    """The tests of a file: its mirror first, then those that import it, then the others of its folder."""
    patterns = next(tests for pattern, tests in mutated.items() if path.relative_to(ROOT).match(pattern))
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)

    def distance(test: Path) -> tuple[bool, bool]:
        return test.stem != f"test_{path.stem}", f"{module} import" not in test.read_text()

    return sorted((test for pattern in patterns for test in sorted(ROOT.glob(pattern))), key=distance)


def read_equivalent() -> dict[tuple[str, str, str], str]:
    """Why a change makes no difference, by definition (see `where`), lines before and lines after."""
    with EQUIVALENT.open() as file:
        rows = csv.reader((line for line in file if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE)
        return {(definition, before, after): reason for definition, before, after, reason in rows}


def where(mutant: Mutant) -> str:
    """The file and the definition that a mutant changes, as in sinkinterp/metrics/importance.py::sink_rate."""
    return f"{mutant.place.path.relative_to(ROOT)}::{mutant.definition}"


def described(mutant: Mutant) -> str:
    """Where a mutant is, and what it changes."""
    place, (before, after) = mutant.place, mutant.change
    return f"{where(mutant)}, line {place.line}, {place.operator}\n  - {before}\n  + {after}"


def print_score(counts: dict[str, Counter[str]], console: Console) -> None:
    """The table of a folder a row, and the score."""
    columns = ("killed by a test", "killed by time", "survived", "equivalent")
    table = Table(title="Mutants", title_justify="left")
    for column in ("folder", *columns):
        table.add_column(column, justify="left" if column == "folder" else "right")
    for folder, row in sorted(counts.items()):
        table.add_row(folder, *(str(row[column]) for column in columns))
    console.print(table)
    by_test, by_time, survived, _ = (sum(row[column] for row in counts.values()) for column in columns)
    killed = by_test + by_time
    if killed + survived:
        low, high = binomtest(killed, killed + survived).proportion_ci(method="wilson")
        share = f"{killed / (killed + survived):.1%}, 95% interval {low:.1%} to {high:.1%}"
        console.print(f"{killed} of {killed + survived} mutants killed: {share}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
