"""`sinkinterp cache` and `sinkinterp mask`: both answer in a sentence, with tables in JSON and on a page."""

import json

import pytest
from typer.testing import CliRunner

from sinkinterp.cli.main import app


@pytest.mark.parametrize("command, answer, tables", [("cache", "Keep 1 first token:", 5), ("mask", "Leave out no", 5)])
def test_the_shipped_twin_is_answered_in_a_sentence_with_its_tables(command, answer, tables, tmp_path):
    files = [tmp_path / "numbers.json", tmp_path / "page.html"]
    words = [command, "sinkinterp/demo-softmax", "--json", str(files[0]), "--html", str(files[1])]
    result = CliRunner().invoke(app, [*words, *(["--steps", "3"] if command == "mask" else [])])
    assert result.exit_code == 0 and answer in result.output, result.output
    written = json.loads(files[0].read_text())
    assert written["answer"].startswith(answer) and len(written["tables"]) == tables
    assert all(table["rows"] and "null" in table["note"] for table in written["tables"][-2:])
    assert ("mask" in written) == (command == "mask") and answer in files[1].read_text()


def test_heads_are_answered_for_beside_tokens_and_dimensions(tmp_path):
    file = tmp_path / "numbers.json"
    line = ["mask", "sinkinterp/demo-softmax", "--sequences", "5", "--steps", "1", "--heads", "--json", str(file)]
    result = CliRunner().invoke(app, line)
    written = json.loads(file.read_text())
    assert result.exit_code == 0 and "Leave out no" in written["answer"] and "at +0.01 nats" in written["answer"]
    assert (
        len(written["tables"]) == 7 and written["heads"]["budget"] == 0.01 and "tokens" in written["mask"]["blocks"][0]
    )


def test_the_cache_is_rounded_to_the_bits_that_were_asked_for(tmp_path):
    words = ["cache", "sinkinterp/demo-softmax", "--generate", "0", "--bits", "3", "--bits", "5"]
    result = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "numbers.json")])
    assert result.exit_code == 0, result.output
    rounded = json.loads((tmp_path / "numbers.json").read_text())["tables"][-1]["rows"]
    assert {row["bits"] for row in rounded} == {3, 5}


@pytest.mark.parametrize("command", ["cache", "mask", "explain"])
def test_fewer_texts_than_were_asked_for_are_refused_and_than_the_default_are_taken(command, tmp_path):
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(["The first token receives more attention than any other. " * 4] * 3))
    line = [command, "sinkinterp/repeats-softmax", "--text", str(texts), "--length", "11"]
    line += {"cache": ["--generate", "0"], "mask": ["--steps", "1"]}.get(command, [])
    assert CliRunner().invoke(app, line).exit_code == 0
    refused = CliRunner().invoke(app, [*line, "--sequences", "5"])
    assert refused.exit_code == 2 and "5 sequences" in refused.output, refused.output
