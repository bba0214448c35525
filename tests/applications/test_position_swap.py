"""Table 7 as the paper prints it, and its figure."""

import math

import pytest

from sinkinterp.applications.position_swap import REPORTED, paper_grid, swap_finding
from sinkinterp.runs.experiment import load_experiment
from sinkinterp.table import Table, published

EDITS, RATES, SEEDS = ("none", "p1 <- p_t", "p1 <-> p_t", "p_t <-> p_t+1"), ("Sink_1", "Sink_t"), (0, 3)
MODELS = ("org/one", "org/two")


def rate_of(model, seed, edit, t):
    """Another number for each place."""
    return (1 + MODELS.index(model) + 3 * seed + 11 * EDITS.index(edit) + t) / 97


def row(model, seed, name, edit, t):
    ours = rate_of(model, seed, edit, t) if name == "repeated" else 0.999
    theirs = REPORTED.get(edit, {}).get(t, (None, None)) if name == "repeated" else (None, None)
    cells = {"model": model, "seed": seed, "input": name, "edit": edit, "t": t, "Sink_1": ours, "Sink_t": ours / 2}
    return cells | dict(zip(map(published, RATES), theirs, strict=True))


TABLE = Table.of(
    "Table 7",
    "one: n=7, T=13; t counts from 1",
    tuple(
        row(model, seed, name, edit, t)
        for model in MODELS
        for seed in SEEDS
        for name in ("natural", "repeated")
        for edit in EDITS
        for t in ((5,) if edit == "none" else (5, 10))
    ),
)


def test_the_grid_has_a_row_for_each_edit_rate_and_model_and_a_column_for_each_t():
    grid = paper_grid(TABLE)
    assert [*grid.frame] == ["edit", "rate", "of", "t=5", "t=10"]
    assert grid.frame["of"].tolist() == ["GPT2-XL, the paper's", "one", "two"] * 5  # of the control the paper has none
    assert "t counts from 1" in grid.note and "n=7, T=13" in grid.note


@pytest.mark.parametrize(("edit", "rate", "scale"), [("p1 <- p_t", "Sink_1", 1), ("p1 <-> p_t", "Sink_t", 0.5)])
def test_the_grid_holds_means_over_seeds_on_repeated_tokens_and_the_papers_values_in_percent(edit, rate, scale):
    for t in (5, 10):
        cells = {row["of"]: row[f"t={t}"] for row in paper_grid(TABLE).where(edit=edit, rate=rate).records()}
        theirs = REPORTED[edit][t][RATES.index(rate)]
        ours = {m: 100 * scale * math.fsum(rate_of(m, seed, edit, t) for seed in SEEDS) / len(SEEDS) for m in MODELS}
        expected = {"GPT2-XL, the paper's": 100 * theirs} | {m.removeprefix("org/"): x for m, x in ours.items()}
        assert cells == {name: f"{x:.1f}" for name, x in expected.items()}


def test_a_grid_without_repeated_tokens_is_of_the_first_input_and_has_no_row_of_the_paper():
    rows = (row("org/one", 0, "natural", edit, 5) for edit in EDITS)
    grid = paper_grid(TABLE.with_rows({k: x for k, x in row.items() if k not in ("model", "seed")} for row in rows))
    assert {(row["of"], row["t=5"]) for row in grid.records()} == {("this model", "99.9"), ("this model", "50.0")}
    assert "natural tokens" in grid.note


def test_the_figure_has_the_papers_marks_on_a_panel_of_each_model_and_seed_and_t_counts_from_1():
    figure = load_experiment("table07_position_swap").draw(TABLE)
    panels = [note.text for note in figure.layout.annotations]
    runs = [f"{model}, seed {seed}" for model in ("one", "two") for seed in SEEDS]
    assert panels == [*(f"input: repeated, {run}" for run in runs), "input: natural, one, seed 0"]
    marked = [t for t in figure.data if "GPT2-XL" in t.name and t.name.startswith("Sink_1") and any(t.y)]
    assert len(marked) == 4 and all(list(t.y)[1:3] == [0.002, 0.0236] for t in marked)
    assert set(figure.data[0].x[1]) == {"5", "10"} and "from 1" in figure.to_json()


@pytest.mark.parametrize(
    ("before", "moved", "title"),
    [
        (0.91, 0.91, "the sink follows p1 (91 of 91%)"),
        (0.982, 0.98, "the sink follows p1 (98.0 of 98.2%)"),
        (0.354, 0.049, "the sink does not follow p1 (4.9 of 35.4%)"),
        (0.0, 0.0, "there is no sink to follow p1"),
    ],
)
def test_the_title_says_what_the_numbers_show(before, moved, title):
    cells = {"none": (before, 0.0), "p1 <-> p_t": (0.0, moved)}
    rows = [
        {"input": "given", "edit": edit, "Sink_1": first, "Sink_t": there, "null": 0.0}
        for edit, (first, there) in cells.items()
    ]
    assert swap_finding(Table.of("", "", rows)) == title
    both = [*rows, *({**row, "input": "other", "Sink_1": 0.0} for row in rows)]
    assert swap_finding(Table.of("", "", both)).endswith("; other: there is no sink to follow p1") == (before > 0)


def test_the_title_has_the_shares_of_each_input_on_which_the_sink_follows():
    shares = {"natural": (0.982, 0.98), "random": (1.0, 1.0), "repeated": (0.982, 0.98)}
    rows = [
        {"input": name, "edit": edit, "Sink_1": first, "Sink_t": there, "null": 0.0}
        for name, (before, moved) in shares.items()
        for edit, first, there in (("none", before, 0.0), ("p1 <-> p_t", 0.0, moved))
    ]
    assert swap_finding(Table.of("", "", rows)) == "the sink follows p1 (98.0 of 98.2%; 100 of 100%)"
