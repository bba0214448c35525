"""Every snippet of the documentation runs, and every notebook."""

import re
import shlex
import sys
from pathlib import Path
from runpy import run_path
from subprocess import run
from types import ModuleType

import nbformat
import plotly.graph_objects as go
import plotly.io
import pytest
from forks import ended, forked, forks
from IPython.core.interactiveshell import InteractiveShell
from typer.main import get_command

from sinkinterp._experiments import full_name
from sinkinterp.backends.named_models import downloaded
from sinkinterp.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"#.*\bprints (.*)$", re.MULTILINE)
REPRODUCE = re.compile(r"sinkinterp reproduce ([^`#|\\\n]*)")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def snippets(page):
    return "\n".join(PYTHON.findall(page.read_text()))


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.stem)
def test_the_snippets_of_a_page_run_one_after_the_other_and_print_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "snippets.py"  # nnsight reads the source of who calls backward
    script.write_text(snippets(page))
    exec(compile(script.read_text(), str(script), "exec"), {})
    printed = capsys.readouterr().out
    assert not [words for words in PRINTS.findall(snippets(page)) if words not in printed]


NAMED = re.compile(r"`((?:[\w.]+/)*\w+\.(?:py|toml|html|js|md|svg))`")


def test_the_files_that_the_guide_for_contributors_names_are_there():
    named = {*NAMED.findall((ROOT / "CONTRIBUTING.md").read_text())}
    places = (ROOT, *(path.parent for room in ("sinkinterp", "experiments") for path in (ROOT / room).rglob("*.*")))
    assert len(named) > 20 and not [name for name in named if not any((place / name).is_file() for place in places)]


def test_every_slow_function_that_is_left_out_is_there():
    for name in (ROOT / "tests" / "slow.txt").read_text().split():
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(), name


GENUINE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_snippets_of_the_readme_on_genuine_models_run(tmp_path, monkeypatch, capsys):
    if missing := [name for name in ("smollm2", "whisper-tiny.en") if name not in downloaded()]:
        pytest.skip(f"make models MODELS='{' '.join(missing)}'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(go.Figure, "to_image", lambda *given, **options: b"\x89PNG\r\n\x1a\n" + bytes(60))
    text = "\n".join(GENUINE.findall((ROOT / "README.md").read_text()))
    exec(compile(text, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert (tmp_path / "front.png").is_file() and not [words for words in PRINTS.findall(text) if words not in printed]


@pytest.mark.timeout(400)  # half a minute without a cache of types, three seconds with one
def test_the_snippets_of_all_pages_have_the_types_that_mypy_sees(tmp_path):
    for page in PAGES:
        text = "\n".join((*GENUINE.findall(page.read_text()), *PYTHON.findall(page.read_text())))
        (tmp_path / f"{page.stem}.py").write_text(text)
    options = (
        "--strict", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache" / "docs"),
    )  # fmt: skip
    files = [path.name for path in tmp_path.iterdir()]
    checked = run([sys.executable, "-m", "mypy", *options, *files], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_page_and_notebook_is_in_the_contents_of_its_folder():
    """Sphinx fails on others, and `make docs` with it."""
    for index in (ROOT / "docs").rglob("index.md"):
        listed = index.read_text().partition("```{toctree}\n")[2].partition("```")[0].split()
        pages = {page.stem for page in index.parent.iterdir() if page.suffix in (".md", ".ipynb")} - {"index"}
        assert pages == {name for name in listed if "/" not in name and name[0] != ":"}


def test_links_to_numbers_lead_to_the_copies_that_the_site_has():
    conf = run_path(str(ROOT / "docs" / "conf.py"))
    (folder,) = conf["html_extra_path"]
    for page in (ROOT / "RESULTS.md", *PAGES[1:]):
        name = "results" if page.stem == "RESULTS" else str(page.relative_to(ROOT / "docs").with_suffix(""))
        source = [page.read_text()]
        conf["_with_numbers_of_the_site"](name, source)
        for link in LINK.findall(source[0]):
            assert "figures/" not in link or Path(link).suffix == ".png", f"{page}: {link}"
        for link in re.findall('href="([^"]+)"', source[0]):
            assert (ROOT / "docs" / folder / link.removeprefix("../" * name.count("/"))).is_file(), f"{page}: {link}"


def test_pages_of_the_site_link_to_no_page_that_it_lacks():
    """Sphinx warns of a Markdown file outside docs, and `make docs` fails."""
    conf = run_path(str(ROOT / "docs" / "conf.py"))
    for page in PAGES[1:]:
        source = [page.read_text()]
        conf["_with_own_pages"](None, str(page.relative_to(ROOT / "docs").with_suffix("")), source)
        for link in LINK.findall(source[0]):
            if link.endswith(".md") and link.lower().removeprefix("../") not in ("results.md", "contributing.md"):
                assert (page.parent / link).resolve().is_relative_to(ROOT / "docs"), f"{page}: {link}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


COLUMNS = 88  # of code on a page of the site


def code_lines(page):
    """The lines of a page's code, without directives of Sphinx."""
    if page.suffix == ".ipynb":
        cells = nbformat.read(page, as_version=4).cells
        return "\n".join(cell.source for cell in cells if cell.cell_type == "code").splitlines()
    blocks = re.split(r"^ *```", page.read_text(), flags=re.MULTILINE)[1::2]
    return [line for block in blocks if block[0] != "{" for line in block.splitlines()]


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "RESULTS.md", *NOTEBOOKS], ids=lambda page: page.stem
)
def test_the_code_of_a_page_is_at_most_88_columns_wide(page):
    assert [line for line in code_lines(page) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        if link not in ("notebooks/index", "contributing.md"):
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", [*PAGES, ROOT / "RESULTS.md"], ids=lambda page: page.stem)
def test_every_experiment_that_a_page_asks_for_is_there_at_that_scale(page):
    reproduce = get_command(app).commands["reproduce"]
    for line in REPRODUCE.findall(page.read_text()):
        words = [word for word in shlex.split(line) if word != "..."]
        names = reproduce.make_context("reproduce", words).params["names"]
        assert all(full_name(name) for name in names if name != "all" and not name.isupper()), line


@forks
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file, tmp_path, monkeypatch):
    """In a fork: a kernel would import everything again, and its shell changes the process that it is in."""
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # else two at once wait for one history
    monkeypatch.chdir(tmp_path)
    cells = nbformat.reads(file.read_text().replace("STEPS = 1000", "STEPS = 30"), as_version=4).cells

    def run_cells():
        plotly.io.renderers.default = "json"
        shell = InteractiveShell(user_module=ModuleType("notebook"))
        for cell in cells:
            if cell.cell_type == "code":
                shell.run_cell(cell.source).raise_error()

    assert ended(forked(run_cells)) == 0


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_holds_its_output_and_no_path_of_a_machine(file):
    notebook = nbformat.read(file, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code) and any(cell.outputs for cell in code)
    assert "/site-packages/" not in file.read_text() and "/home/" not in file.read_text()
