"""Any value of any option of any command, run in one process: a result, or one line and nothing written."""

from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings, strategies as st
from typer.testing import CliRunner

from sinkinterp.cli.main import app

COMMANDS = {  # a line of each that is fast and right
    "measure": ("sinkinterp/demo-softmax", "--tokens", "tokens.json"),
    "view": ("sinkinterp/demo-softmax", "--length", "5", "--out", "page.html"),
    "patch": ("sinkinterp/text-softmax", "--clean", "the cat sat", "--corrupted", "the cat sit", "--out", "page.html"),
    "train": ("softmax", "--set", "steps=1", "--out", "run"),
    "reproduce": ("table03", "--scale", "smoke", "--dry-run"),
    "list": ("variants",),
}
OPTIONS = [
    (command.name, max(param.opts, key=len))
    for command in typer.main.get_command(app).commands.values()
    if command.name in COMMANDS
    for param in command.params
    if param.param_type_name == "option" and not param.is_flag and max(param.opts, key=len) != "--ray"
]
HOSTILE = (
    "", " ", "x\0y", "a\nb", "\ud800", "caf\udce9", "😀", "[bold]x[/bold]", "%s{}", "x" * 5000, "9" * 5000, str(2**63),
    "-", "--", "~", "..", ".", "nan", "-inf", "1e400", "0", "-1", "00", "1_0", "٣", "0.5", "true", "null", "[1]", "{}",
    "0.0", "=", "a/b", "a:b", "paper", "random", "repeat", "always", "steps=", "steps=1e99", "lr=nan", "model=1",
    "/dev/null", "/dev/full", "/proc/self/mem", "tokens.json", "texts.txt", "book", "pipe.json", "loop", "meta", "cuda",
)  # fmt: skip
values = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=6).filter(lambda text: "/" not in text))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def fill(folder: Path) -> dict[str, bytes]:
    """Puts what commands read into a folder, whatever they did to it before."""
    (folder / "book").mkdir(exist_ok=True)
    inputs = {
        "tokens.json": b"[[1, 5, 7, 3], [2, 9, 8, 4]]",
        "texts.txt": b"the cat sat on the mat of the house\n",
        "book/notes.json": b'{"mine": 1}',
    }
    for name, content in inputs.items():
        (folder / name).write_bytes(content)
    if not (folder / "loop").is_symlink():
        (folder / "loop").symlink_to("loop")
    return inputs


def listed(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@given(option=st.sampled_from(OPTIONS), value=values)
@example(option=("measure", "--text"), value="caf\udce9 au lait")
@example(option=("view", "--out"), value="x\0y")
@example(option=("measure", "--bos"), value="always")
@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
def test_any_value_of_any_option_is_a_result_or_one_line(here, option, value):
    inputs, (command, name) = fill(here), option
    base = list(COMMANDS[command])
    if name in base and name != "--set":
        place = base.index(name)
        del base[place : place + 2]
    before = listed(here)
    result = CliRunner().invoke(app, [command, *base, f"{name}={value}"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError((command, name, value)) from result.exception
    assert result.exit_code in (0, 1, 2)
    for path, content in inputs.items():
        assert (here / path).read_bytes() == content, path
    if result.exit_code == 2:
        line = result.stderr.splitlines()[-1]
        assert line.startswith("error: ") and len(line) < 5000 and "Traceback" not in result.stderr
        assert listed(here) == before
