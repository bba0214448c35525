"""Words that people write on the command line mean commands, options, edits and settings that there are."""

import csv
import json
import re
import shlex

import pytest
from cli.test_streams import in_a_fork
from forks import forks
from typer.main import get_command
from typer.testing import CliRunner

from sinkinterp.cli.main import app
from sinkinterp.cli.meaning import TABLES, line_meant
from sinkinterp.cli.options import EDITS
from sinkinterp.guesses import words_of
from sinkinterp.interventions.edit import edits_of
from sinkinterp.report.report import NAMED
from sinkinterp.spec import flat
from sinkinterp.train.recipe import Recipe

COMMANDS = get_command(app).commands
OWN = {
    name: {x for param in command.params for x in (*param.opts, *param.secondary_opts)}
    for name, command in COMMANDS.items()
}
NAME, TEXT = "sinkinterp/text-softmax", "The cat sat on the mat."


def meant(line):
    command, *words = line_meant(shlex.split(line), COMMANDS)
    return [command, *COMMANDS[command]._meant(words)]


def edit_of(line):
    words = meant(line)
    assert words[:2] == ["measure", "m"] and words[-2] == "--edit", words
    (edit,) = edits_of(words[-1])
    return edit


def options_in(said):
    return {*re.findall(r"--[a-z][\w-]*", said)}


def call(*words):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_a_command_and_an_option_by_its_name(edit):
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", edit).lower()
    for line in (f"{word} m", f"measure m --{word}", f"intervene m --{word.replace('-', '_')}"):
        words = meant(line)
        assert words[:-1] == ["measure", "m", "--edit"] and words[-1] == f"{edit}()"


SAME_EDIT = {
    "swap m 0 5": (
        *("swap 0 5 m", "swap m 0,5", "swap m --positions 0 5", "swap m --first 0 --second 5", "measure m --swap 0 5"),
        *("intervene m --swap=0,5", "edit m --swap-p1 0 5", "swap-positions m --from 0 --to 5"),
        *(
            "measure m --edit 'swap 0 5'",
            "measure m --edit swap_positions --positions 0,5",
            "run m --edit 'swap(0, 5)'",
        ),
    ),
    "ablate m --layer 2 --head 0": ("edit m --ablate --layers 2 --heads 0", "ablate m --head 0 --layer 2"),
    "ablate m --heads 2.0": (
        "ablate m 2.0",
        "knockout m L2H0",
        "measure m --ablate 2.0",
        "ablate-head m --head=2.0",
        "ablate m 2 0",
    ),
    "ablate m --heads 0.1,3.2": ("ablate m --heads 0.1 3.2", "measure m --ablate 0.1 3.2", "ablate m 0.1,3.2"),
    "ablate m --layer 2 --component mlp --position 0": ("edit m --ablate --site mlp --layers 2 --positions 0",),
    "replace-softmax m --with sigmoid": (
        *("measure m --replace-softmax sigmoid", "replace_softmax m --kernel=sigmoid", "sigmoid m"),
        "replace-softmax m sigmoid",
    ),
    "ablate m --layers 1,2 --position 0": ("ablate m --layers 1 2 --positions 0",),
}


@pytest.mark.parametrize("line", SAME_EDIT)
def test_an_edit_is_the_same_however_its_numbers_are_written(line):
    assert {*map(repr, map(edit_of, SAME_EDIT[line]))} == {repr(edit_of(line))}


def test_what_belongs_to_the_command_is_not_taken_by_an_edit():
    words = meant("ablate m --layer 2 --head 0 --text 4 --length 64 --top 3 --json")
    assert " ".join(words[:-1]) == "measure m --text 4 --length 64 --top 3 --json /dev/stdout --edit"
    assert words[-1] == "Ablate(layers=2, heads=0)"
    both = meant("measure m --swap 0 5 --ablate 3.2 --layer 1")
    assert both == ["measure", "m", "--edit", "SwapPositions(0, 5)", "--edit", 'Ablate("3.2", layers=1)']


@pytest.mark.parametrize("verb", ["plot", "show", "measure", "view", "analyze"])
@pytest.mark.parametrize(
    "table", sorted(TABLES.keys() - {"sinks", "epsilons"})
)  # the command, and the option --epsilon
def test_a_table_is_asked_for_by_its_name_in_every_place(verb, table):
    page = ["--html", "sinks.html"] * (verb in ("plot", "show", "view"))
    for line in (f"{verb} {table} m", f"{table} m", f"measure m --{table}"):
        assert [*meant(line), *page * (verb not in line)] == ["measure", "m", "--table", table, *page]


def test_words_for_commands_are_commands_with_options_of_theirs():
    for word, said in words_of("same").items():
        if word.startswith("sinkinterp:"):
            command, *more = said.split()
            is_edit = bool(more) and "--edit" in meant(f"measure m {' '.join(more)}")
            assert command in COMMANDS and (is_edit or options_in(" ".join(more)) <= OWN[command]), word


@pytest.mark.parametrize("command", COMMANDS)
def test_a_word_for_an_option_becomes_options_of_the_command(command):
    for word, said in words_of("option").items():
        place, _, option = word.rpartition(":")
        if place in ("", command) and option and options_in(said) <= OWN[command]:
            name, _, value = option.partition("=")
            if name not in OWN[command]:
                words = COMMANDS[command]._meant(["m", name, *([value or "7"] * (word[-1] != "="))])
                assert options_in(" ".join(words)) <= OWN[command], (word, words)


def test_the_settings_that_options_of_a_training_mean_are_settings():
    known = {name.removesuffix(".kind") for name in flat(Recipe(compiled=True).to_dict())}
    for said in words_of("option").values():
        assert {*re.findall(r"--set ([\w.]+)=", said)} <= known


def test_a_training_without_a_variant_is_that_of_softmax():
    assert meant("train --steps 5 --layers 2") == ["train", "softmax", "--set", "steps=5", "--set", "model.n_layers=2"]
    assert meant("train --steps 5 --attention sigmoid")[1:] == ["--set", "steps=5", "sigmoid"]
    assert CliRunner().invoke(app, ["train"]).exit_code == 2


SAME_LINE = {
    "measure m --layer 0 --layer 1 --layer 2 --table norms": (
        *("norms m --layers 0-2", "norms m --layers 0,1,2", "plot-norms m --layers 0:3"),
        *("plot norms m --layers 0..2", "view m --what norms --layers 0-2"),
        "measure m --metric norms --layers 0 1 2",
    ),
    "measure m --table kv --layer 0 --layer 1": ("kv-norms m --layers 0,1", "norms m --layers 0-1 --kind kv"),
    "measure m2 --table above --epsilon 0.5": ("heads m2 --threshold 0.5", "sink-heads m2 --eps 0.5"),
    "measure m2 --table keys,values --layer 5": ("norms m2 --what key,value --layer 5",),
    "measure m2 --table sinks --save a.png": (
        "heatmap m2 -o a.png",
        "plot m2 --kind heatmap -o a.png",
        "view m2 heads -o a.png",
    ),
    "measure m2 --table massive --save a.html": ("figure massive m2 --save a.html", "plot m2 massive --out a.html"),
    "view m2 --head 5.3": (
        "heatmap m2 --head 5.3",
        "plot heatmap m2 --layer 5 --head 3",
        "figure attention m2 --head 5.3",
    ),
    "view m2 --out a.html": ("dashboard m2 --out a.html", "figure m2 --save a.html"),
    "measure m2 --edit 'PatchNormalization(\"sigmoid\")'": ("edit m2 --attention sigmoid --measure sink-rate",),
    "measure m2 --position 1": ("sink-rate m2 --k 2",),
    "list variants": ("train --list-variants", "train --variants", "variants list"),
    "train softmax --set steps=5 --set model.n_layers=2 --set lr=1e-3": (
        "train steps=5 model.n_layer=2 optim.lr=1e-3",
    ),
    "train sink_token --set steps=5": ("train --sink-token --steps 5 --no-wandb",),
    "patch a/b --into c/d --out a.html": ("patch a/b c/d --plot a.html",),
    "compare a/b c/d": ("compare a/b vs c/d", "measure --model a/b --model c/d"),
    "generate m2 --text word": ("generate m2 -t word",),
    "info m --backend transformer_lens": ("load m --backend tl",),
    "measure m --table layers": ("sink-rate m --per-layer", "rate m --by layer", "by-layer m"),
    "measure m --table massive": ("massive m --per-layer",),
    "reproduce table1 --model a2 --model b3": ("reproduce table1 --models a2,b3",),
    "train sigmoid --set model.position=rope": ("train --attention sigmoid --pos rope",),
    "info m": ("load m", "info --model m"),
    "measure m --save a.pdf": ("plot sink-rate m -o a.pdf", "measure m --output a.pdf", "measure m --pdf a.pdf"),
    "compare a/b c/d --format json": (
        "sink-rate a/b c/d --json",
        "compare a/b c/d --format=json",
        "diff a/b c/d --json",
    ),
    "compare a/b c/d --save a.html": ("compare --model a/b --model-b c/d --out a.html", "vs a/b c/d --html a.html"),
    "compare m --edit ZeroKeyBias()": ("edit m --zero-key-bias --compare", "compare m --zero-key-bias"),
    "serve m --port 80": ("view m --port 80", "show m --port 80", "dashboard m --port=80"),
    "explain m --head 5.3": ("explain m --layer 5 --head 3", "why m --layers 5 --heads 3"),
    "generate m 'a b' --edit 'PatchNormalization(\"sigmoid\")'": (
        *("generate m 'a b' --attention sigmoid", "generate m 'a b' --normalization sigmoid --seed 1"),
    ),
    "generate m --text x --edit ZeroKeyBias() --max-new-tokens 5": ("generate m -p x -n 5 --edit zero-key-bias",),
    "patch m --clean a --corrupted b --site residual": ("patch m --clean a --corrupt b --component resid_pre",),
    "patch a --into b": ("patch a b --sweep", "patch --source a --target b"),
    "patch a/b --into c/d --text x": ("patch a/b c/d --text x", "patch a/b c/d --prompt x"),
    "reproduce table7 --save a.pdf --out b": ("reproduce --table table7 -o a.pdf --output-dir b",),
    "train sigmoid --dry-run --set lr=1": ("train --variant sigmoid --lr 1 --dry-run",),
}


@pytest.mark.parametrize("line", SAME_LINE)
def test_a_line_is_the_same_however_its_words_are_chosen(line):
    def sorted_words(line):
        return sorted(word for word in meant(line) if word not in ("--html", "sinks.html"))

    assert all(sorted_words(other) == sorted(shlex.split(line)) for other in SAME_LINE[line])


def test_a_file_of_settings_is_options(tmp_path):
    (tmp_path / "a.yaml").write_text("variant: sigmoid\nlr: 1e-3\nmodel:\n  n_layers: 2\ndry_run: true\nforce: false\n")
    words = meant(f"train --config {tmp_path}/a.yaml")
    assert words == ["train", "sigmoid", "--set", "lr=1e-3", "--set", "model.n_layers=2", "--dry-run"]


def test_the_name_of_an_edit_or_a_model_is_not_a_text():
    assert meant("edit m zero-key-bias") == ["measure", "m", "--edit", "ZeroKeyBias()"]
    for line in ("measure a/b gpt2-medium c", "view a/b gpt2", "measure m word"):
        assert "--text" not in meant(line) and CliRunner().invoke(app, shlex.split(line)).exit_code == 2


def test_what_a_line_was_read_as_is_said_once():
    result = CliRunner().invoke(app, ["norms", NAME, "--text", TEXT, "--layer", "1"])
    assert result.stderr == f"read as: sinkinterp measure {NAME} --text '{TEXT}' --layer 1 --table norms\n"
    assert CliRunner().invoke(app, ["measure", NAME, TEXT]).stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_without_an_unknown_option_is_a_line(command):
    needed = [word for param in COMMANDS[command].params if param.required for word in (param.opts[0], "x")]
    needed = [word for word in needed if word[0] in "-x"]
    said = " ".join(CliRunner().invoke(app, [command, *needed, "--nonsense", "7"]).output.split())
    assert f"without it: sinkinterp {' '.join([command, *needed])}; see" in said


def test_a_table_alone_has_the_rows_that_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {*TABLES} == NAMED.keys() - {"attention"} | {"entries"}  # attention needs more than is measured
    for table in TABLES:
        assert call("measure", NAME, TEXT, "--table", table).strip()
    call("heads", NAME, TEXT, "--layer", "1,2", "--csv", "a.csv")
    rows = [*csv.DictReader((tmp_path / "a.csv").read_text().splitlines())]
    assert {row["layer"] for row in rows} == {"1", "2"} and {row["head"] for row in rows} == {"0"}
    shown = call("measure", NAME, TEXT, "--metrics", "sink_rate,massive_activations", "--top", "1")
    assert shown.count("┡") == 2
    call("report", NAME, TEXT, "-o", "a.html")
    assert (tmp_path / "a.html").read_text().startswith("<!")


@forks
def test_json_and_csv_without_a_file_are_on_standard_output(tmp_path):
    for words, beginning in ((["--json"], "{"), (["--format", "csv"], "quantity,value,")):
        out = tmp_path / words[-1]
        assert in_a_fork(["measure", NAME, TEXT, *words], out, "/dev/null") == 0
        assert out.read_text().startswith(beginning)
    assert json.loads((tmp_path / "--json").read_text())["protocol"]["model"] == NAME


def test_the_name_of_a_table_or_figure_is_what_is_reproduced():
    for line in ("table7 --quick", "measure table7 --quick", "table 7 --tiny", "reproduce table 7 --fast"):
        assert {*meant(line)} == {"reproduce", "table7", "--scale", "smoke"}
    assert meant("figure 2") == meant("reproduce figure 2") == meant("reproduce --figure 2") == ["reproduce", "figure2"]
