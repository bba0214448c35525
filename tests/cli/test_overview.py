"""What `measure` prints first: few lines, each head once, and the numbers of the report."""

import json
import math

import pytest
import torch
from backends.zoo import VOCAB, model_of
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.cli import terminal
from sinkinterp.cli.main import app
from sinkinterp.cli.terminal import LINES, ROWS, SHADES, brief, head_blocks, overview, strongest_heads
from sinkinterp.table import Table


@pytest.fixture(scope="module")
def report():
    ids = torch.randint(VOCAB, (5, 17), generator=torch.Generator().manual_seed(0))
    return si.measure(si.load(model_of("llama")), ids, progress=False)


def test_the_block_of_a_head_is_as_dark_as_its_importance(report):
    first, *lines = head_blocks(report).plain.split("\n")
    alpha, wide = report.alpha().mean(0), 2
    assert len(lines) == len(report.attention_layers) and "largest of" not in first
    for line, layer, row in zip(lines, report.attention_layers, alpha.tolist(), strict=True):
        name, blocks = line[:7], line[8:].ljust(wide * len(row))
        assert int(name) == layer
        assert blocks == "".join(SHADES[round(4 * value)] * wide for value in row)


@pytest.mark.parametrize("n_layers", [LINES, LINES + 1, 3 * LINES + 2])
def test_models_of_any_depth_fit_the_lines_and_keep_their_strongest_head(report, n_layers, monkeypatch):
    alpha = torch.zeros(2, n_layers, 3)
    alpha[:, n_layers - 1, 1] = 1.0
    deep = type("Deep", (), {"alpha": lambda self: alpha, "attention_layers": tuple(range(n_layers))})()
    legend, *lines = head_blocks(deep).plain.split("\n")
    together = math.ceil(n_layers / LINES)
    assert ("a line is a layer," if together == 1 else f"a line is {together} layers,") in legend
    assert len(lines) <= LINES and lines[-1].endswith(SHADES[-1] * 2)
    assert strongest_heads(deep).split(": ")[1].startswith(f"{n_layers - 1}.1 1.00")


def test_the_overview_says_the_protocol_once(report):
    parts = [part.to_markdown() if isinstance(part, Table) else str(part) for part in overview(report, 0.3, str)]
    assert sum("n=5, T=17" in part for part in parts) == 1


@pytest.mark.parametrize(
    "line",
    [
        "measure sinkinterp/text-softmax --drawn random --sequences 3 --length 13",
        "patch sinkinterp/text-softmax --clean Cats --corrupted Dogs",
        "explain sinkinterp/demo-softmax --sequences 3 --length 13",
        "cache sinkinterp/demo-softmax --sequences 3 --length 13",
        "mask sinkinterp/demo-softmax --sequences 3 --length 13",
    ],
)
def test_a_command_prints_a_sentence_one_table_its_protocol_and_where_the_rest_is(line):
    short, full = (CliRunner().invoke(app, [*line.split(), *more]) for more in ([], ["--full"]))
    assert short.exit_code == full.exit_code == 0, short.output + full.output
    lines = short.stdout.splitlines()
    assert len(lines) <= 40 and len(lines) < len(full.stdout.splitlines())
    assert not lines[0].startswith("┏") and sum("┏" in row for row in lines) == 1
    assert "--full" in short.stdout and "--full" not in full.stdout and "n=" in short.stdout


@pytest.mark.parametrize("rows", [1, ROWS, ROWS + 1, 3 * ROWS + 5])
def test_a_table_that_is_cut_says_how_many_rows_it_has(rows):
    _, shown, *_ = brief("A sentence.", Table.of("A title", "a note", tuple({"x": i} for i in range(rows))))
    is_cut = rows > ROWS
    assert shown.frame["x"].tolist() == list(range(min(rows, ROWS)))
    assert shown.title == "A title" + is_cut * f" ({ROWS} of {rows} rows, the rest with --full)"


def test_explain_says_a_sentence_for_each_head_and_shows_the_rows_of_the_strongest():
    words = ["explain", "sinkinterp/text-softmax", "--sequences", "3", "--length", "13", "--drawn", "random"]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    said = [line.split() for line in lines if line.startswith("Head ")]
    alphas = [float(words[words.index("token") + 1]) for words in said]
    assert len(said) == 3 and alphas == sorted(alphas, reverse=True)
    layer, head = said[0][1].split(".")
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert rows and all(row == [layer, head] for row in rows)
    assert any(f"make head {layer}.{head} look" in line for line in lines)


DAMAGED = (b"", b"{", b"[]", b'{"provenance": 3}', b'{"name": "table07_position_swap", "rows": [3]}')


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    """The file of a chapter that says it took 1.7 hours of processor time, more than passed."""
    folder = tmp_path_factory.mktemp("book")
    assert CliRunner().invoke(app, ["reproduce", "table07", "--scale", "smoke", "--out", str(folder)]).exit_code == 0
    (file,) = folder.glob("table07*.json")
    plain = json.loads(file.read_text())
    made = plain["provenance"]
    assert made["processor seconds"] > 0
    made |= {"seconds": 3600, "processor seconds": 1.7 * 3600, "machine": "an abacus"}
    file.write_text(json.dumps(plain))
    return file


def dry_run(words, folder):
    result = CliRunner().invoke(app, ["reproduce", "table07", *words.split(), "--dry-run", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "is_same"),
    [
        ("--scale smoke", True),
        ("--scale smoke --seeds 5", True),
        ("--scale smoke --seeds 3", False),
        ("--scale demo", False),
        ("--model sinkinterp/demo-sigmoid", False),
    ],
)
def test_a_dry_run_says_the_hours_of_a_chapter_only_if_the_same_command_made_it(chapter, words, is_same):
    shown = dry_run(words, chapter.parent)
    assert ("took 1.70 hours of processor time on an abacus" in shown) == is_same == ("took" in shown)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_dry_run_passes_over_a_damaged_chapter(chapter, content, tmp_path):
    file = tmp_path / chapter.name
    file.write_bytes(content)
    shown = dry_run("--scale smoke", tmp_path)
    assert "measures sinkinterp/demo-softmax" in shown and "took" not in shown and file.read_bytes() == content


def test_models_that_are_compared_read_as_many_sequences_as_the_first_needs(monkeypatch, tmp_path):
    monkeypatch.setattr("sinkinterp.measurement.measure.STAGES", (4,))
    monkeypatch.setattr(
        "sinkinterp.measurement.measure._interval_width", lambda report, _: report.sink_rate().mean - 0.1
    )
    words = ["compare", "sinkinterp/text-sigmoid", "sinkinterp/text-softmax", "--length", "17", "--first-only"]
    said = CliRunner().invoke(app, [*words, "--save", str(tmp_path / "a.json")])
    assert said.exit_code == 0 and said.stdout.count("n=4") == 2, said.stdout


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
def test_title_and_note_of_a_narrow_table_are_as_wide_as_the_terminal(width, monkeypatch, capsys):
    title, note = " ".join(["[word]"] * (width // 7)), " ".join(f"[n={i}]" for i in range(89))
    out = printed(Table.of(title, note, ({"x": 1},)), width, monkeypatch, capsys)
    first, second, *_ = out.splitlines()
    assert first.rstrip() == title and second.startswith("┏")
    below = out.rpartition("┘")[2].split("\n")[1:]
    assert " ".join(line.strip() for line in below).strip() == note
    assert all(width - len("[n=88]") <= len(line.rstrip()) <= width for line in below[:-2])
