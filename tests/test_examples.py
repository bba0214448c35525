"""The examples are short, run, and print what their first lines say."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from sinkinterp.applications import eviction

EXAMPLES = Path(__file__).parents[1] / "examples"
NUMBER = r"(-?[\d.]+(?:e-\d+)?) \[.*?\]"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """What an example prints, run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return capsys.readouterr().out

    return run


def numbers(line):
    return [float(number) for number in re.findall(NUMBER, line)]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 40


def test_swapping_p1_moves_the_sink(run):
    untouched, swapped, control = (numbers(line) for line in run("swap_p1").splitlines()[1:4])
    assert untouched == control == swapped[::-1] and untouched[0] > 0.8 and untouched[1] == 0


def test_key_biases_count_under_rotary_positions_alone(run):
    plain, _, rotary, _ = (numbers(line)[0] for line in run("zero_key_biases").splitlines())
    assert plain < 1e-6 and rotary > 0.01


def test_key_biases_of_a_given_model(run, tmp_path):
    from backends.zoo import model_of

    model_of("opt").save_pretrained(tmp_path / "opt")
    key, query = (numbers(line)[0] for line in run("zero_key_biases", tmp_path / "opt").splitlines())
    assert key < 1e-6 and query > 0.01


@pytest.mark.parametrize("name", ["inside_transformer_lens", "inside_nnsight"])
def test_edits_inside_other_libraries_take_fifteen_lines_and_are_seen(run, name):
    code = (EXAMPLES / f"{name}.py").read_text().split('"""')[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 15 and "si.patched" in code
    swapped, zeroed, sigmoid, angles = run(name).splitlines()
    assert [line[:7].strip() for line in (swapped, zeroed, sigmoid)] == ["p1 <->", "b_K = 0", "sigmoid"]
    assert "tensor(" in angles and len({line[16:] for line in (swapped, zeroed, sigmoid)}) == 3


def test_sigmoid_in_a_layer_of_a_softmax_model_costs_loss(run):
    none, patched, note = run("sigmoid_in_one_layer").splitlines()
    assert numbers(none)[1] == 0 and numbers(patched)[1] > 0.1 and "n=100" in note
    assert "</html>" in Path("figures/sigmoid_in_one_layer.html").read_text()


def test_the_first_token_of_the_sink_model_makes_a_sink_in_its_twin(run):
    lines = [numbers(line) for line in run("patch_twin").splitlines()]
    (_, own, first, _, last), (_, twins_own, twins_first, _, _) = lines[:5], lines[5:]
    assert own[0] > 0.9 and first[0] > 0.9 and last[0] == own[0] and last[1] > own[1]
    assert twins_own[0] == 0 and twins_first[0] > 0.9 and twins_first[1] > twins_own[1]


def test_evicting_the_sink_costs_loss_where_there_is_one(run, monkeypatch):
    whole = eviction.streaming_table
    monkeypatch.setattr(eviction, "streaming_table", lambda model, tokens, **how: whole(model, tokens[:31], **how))
    rows = [numbers(line) for line in run("streaming_perplexity").splitlines() if line.startswith("  sinks + recent")]
    none, one, *_ = [row[1] for row in rows[1:4]]  # beside full attention, which adds nothing
    without = rows[5][1]
    assert none > 0.1 > 0.01 > max(abs(one), abs(without))


def test_a_trainer_that_is_watched_shows_how_a_sink_comes(run):
    lines = [line for line in run("watch_a_trainer", 150).splitlines() if line.startswith(("step", "under"))]
    first, *_, last, uniform = [float(re.search(r"alpha_1 ([\d.]+)", line)[1]) for line in lines]
    assert first < uniform + 0.05 and last > uniform + 0.15 and "Sink_1 0.0%" in lines[0]
