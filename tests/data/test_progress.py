import io
import sys

import pytest
import tqdm.std

from sinkinterp.data import progress
from sinkinterp.data.progress import progress_bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Sets the time that progress is measured with."""

    def set_to(seconds):
        monkeypatch.setattr(tqdm.std, "time", lambda: 1e9 + seconds)

    set_to(0.0)
    return set_to


@pytest.fixture
def terminal(monkeypatch):
    """Lets standard error be a terminal from the call on: pytest sets it anew before a test."""

    def put():
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return put


def test_a_terminal_gets_a_bar_with_the_note_and_the_time_left(clock, terminal):
    terminal = terminal()
    with progress_bars() as start:
        show = start("training")
        show(5, 107, "loss 2.500")
        show.bar._time = lambda: 1e9 + 6.0
        show(7, 107, "loss 1.250")
    text = terminal.getvalue()
    assert "training" in text and "loss 1.250" in text and "7/107" in text and "<05:00" in text


def test_lines_come_every_few_seconds_with_the_time_left(clock, capsys):
    with progress_bars(in_lines=True) as start:
        start("data")(1, 7)
        show = start("step")
        for seconds, step in ((0.0, 10), (3.0, 11), (6.0, 12), (7.0, 13), (8.0, 100)):
            show(10, 100) if show.bar is None else None
            show.bar._time = lambda seconds=seconds: 1e9 + seconds
            show(step, 100, f"loss {step}")
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("step 12/100, loss 12, 04:2") and last == "step 100/100, loss 100, 00:00 left"


def test_work_of_unknown_size_says_how_much_is_done_and_a_new_part_has_a_bar_of_its_own(clock, capsys):
    with progress_bars(in_lines=True) as start:
        show = start("data")
        show(1, 0)
        show.bar._time = lambda: 1e9 + 6.0
        show(2000, 0)
        before = show.bar
        show(0, 4000)
        assert show.bar is not before and show.bar.initial == 0
    assert capsys.readouterr().err.splitlines() == ["data 2000/?"]


def test_a_pipe_gets_nothing_unless_it_is_to_get_lines(capsys):
    with progress_bars() as start:
        start("measuring")(7, 7)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_brief", [True, False])
def test_a_bar_of_the_library_appears_after_two_seconds_and_leaves_nothing(is_brief, clock, terminal):
    terminal = terminal()
    with progress_bars(is_brief=is_brief) as start:
        start("measuring")(1, 7)
        assert ("measuring" in terminal.getvalue()) is not is_brief
    assert ("measuring" in terminal.getvalue()) is not is_brief


def test_control_characters_in_a_name_are_not_obeyed(terminal):
    terminal = terminal()
    with progress_bars() as start:
        start("measuring \x1b[2Jmodel")(1, 7)
    assert "\x1b[2J" not in terminal.getvalue() and r"\x1b[2Jmodel" in terminal.getvalue()


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_gets_bars_if_it_has_widgets_and_lines_otherwise(has_widgets, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", sys)
    monkeypatch.setattr(progress, "find_spec", lambda name: has_widgets or None)
    with progress_bars() as start:
        kind = start.args[0]
        assert (getattr(kind, "func", kind) is progress._Lines) is not has_widgets
