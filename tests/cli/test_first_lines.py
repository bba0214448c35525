"""What a newcomer types first works, or says what to type."""

import re
import shlex
import socket
import time

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import sinkinterp
from sinkinterp.backends.load import BACKENDS
from sinkinterp.cli import options
from sinkinterp.cli.main import app
from sinkinterp.cli.meaning import line_meant
from sinkinterp.lm.variants import BASE, variants
from sinkinterp.measurement.measure import PRESETS
from sinkinterp.runs.catalogue import experiment_names
from sinkinterp.train.recipe import RECIPES


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Runs a command line in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        result = CliRunner().invoke(app, [*map(str, words)], env={"TERMINAL_WIDTH": "200", "COLUMNS": "200"})
        return result.exit_code, " ".join(result.stdout.split()), result.stderr

    return run


NAME, OTHER = "sinkinterp/text-softmax", "sinkinterp/text-sigmoid"
WORKS = {
    (): "Attention sinks: read them, move them, train them away.",
    ("--help",): "measure",
    ("--version",): f"sinkinterp {sinkinterp.__version__}",
    ("list", "experiments"): "table07_position_swap",
    ("list", "checkpoints"): "sinkinterp/text-softmax",
    ("list", "recipes"): "paper-60m",
    ("list", "variants"): "attention.kernel.similarity=Sigmoid",
    ("list", "models"): "make models",
    ("list",): "table07_position_swap",
    ("reproduce", "list"): "table07_position_swap",
    ("measure", "help"): "[default: 100",
    ("train", "--help"): "softmax_p0.25",
    ("reproduce", "--help"): "table07_position_swap",
    ("measure", "--help"): "[default: huggingface]",
    ("measure", "sinkinterp/text-softmax", "--text", "hello world, here is a text"): "Sink_1",
    ("measure", "sinkinterp/demo-softmax", "--length", 8, "--sequences", 3): "Sink_1",
    ("view", "sinkinterp/text-softmax", "--text", "hello world"): "wrote figures/view.html",
    ("list", "edits"): "SwapPositions",
    ("list", "recipes", "--format", "csv"): "recipe,data,layers",
    ("compare", "sinkinterp/text-softmax", "sinkinterp/text-sigmoid", "--text", "hello world, a text"): "change",
    ("compare", "sinkinterp/text-softmax", "--edit", "RemoveColumn", "--text", "hello world, a text"): "before",
    ("generate", "sinkinterp/text-softmax", "The cat", "--max-new-tokens", 3): "The cat",
    ("train", "sigmoid", "--dry-run"): "1 runs",
}


@pytest.mark.parametrize(("words", "shown"), WORKS.items(), ids=map(" ".join, (map(str, words) for words in WORKS)))
def test_a_first_guess_works(call, words, shown):
    code, output, errors = call(*words)
    assert code == 0 and shown in output
    assert errors in ("", "read as: sinkinterp list experiments\n")


def test_a_text_is_measured_as_the_one_sequence_that_it_is(call, tmp_path):
    import json

    text = "hello world, here is a text"
    code, _, _ = call("measure", "sinkinterp/text-softmax", "--text", text, "--json", "out.json")
    protocol = json.loads((tmp_path / "out.json").read_text())["protocol"]
    assert code == 0 and protocol["sequences"] == 1 and 5 < protocol["length"] <= 64
    (tmp_path / "a.txt").write_text(text)
    length = protocol["length"]
    words = ("--text", "a.txt", "--length", length, "--sequences", 1, "--json", "file.json")
    assert call("measure", "sinkinterp/text-softmax", *words)[0] == 0
    from_file, given = (json.loads((tmp_path / name).read_text())["importance"] for name in ("file.json", "out.json"))
    assert from_file == given


def test_domains_that_cannot_be_read_are_named_and_the_others_measured(call, tmp_path):
    paragraphs = [f"The text number {i} tells of cats, dogs and birds." for i in range(9)]
    (tmp_path / "good.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "short.txt").write_text("cat")
    files = ("good.txt", "short.txt", "absent.txt")
    code, output, errors = call("domains", "sinkinterp/text-softmax", *files, "--length", 8, "--sequences", 5)
    assert code == 1 and "good" in output and "Sink_1" in output
    assert errors.count("\n") == 2 and "left out: short: 5 sequences of 8 tokens were asked for" in errors
    assert "left out: absent: there is no file absent.txt" in errors


def test_help_and_completion_know_the_names_that_there_are():
    assert tuple(variants(BASE)) == options.VARIANTS and tuple(RECIPES) == options.RECIPES
    assert (tuple(PRESETS), BACKENDS) == (options.PRESETS, options.BACKENDS)
    assert options.beginning(options.VARIANTS)("k_bias_5") == ["k_bias_5e1", "k_bias_5even"]
    assert options.beginning(experiment_names)("table07") == ["table07_position_swap"]


def test_a_name_of_the_hub_fails_fast_where_there_is_no_network(call, monkeypatch):
    import huggingface_hub.constants

    def no_route(*_, **__):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", no_route)
    monkeypatch.setattr(socket.socket, "connect", no_route)
    monkeypatch.setattr("sinkinterp.data.hub.getproxies", dict)
    start = time.monotonic()
    code, _, errors = call("measure", "nobody/nothing", "--drawn", "random")
    assert code == 2 and errors.count("\n") == 1 and "with a network" in errors
    assert time.monotonic() - start < 5


FIXED = (  # lines that end with an error which says what to type
    *(f"compare {NAME}", f"generate {NAME}", f"patch {NAME}", f"perplexity {NAME}"),
    *(f"measure {NAME} --nonsense 3 --text 'a b'", f"generate {NAME} --text 'a b' --temperature 0.7", f"doctor {NAME}"),
    *(f"track {NAME}", "train --epochs 3", "train --objective prefix", "reproduce", "train"),
)


@pytest.mark.parametrize("line", FIXED)
def test_what_an_error_says_to_type_is_a_line_without_mistakes(call, line):
    code, _, said = call(*shlex.split(line))
    fixes = re.findall(r"`sinkinterp ([^`]*)`|without it: sinkinterp (.*?); see|as in sinkinterp (.*?);", said)
    words = shlex.split("".join(fixes[0]).replace("MODEL MODEL", f"{NAME} {OTHER}").replace("MODEL", NAME))
    assert code == 2 and fixes
    command = get_command(app).commands[words[0]]
    command.make_context(words[0], line_meant(words, get_command(app).commands)[1:])
