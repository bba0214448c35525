from pathlib import Path

import pytest

from sinkinterp.data import docstrings
from sinkinterp.data.docstrings import MIN_CHARACTERS, embedded_texts

WORDS = ("alpha", "beta", "tau")
LONG = {word: (f"{word} says a thing or two. " * MIN_CHARACTERS)[: MIN_CHARACTERS + 3].strip() for word in WORDS}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def embedded(monkeypatch, tmp_path):
    """The embedded texts of the given files, and how often they were gathered."""
    asked = []

    def gather(files: dict[str, str], cache: str = "cache", backwards: bool = False) -> list[str]:
        paths = [write(tmp_path / name, text) for name, text in files.items()]
        in_order = paths[::-1] if backwards else paths
        monkeypatch.setattr(docstrings, "_documented_files", lambda: asked.append(1) or in_order)
        return embedded_texts(tmp_path / cache / "deeper")

    gather.asked = asked
    return gather


def documented(*texts: str) -> str:
    return "\n".join(f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(texts))


def test_each_text_stands_once(embedded):
    files = {"a.py": documented(LONG["alpha"], LONG["beta"], LONG["alpha"]), "b.py": documented(LONG["beta"])}
    assert sorted(embedded(files)) == [LONG["alpha"], LONG["beta"]]


def test_whitespace_is_collapsed_before_texts_are_compared(embedded):
    spaced = LONG["tau"].replace(" ", "\n        ", 3).replace(". ", ".\t  ")
    assert embedded({"a.py": documented(spaced, LONG["tau"])}) == [LONG["tau"]]


def test_short_and_non_ascii_texts_are_dropped(embedded):
    just_long, too_short = "x" * MIN_CHARACTERS, "y" * (MIN_CHARACTERS - 1)
    assert embedded({"a.py": documented(just_long, too_short, LONG["beta"] + "é")}) == [just_long]


def test_modules_classes_and_functions_are_read_and_other_strings_are_not(embedded):
    a, b, c = LONG.values()
    assert sorted(embedded({"a.py": f'"""{a}"""\nclass C:\n    """{b}"""\n    async def f(self):\n        """{c}"""\n'
                            f'x = """{"z" * 300}"""\n'})) == [a, b, c]  # fmt: skip


def test_files_that_do_not_parse_are_passed_over(embedded):
    assert embedded({"a.py": "def (", "b.py": documented(LONG["tau"])}) == [LONG["tau"]]


def test_a_file_with_an_invalid_escape_counts_without_a_warning(embedded):
    assert embedded({"a.py": documented(LONG["tau"]) + "x = '\\d'\n"}) == [LONG["tau"]]


def test_the_order_of_the_files_does_not_matter(embedded):
    files = {f"{name}.py": documented(text) for name, text in LONG.items()}
    assert embedded(files, cache="a") == embedded(files, cache="b", backwards=True)


def test_texts_are_gathered_once_and_kept(embedded, tmp_path):
    first = embedded({"a.py": documented(LONG["tau"])})
    assert embedded({"a.py": documented(LONG["beta"])}) == first
    assert len(embedded.asked) == 1
    assert [path.suffix for path in (tmp_path / "cache/deeper").iterdir()] == [".json"]


def test_other_versions_gather_anew(embedded, monkeypatch):
    embedded({"a.py": documented(LONG["tau"])})
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    assert embedded({"a.py": documented(LONG["beta"])}) == [LONG["beta"]]


def test_progress_counts_every_file_to_the_end(embedded, tmp_path):
    embedded({"a.py": "", "b.py": "def (", "c.py": ""})
    seen = []
    embedded_texts(tmp_path / "another", lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
