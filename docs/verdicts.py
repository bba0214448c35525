"""Lists every experiment with its verdicts, from the numbers in figures/book.

`python docs/verdicts.py` writes verdicts.md.
"""

from collections import Counter
from pathlib import Path

from sinkinterp.pages.chapters import Chapter, chapters_in
from sinkinterp.runs.catalogue import experiment_names, summary_of

BOOK = Path(__file__).parents[1] / "figures" / "book"
FILE = Path(__file__).with_name("verdicts.md")
HEAD = """# Every experiment and its verdicts

`python docs/verdicts.py` makes this list from the numbers in [figures/book](../figures/book/index.html). Rules in
each module say which numbers support its claim. **holds**: all seeds, or the whole
interval, show it. **fails**: they show the opposite, or nothing. **undecided**: in between. **confounded**: the models
differ in loss by more than 0.02 nats. **diverged**: a training failed. **not asked**: models of this scale cannot
answer. **sink**, **no sink**: what a model has where no claim says what it should have. Numbers of scale `smoke`
have no verdict, since they only check the path. A verdict is about our models at the scale that is named (`demo`: toys
of one layer; `real`: SmolLM2-135M-Instruct, Whisper tiny.en), not about the paper's.

| experiment | scale | what it asks | verdicts |
|---|---|---|---|
"""


def page() -> str:
    """The list as Markdown."""
    chapters = {chapter.name: chapter for chapter in chapters_in(BOOK)}
    return HEAD + "".join(_row(name, chapters.get(name)) for name in experiment_names())


def _row(name: str, chapter: Chapter | None) -> str:
    if chapter is None:
        return f"| {name} | not run | {summary_of(name)} | |\n"
    counts = Counter(verdict.outcome.value for verdict in chapter.verdicts)
    verdicts = ", ".join(f"{outcome} {count}" for outcome, count in counts.items())
    return f"| {name} | {chapter.provenance['scale']} | {chapter.summary} | {verdicts} |\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
