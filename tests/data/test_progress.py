import io

import pytest
from rich.console import Console

from sinkinterp.data import progress
from sinkinterp.data.progress import shown


@pytest.fixture
def clock(monkeypatch):
    """Sets the time that progress is measured with."""

    def set_to(seconds):
        monkeypatch.setattr(progress.time, "monotonic", lambda: seconds)

    set_to(0.0)
    return set_to


def terminal(**kind):
    return Console(file=io.StringIO(), width=150, **kind)


def test_a_terminal_gets_a_bar_with_the_note_and_the_time_left(clock):
    console = terminal(force_terminal=True)
    with shown(console) as start:
        show = start("training")
        show(5, 107, "loss 2.500")
        clock(6.0)
        show(7, 107, "loss 1.250")
    text = console.file.getvalue()
    assert "training  loss 1.250" in text and "7/107" in text and "0:05:00 left" in text


def test_lines_come_every_few_seconds_with_the_time_left(clock, capsys):
    with shown(terminal(), in_lines=True) as start:
        show = start("step")
        for seconds, step in ((0.0, 10), (3.0, 11), (6.0, 12), (7.0, 13), (8.0, 100)):
            clock(seconds)
            show(step, 100, f"loss {step}")
    assert capsys.readouterr().err.splitlines() == ["step 12/100  loss 12  0:04:24 left", "step 100/100  loss 100"]


def test_work_of_unknown_size_says_how_much_is_done_and_a_new_part_is_timed_anew(clock, capsys):
    with shown(terminal(), in_lines=True) as start:
        show = start("data")
        for seconds, done, total in ((0.0, 1, 0), (6.0, 2000, 0), (12.0, 0, 4000), (18.0, 3000, 4000)):
            clock(seconds)
            show(done, total)
    assert capsys.readouterr().err.splitlines() == ["data 2,000", "data 0/4,000", "data 3,000/4,000  0:00:02 left"]


def test_a_pipe_gets_nothing_unless_it_is_to_get_lines(capsys):
    with shown(terminal()) as start:
        start("measuring")(7, 7)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_gets_bars_if_it_has_widgets_and_lines_otherwise(has_widgets, monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: has_widgets or None)
    with shown(terminal(force_jupyter=True)) as start:
        assert isinstance(start("measuring"), progress._Lines) is not has_widgets
