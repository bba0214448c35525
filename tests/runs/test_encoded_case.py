"""Experiments on a model with an encoder."""

import pytest
from backends.encoder_decoders import save_bart
from typer.testing import CliRunner

from sinkinterp.backends.encoder.encoder_input import NoEncoder, TokenIds
from sinkinterp.cli.main import app
from sinkinterp.data.choices import Bos
from sinkinterp.runs.case import Case, Encoded, open_case
from sinkinterp.runs.catalogue import Scale, load_module
from sinkinterp.runs.experiment import Scope

TABLE07 = "table07_position_swap"


@pytest.fixture
def bart(tmp_path):
    return str(save_bart(tmp_path / "bart", marks_texts=False))


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\n\n".join(" ".join(f"word{(i * j) % 90 + 3}" for j in range(45)) for i in range(1, 9)))
    return str(file)


def test_the_encoders_input_is_in_the_name_of_the_case(bart):
    case = open_case(Encoded(bart, NoEncoder()))
    assert str(Encoded(bart, NoEncoder())) == bart and case.source == bart
    assert case.subject.name == f"{bart}, encoder off (no cross-attention)"
    assert case.bos is Bos.ALWAYS and case.bos_token == 2  # the decoder's start token, not <s>


def test_table_7_has_every_input_with_and_without_the_start_token(bart, text, monkeypatch):
    monkeypatch.setattr(Case, "size", lambda case: (5, 33))
    module = load_module(TABLE07)
    module.TARGETS = (5, 30)
    models = [Encoded(bart, TokenIds((5, 9, 2))), Encoded(bart, NoEncoder())]
    table = module.EXPERIMENT.table(Scope(Scale.SMOKE, models=models, text=text))
    names = ["natural", "random", "repeated"]
    assert list(dict.fromkeys(table.column("input"))) == [*names, *(f"{name}, id 2 first" for name in names)]
    assert len(set(table.column("model"))) == 2 and len(table.rows) == 2 * 6 * 7
    published = {row["input"] for row in table.rows if row["paper Sink_1"] is not None}
    assert published == {"repeated"}
    assert "encoder 3 tokens (sha256 " in table.note and "encoder off (no cross-attention)" in table.note
    assert "no BOS unless the input says so" in table.note and len(module.draw(table).data) > 0


def test_the_command_takes_an_encoder_input(bart, tmp_path, monkeypatch):
    monkeypatch.setattr(Case, "size", lambda case: (2, 33))
    monkeypatch.setattr(Case, "natural_tokens", lambda *_: None)
    words = ["reproduce", TABLE07, "--model", bart, "--out", str(tmp_path / "out")]
    asked = CliRunner().invoke(app, words)
    assert asked.exit_code == 2 and "add --encoder silence, off, FILE or TEXT" in " ".join(asked.output.split())
    assert CliRunner().invoke(app, [*words, "--encoder", "off"]).exit_code == 0
    assert (tmp_path / "out" / f"{TABLE07}.json").is_file()
