"""What `measure` prints first: few lines, each head once, and the numbers of the report."""

import math

import pytest
import torch
from backends.zoo import VOCAB, model_of
from typer.testing import CliRunner

import sinkinterp as si
from sinkinterp.cli.main import app
from sinkinterp.cli.overview import LINES, SHADES, head_blocks, overview, strongest_heads
from sinkinterp.table import Table


@pytest.fixture(scope="module")
def report():
    ids = torch.randint(VOCAB, (5, 17), generator=torch.Generator().manual_seed(0))
    return si.measure(si.load(model_of("llama")), ids, progress=False)


def test_measure_prints_at_most_40_lines_and_the_rest_on_demand():
    words = ["measure", "sinkinterp/text-softmax", "--drawn", "random", "--length", "17", "--sequences", "3"]
    short, full = (CliRunner().invoke(app, [*words, *more]) for more in ([], ["--full"]))
    assert short.exit_code == full.exit_code == 0
    assert len(short.stdout.splitlines()) <= 40 < 60 < len(full.stdout.splitlines())
    places = [
        short.stdout.index(part) for part in ("sink", "Sink_1 at", "a column a head", "Strongest", "n=3", "--full")
    ]
    assert places == sorted(places)


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
