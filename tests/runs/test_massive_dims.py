"""Where massive activations are found, on numbers made by hand."""

import pytest
import torch
from backends.encoder_decoders import save_bart
from sinkinterp._experiments.shared.cases import Case, Named, open_case
from typer.testing import CliRunner

import sinkinterp as si
from experiments.shared.massive import chosen_dims, massive_dims
from sinkinterp._experiments import load_module
from sinkinterp.backends.encoder import NoEncoder, TokenIds
from sinkinterp.backends.named_models import downloads
from sinkinterp.cli.main import app
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.tokens import random_tokens
from sinkinterp.interventions import Zero
from sinkinterp.runs.experiment import Scope

SEQUENCES, BLOCKS, DIMS = 3, 5, 7


def entries(**by_place):
    """Zeros but for bBdD=value, in all sequences."""
    x = torch.zeros(SEQUENCES, BLOCKS, DIMS)
    for place, value in by_place.items():
        x[:, int(place[1]), int(place[3])] = value
    return x


def test_dims_are_those_that_are_massive_in_most_sequences_of_some_block():
    first = entries(b1d0=600.0, b2d4=-900.0, b2d6=700.0, b3d4=-950.0, b3d6=650.0)
    massive = torch.zeros_like(first, dtype=torch.bool)
    massive[:, 2:4, 4] = True
    massive[0, 2, 6] = massive[0, 1, 0] = True  # in one sequence of three
    place = chosen_dims(first, massive)
    assert (place.dims, place.onset, place.tallest, place.massive) == ((4,), 2, 3, True)
    massive[1, 2, 6] = massive[1, 1, 0] = True
    place = chosen_dims(first, massive)
    assert (place.dims, place.onset) == ((4, 6, 0), 1) and place.largest[:3] == (4, 6, 0)


def test_without_a_massive_one_it_is_the_largest_dimension_of_the_tallest_block():
    first = entries(b1d3=5.0, b4d2=-8.0, b4d5=6.0)
    place = chosen_dims(first, torch.zeros_like(first, dtype=torch.bool))
    assert (place.dims, place.onset, place.tallest, place.massive) == ((2,), 4, 4, False)
    assert place.largest[:2] == (2, 5) and "none is massive" in place.line()


def test_each_dimension_is_edited_before_every_block_from_its_own_first():
    first = entries(b1d0=600.0, b2d0=700.0, b2d4=-90.0, b3d4=-9000.0, b3d0=50.0)
    place = chosen_dims(first, first.abs() > 500)
    assert (place.dims, place.onsets) == ((4, 0), (3, 1))
    edits = place.edits(Zero(), 2, 5)
    assert [(list(e.layers), list(e.dims), list(e.positions)) for e in edits] == [
        ([3, 4], [4], [2]),
        ([1, 2, 3, 4], [0], [2]),
    ]
    others = place.with_dims((6, 5, 3))
    assert others.onsets == (3, 1, 1) and [entry.block for entry in place.entries(0, 2)] == [3, 1, 3, 1]


def test_controls_are_as_many_other_dimensions():
    first = entries(b2d4=-900.0, b2d6=700.0)
    place = chosen_dims(first, first.abs() > 600)
    drawn = [place.others(seed) for seed in range(20)]
    assert place.dims == (4, 6) and all(len(set(dims)) == 2 and not {4, 6} & set(dims) for dims in drawn)
    assert len(set(drawn)) > 1 and place.others(3) == drawn[3]


@pytest.mark.skipif(
    not (downloads() / "smollm2-135m-instruct").is_dir(), reason="needs local/smollm2-135m-instruct: run make models"
)
def test_smollm2_has_one_massive_dimension():
    place = massive_dims(si.load("local/smollm2-135m-instruct"), random_tokens(49_152, 32, 5))
    assert (place.dims, place.onset, place.massive) == ((507,), 12, True)


TABLE07 = "table07_position_swap"


@pytest.fixture
def bart(tmp_path):
    return str(save_bart(tmp_path / "bart", marks_texts=False))


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\n\n".join(" ".join(f"word{(i * j) % 90 + 3}" for j in range(45)) for i in range(1, 9)))
    return file


def test_the_encoders_input_is_in_the_name_of_the_case(bart):
    case = open_case(Named(bart, NoEncoder()))
    assert str(Named(bart, NoEncoder())) == bart and case.source == bart
    assert case.subject.name == f"{bart}, encoder off (no cross-attention)"
    assert case.bos is Bos.ALWAYS and case.bos_token == 2  # the decoder's start token, not <s>


def test_table_7_has_every_input_with_and_without_the_start_token(bart, text, monkeypatch):
    monkeypatch.setattr(Case, "size", lambda case: (5, 33))
    module = load_module(TABLE07)
    monkeypatch.setattr("sinkinterp.applications.position_swap.TARGETS", (5, 30))
    models = [Named(bart, TokenIds((5, 9, 2))), Named(bart, NoEncoder())]
    table = module.EXPERIMENT.table(Scope(Scale.SMOKE, models=models, text=text))
    names = ["natural", "random", "repeated"]
    assert list(dict.fromkeys(table.frame["input"].tolist())) == [*names, *(f"{name}, id 2 first" for name in names)]
    assert len(set(table.frame["model"].tolist())) == 2 and len(table.frame) == 2 * 6 * 7
    published = {row["input"] for row in table.records() if row["paper Sink_1"] is not None}
    assert published == {"repeated"}
    assert "encoder 3 tokens (sha256 " in table.note and "encoder off (no cross-attention)" in table.note
    assert "BOS only where the input says so" in table.note and len(module.draw(table).data) > 0


def test_the_command_takes_an_encoder_input(bart, tmp_path, monkeypatch):
    monkeypatch.setattr(Case, "size", lambda case: (2, 33))
    monkeypatch.setattr(Case, "natural_tokens", lambda *_: None)
    words = ["reproduce", TABLE07, "--model", bart, "--out", str(tmp_path / "out")]
    asked = CliRunner().invoke(app, words)
    assert asked.exit_code == 2 and "encoder" in asked.output
    assert CliRunner().invoke(app, [*words, "--encoder", "off"]).exit_code == 0
    assert (tmp_path / "out" / f"{TABLE07}.json").is_file()


def test_a_token_that_is_made_as_long_as_the_others_keeps_its_direction():
    x = torch.randn(3, 7, 11, generator=torch.Generator().manual_seed(0))
    x[:, 0] *= 1000
    short = load_module("removing_massive").OthersLength()(0, x)[:, 0]
    torch.testing.assert_close(short.norm(dim=-1), x[:, 1:].norm(dim=-1).sort().values[:, 2])  # the lower median of six
    torch.testing.assert_close(torch.nn.functional.cosine_similarity(short, x[:, 0]), torch.ones(3))
