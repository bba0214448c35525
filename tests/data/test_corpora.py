import json
from pathlib import Path

import pytest

from sinkinterp.data import corpora
from sinkinterp.data.corpora import SHORTEST, embedded_texts, texts_of
from sinkinterp.errors import InputError

LONG = {name: (f"{name} says a thing or two. " * SHORTEST)[: SHORTEST + 3].strip() for name in ("alpha", "beta", "tau")}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def embedded(monkeypatch, tmp_path):
    """The embedded texts of the given files, and how often `_sources` was asked."""
    asked = []

    def gather(files: dict[str, str], cache: str = "cache", backwards: bool = False) -> list[str]:
        paths = [write(tmp_path / name, text) for name, text in files.items()]
        monkeypatch.setattr(corpora, "_sources", lambda: asked.append(1) or (paths[::-1] if backwards else paths))
        return embedded_texts(tmp_path / cache / "deeper")

    gather.asked = asked
    return gather


def documented(*texts: str) -> str:
    return "\n".join(f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(texts))


def test_a_jsonl_file_gives_its_text_fields_in_order(tmp_path):
    rows = [{"text": "one\ntwo", "id": 1}, {"text": "é", "id": 2}, {"text": "", "id": 3}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert list(texts_of(path)) == ["one\ntwo", "é", ""]


def test_a_txt_file_gives_its_paragraphs(tmp_path):
    path = write(tmp_path / "a.txt", "one\nline\n\ntwo\n\n\n\nthree\n")
    assert [text.strip() for text in texts_of(path)] == ["one\nline", "two", "three"]


@pytest.mark.parametrize(
    ("name", "content", "fix"),
    [
        ("a.csv", "text\none\n", "convert it to .jsonl"),
        ("a", "one", "convert it to .jsonl"),
        ("a.txt", None, "check the path"),
        ("a.jsonl", None, "check the path"),
        ("a.jsonl", '{"body": "one"}\n', "no string in 'text', only 'body' .*rename the field"),
    ],
)
def test_a_file_that_cannot_be_used_names_the_fix(tmp_path, name, content, fix):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=fix):
        list(texts_of(path))


@pytest.mark.parametrize(
    "content", ['{"text": "one"}\n{"body": "two"}\n', '{"text": null}\n', '{"text": 7}\n', "no json\n", ""]
)
def test_a_jsonl_file_with_a_row_that_is_no_text_is_an_input_error(tmp_path, content):
    with pytest.raises(InputError):
        list(texts_of(write(tmp_path / "a.jsonl", content)))


def test_each_text_stands_once(embedded):
    files = {"a.py": documented(LONG["alpha"], LONG["beta"], LONG["alpha"]), "b.py": documented(LONG["beta"])}
    assert sorted(embedded(files)) == [LONG["alpha"], LONG["beta"]]


def test_whitespace_is_collapsed_before_texts_are_compared(embedded):
    spaced = LONG["tau"].replace(" ", "\n        ", 3).replace(". ", ".\t  ")
    assert embedded({"a.py": documented(spaced, LONG["tau"])}) == [LONG["tau"]]


def test_short_and_non_ascii_texts_are_dropped(embedded):
    assert embedded({"a.py": documented("x" * SHORTEST, "y" * (SHORTEST - 1), LONG["beta"] + "é")}) == ["x" * SHORTEST]


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
