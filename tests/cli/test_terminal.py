import pytest

from sinkinterp.cli import terminal
from sinkinterp.table import Table

COLUMNS = {"name of the model": "a model with a long name"} | {f"column {i} of many": 1.5 + i for i in range(20)}


def printed(table, width, monkeypatch, capsys):
    monkeypatch.setattr(terminal, "console", terminal.Console(width=width, emoji=False))
    terminal.print_table(table)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 79, 120])
def test_a_wide_table_cuts_no_word_and_names_the_columns_that_do_not_fit(width, monkeypatch, capsys):
    out = printed(Table.of("A title", "a note", (COLUMNS,)), width, monkeypatch, capsys)
    shown, _, left_out = out.partition("Not shown")
    assert "…" not in out and max(map(len, out.splitlines())) <= width
    for word in ("name", "model", "long", "1.500"):
        assert word in shown
    names = " ".join(left_out.split("few:")[1].split()).split("; ")
    assert names == list(COLUMNS)[-len(names) :]
    assert f"{1.5 + 19 - len(names):.3f}" in shown


def test_a_table_that_fits_has_each_cell_on_one_line(monkeypatch, capsys):
    out = printed(Table.of("", "", ({"model": "a model with a long name", "loss": 2.25},)), 80, monkeypatch, capsys)
    assert "│ a model with a long name │ 2.250 │" in out and "Not shown" not in out


@pytest.mark.parametrize("width", [41, 83, 113])
def test_the_title_of_a_narrow_table_is_as_wide_as_the_terminal(width, monkeypatch, capsys):
    title = " ".join(["[word]"] * (width // 7))
    first, second, *_ = printed(Table.of(title, "", ({"x": 1},)), width, monkeypatch, capsys).splitlines()
    assert first.rstrip() == title and second.startswith("┏")


@pytest.mark.parametrize("width", [41, 83, 113])
def test_the_note_of_a_narrow_table_is_as_wide_as_the_terminal(width, monkeypatch, capsys):
    note = " ".join(f"[n={i}]" for i in range(89))
    below = (
        printed(Table.of("A title", note, ({"x": 1},)), width, monkeypatch, capsys).rpartition("┘")[2].split("\n")[1:]
    )
    assert " ".join(line.strip() for line in below).strip() == note
    assert all(width - len("[n=88]") <= len(line.rstrip()) <= width for line in below[:-2])
