import hashlib
import json
import textwrap
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from refusals import refused

from sinkinterp.data import sources, texts as reading
from sinkinterp.data.sources import MIN_CHARACTERS, Embedded, PythonCode, Repeating, embedded_texts
from sinkinterp.data.texts import Texts


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    return path


def test_the_fingerprint_follows_the_content_and_not_the_date_or_the_place(file, tmp_path):
    before = Texts(str(file)).fingerprint()
    copy = tmp_path / "b.txt"
    copy.write_bytes(file.read_bytes())
    file.touch()
    assert Texts(str(copy)).fingerprint() == Texts(str(file)).fingerprint() == before
    assert before == hashlib.sha256(hashlib.sha256(b"one\n\ntwo\n").digest()).hexdigest()
    assert not Texts(str(file)).changed_since(before)
    file.write_text("one\n\ntoo\n")
    assert Texts(str(file)).changed_since(before)
    file.unlink()
    assert Texts(str(file)).fingerprint() == "" and not Texts(str(file)).changed_since(before)


def test_a_folder_changes_with_any_of_its_files(file, tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.txt").write_text("three")
    before = Texts(str(tmp_path)).fingerprint()
    (tmp_path / "deeper" / "b.txt").write_text("four")
    assert Texts(str(tmp_path)).changed_since(before)


def test_a_dataset_on_the_hub_is_asked_for_its_split_and_has_no_fingerprint(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(reading, "_streamed", lambda *call: asked.append(call) or [{"text": "one"}])
    source = Texts("someone/something", split="test", hub=True)
    assert list(source.texts(tmp_path)) == ["one"] and source.absolute() == source
    assert asked == [("someone/something", None, "test")] and source.fingerprint() == ""
    assert Texts("a.txt").to_dict() == {"kind": "Texts", "source": "a.txt", "column": "text", "split": "train"}


def test_sources_of_other_versions_have_another_fingerprint_and_stay_good_once_packed(monkeypatch):
    sources = (Embedded(), PythonCode())
    before = [source.fingerprint() for source in sources]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    monkeypatch.setattr("platform.python_version", lambda: "9.9.9")
    for source, fingerprint in zip(sources, before, strict=True):
        assert source.fingerprint() != fingerprint and not source.changed_since(fingerprint)
    assert PythonCode().fingerprint() == "9.9.9"


def test_python_code_is_files_of_the_standard_library_in_an_order_that_never_changes(tmp_path):
    told = []
    texts = PythonCode().texts(tmp_path, lambda done, of: told.append((done, of)))
    files = [Path(textwrap.__file__), Path(json.decoder.__file__)]
    assert len(texts) > 300 and all(file.read_text() in texts for file in files)
    assert told[-1][0] == told[-1][1] >= len(texts) and texts == PythonCode().texts(tmp_path)


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
        monkeypatch.setattr(sources, "_documented_files", lambda: asked.append(1) or in_order)
        return embedded_texts(tmp_path / cache / "deeper")

    gather.asked = asked
    return gather


def documented(*texts: str) -> str:
    return "\n".join(f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(texts))


ALPHA, BETA, TAU = LONG.values()
SPACED = TAU.replace(" ", "\n        ", 3).replace(". ", ".\t  ")
JUST_LONG, TOO_SHORT = "x" * MIN_CHARACTERS, "y" * (MIN_CHARACTERS - 1)
EMBEDDED = {
    "each text stands once": ([documented(ALPHA, BETA, ALPHA), documented(BETA)], [ALPHA, BETA]),
    "whitespace is collapsed before texts are compared": ([documented(SPACED, TAU)], [TAU]),
    "short and non-ASCII texts are dropped": ([documented(JUST_LONG, TOO_SHORT, BETA + "é")], [JUST_LONG]),
    "modules, classes and functions are read, other strings are not": (
        [f'"""{ALPHA}"""\nclass C:\n """{BETA}"""\n async def f(self):\n  """{TAU}"""\nx = """{"z" * 300}"""\n'],
        [ALPHA, BETA, TAU],
    ),
    "files that do not parse are passed over": (["def (", documented(TAU)], [TAU]),
    "an invalid escape makes no warning": ([documented(TAU) + "x = '\\d'\n"], [TAU]),
}


@pytest.mark.parametrize(("files", "texts"), EMBEDDED.values(), ids=EMBEDDED)
def test_embedded_texts_do_not_depend_on_the_order_of_files(embedded, files, texts):
    named = {f"{i}.py": text for i, text in enumerate(files)}
    found = embedded(named)
    assert sorted(found) == texts and found == embedded(named, cache="b", backwards=True)


def test_texts_are_gathered_once_for_each_version_and_kept(embedded, tmp_path, monkeypatch):
    first = embedded({"a.py": documented(TAU)})
    assert embedded({"a.py": documented(BETA)}) == first and len(embedded.asked) == 1
    assert [path.suffix for path in (tmp_path / "cache/deeper").iterdir()] == [".json"]
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0")
    assert embedded({"a.py": documented(BETA)}) == [BETA]


def test_kept_texts_that_may_not_be_read_are_named(embedded, monkeypatch, tmp_path):
    embedded({"a.py": documented(TAU)})

    def closed(file, of):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(sources, "read_record", closed)
    refused(lambda: embedded({"a.py": documented(TAU)}), str(tmp_path), "permissions")


def test_progress_counts_every_file_to_the_end(embedded, tmp_path):
    embedded({"a.py": "", "b.py": "def (", "c.py": ""})
    seen = []
    embedded_texts(tmp_path / "another", lambda done, of: seen.append((done, of)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_repeating_text_is_the_text_with_copies_of_what_stood_just_before(tmp_path):
    text = "".join(chr(0x4E00 + i) for i in range(8009))  # no character stands in it twice
    (tmp_path / "signs.txt").write_text(text, "utf-8")
    source = Texts(str(tmp_path / "signs.txt"))
    (none,), (often,), (again,) = (Repeating(source, share).texts(tmp_path) for share in (0.0, 1.0, 1.0))
    assert none == text and often == again and Repeating(source).fingerprint() == source.fingerprint()
    last = {}
    for i, sign in enumerate(often):
        assert i - last.get(sign, i) <= 200
        last[sign] = i
    assert "".join(last) == text
    assert len(often) / len(text) - 1 == pytest.approx(75 / 140, rel=0.15)  # the mean copy over the mean span


def test_a_share_of_copies_that_is_no_share_is_refused():
    for share in (-0.1, 1.1):
        refused(partial(Repeating, share=share))


def test_code_of_packages_joins_that_of_the_library_and_absent_ones_are_refused(tmp_path):
    library, both = (set(PythonCode(packages).texts(tmp_path)) for packages in ((), ("einops",)))
    assert library < both and any("def rearrange(" in text for text in both - library)
    assert PythonCode(("einops",)).fingerprint() == f"{PythonCode().fingerprint()} {version('einops')}"
    for name in ("no_such_package", "", "typing_extensions"):  # the last is a file
        refused(partial(PythonCode((name,)).texts, tmp_path))
