"""Command lines that are wrong: one line on standard error, exit code 2, nothing written; never a traceback."""

import itertools
import os
import re
from pathlib import Path

import pytest
from abuse import bad_files
from backends.zoo import VOCAB
from typer.main import get_command
from typer.testing import CliRunner

from sinkinterp.cli.main import app

GOOD, SHIPPED, TOKENS = "{files}/good", "sinkinterp/demo-softmax", "--tokens {files}/tokens.json"
MEASURE = f"measure {GOOD} {TOKENS} --length 4 --sequences 2"

NOT_WHOLE = ("0", "-5", "1.5", "x", "''", "nan", "1e400", "٣x", str(2**64), "9" * 5000)
NUMBERS = [  # one parser reads all whole numbers
    *(f"measure {SHIPPED} --length {text}" for text in ("1", "17", *NOT_WHOLE)),
    *(f"{start} -5" for start in (f"measure {SHIPPED} --sequences", f"view {SHIPPED} --length", "demo --seed")),
    *(f"{start} {2**64}" for start in (f"measure {SHIPPED} --drawn random --seed", "train softmax --seed")),
    *(f"reproduce table03 --seeds {text}" for text in ("0", "1000000 --dry-run")),
    *(f"{MEASURE} --epsilon {text}" for text in ("nan", "-1", "0", "2", "x", "1e-400")),
    *(f"view {SHIPPED} --edit 'SwapPositions({text})'" for text in ("-1, 2", "0, x", "0, 1.5", "0, 99", "1")),
    *(f"view {SHIPPED} --head {text}" for text in ("x.y", "0.0.0", "-1.0", "''", f"0.{2**70}", "0.1.")),
    *(f"measure {SHIPPED} --drawn random --length {length}" for length in ("17", "16 --sequences 2147483647")),
]

SET = [  # what settings hold is tested in `test_recipe`
    *(f"train softmax --set {text}" for text in (
        "''", "steps", "steps=", "=7", "a.b.c=1", ".=1", "nonsense=1", "kind=Fit", "steps=x", "bf16=maybe",
        f"seed={2**70}", "model.n_layers=10000000", "model.d_model=1e9", "model.n_heads=3", "steps=7 --set steps=8",
    )),
    "train t5 --set model.position.count=1",
    "train window --set model.attention.mask.right.width=0",
    "train prefix_5 --set data.length=4 --out run",
    "train softmax --set batch=1e11 --out run",
]  # fmt: skip

NO_FILES = ("empty-folder", "folder.txt", "absent.txt", "absent/absent.csv", "link", "loop")
NO_TEXTS = (*bad_files.TEXTS.keys() - {"a.txt", "mixed.jsonl"}, *NO_FILES)
NO_TOKENS = (*bad_files.TOKENS, "nested.json", "number.json", "absent.json", "")
FILES = [
    *(f"measure {GOOD} --length 4 --sequences 1 --text {{files}}/{name}" for name in sorted(NO_TEXTS)),
    *(f"measure {GOOD} --length 4 --sequences 1 --tokens {{files}}/{name}" for name in NO_TOKENS),
    *(f"measure {GOOD} --text {text}" for text in ("''", "' '", "stanfordnlp/imdb", "texts/", "'caf\udce9 au lait'")),
    f"measure {GOOD} --text {{files}}/folder-of-links",
    *(f"{start} {{files}}/latin.txt" for start in (f"view {GOOD} --text", "train softmax --text")),
    f"measure {GOOD} --tokens ''",
    f"measure {GOOD} --prompt 'a b' --length 9",
    f"measure {GOOD} --prompt 'the cat sat' --sequences 2",
    f"mask {GOOD} --text {{files}}/a.txt --length 2 --sequences 2",
]

FOLDERS = (
    *(name.replace(" ", "-") for name in bad_files.CONFIG_CHANGES if name != "dtype nonsense"),
    *(*bad_files.DAMAGED, *bad_files.TENSORS, *(f"pipe-for-{file}" for file in bad_files.PIPED)),
    *("weights-cut", "weights-that-are-a-folder", "no-weights", "none.gguf", "a.txt", "absent"),
)
MODELS = [
    *(f"measure {{files}}/{name} {TOKENS} --length 4 --sequences 2" for name in FOLDERS),
    *(f"measure {{files}}/{name} --prompt 'the cat sat'" for name in bad_files.TOKENIZERS),
    *(f"measure {name}" for name in ("' '", "/", "{files}/link", "local/absent", "sinkinterp/absent", "a/b/c")),
    *(f"measure {name}" for name in ("'two words'", "'line\nbreak'", "'./line\nbreak'", "-", "http://x.y/z")),
    *(f"{command} ./absent" for command in ("view", "check", "reproduce table07 --model")),
]

NAMES = [
    *(f"train {name}" for name in ("''", "Softmax", "soft max", "'soft\nmax'", "heads_3", "softmax sigmoid")),
    *(f"train softmax --recipe {name}" for name in ("''", "nonsense")),
    *(f"train softmax --device {name}" for name in ("''", "cuda:99", "cuda", "'cu\nda'")),
    *(f"reproduce {name}" for name in ("t", "table07 nonsense", "all all", "'a\nb'", "table03 --model gpt2")),
    *(f"reproduce table03 --scale {name}" for name in ("nonsense", "''", "real", "smoke --device-map cpu")),
    *(f"reproduce table07 --model {name}" for name in ("''", f"{GOOD}", f"{SHIPPED} --encoder absent.wav")),
    *(
        "reproduce table07 --scale paper",
        "reproduce table07 --encoder silence",
        "list variant",
        "list variants recipes",
    ),
    *(f"{MEASURE} --{name}" for name in ("backend hugingface", "dtype float64", "preset papers")),
    *(f"{MEASURE} --device-map {name}" for name in ("cuda:99", "''", "nonsense", "cuda", "-1")),
    *(f"measure {SHIPPED} --{name}" for name in ("drawn ''", "bos True")),
    *(f"measure {SHIPPED} --encoder {name}" for name in ("silence", "''", "absent.wav", "{files}/none.wav", "off")),
    *(f"measure {GOOD} --text {{files}}/{name}" for name in ("a.txt --column ''", "other.jsonl --column nonsense")),
]

WRITING = (f"{MEASURE} --out", f"{MEASURE} --save", f"view {SHIPPED} --out", "demo --out", "reproduce table07 --out",
           "train softmax --out")  # fmt: skip
OUTPUTS = [
    *(f"{MEASURE} --save {place}" for place in ("{files}/good", "x" * 300, "..", "-", "numbers.txt")),
    *(f"{start} {place}" for start, place in itertools.product(WRITING, ("''", "{files}/a.txt/out"))),
    f"view {SHIPPED} --out x\0y",
]

CONFLICTS = [
    f"measure {GOOD} --text {{files}}/a.txt --length 2 --sequences 1 --seed 3",
    f"measure {GOOD} --drawn random --length 4 --sequences 1 --column x", f"{MEASURE} --drawn random",
    f"{MEASURE} --length 3", f"{MEASURE} --bos never", f"measure {SHIPPED} --drawn random --length 8 --bos always",
    f"measure {GOOD} --text {{files}}/folder-of-texts --length 2 --sequences 1 --column x", f"{MEASURE} word",
    f"measure {SHIPPED} --save a.json --save b.json", "train softmax --seed 1 --set seed=2", "view", "check a b",
    "demo now", "--nonsense", "-x", "trian softmax", "'mea\nsure' x", f"measure {SHIPPED} --length",
    f"measure {SHIPPED} --first-only=maybe", f"measure {SHIPPED} --save out.json --out out.json --drawn random",
]  # fmt: skip

HANGS = [  # what nobody writes to, and what has no end
    *(f"measure {GOOD} --tokens {name}" for name in ("{files}/pipe.json", "/dev/zero", "-")),
    *(f"{start} --text {{files}}/pipe.txt" for start in (f"measure {GOOD}", f"view {GOOD}", "train softmax")),
    f"measure {GOOD} --text -",
    f"measure {{files}}/pipe.gguf {TOKENS}",
    f"measure {GOOD} {TOKENS} --encoder {{files}}/pipe.wav",
    *(f"{MEASURE} {out}" for out in ("--out {files}/pipe.json", "--save {files}/pipe.json --force")),
    "mask sinkinterp/text-softmax --sequences 1",
]

SAYS = {  # lines whose error says what to type
    "measure": "missing argument 'MODEL'",
    "measure gpt2": "local folder",
    "measure .": "holds no config.json",
    f"measure {SHIPPED.replace('soft', 'sof')}": "did you mean 'sinkinterp/demo-softmax'?",
    f"measure {SHIPPED} --prompt 'hello world'": "tokenizer",
    "measure {files}/no-tokenizer": "--tokens file.json",
    f"measure {{files}}/outside {TOKENS} --length 4": "shows no attention",
    f"measure {GOOD} --tokens {{files}}/tokens-beyond.json --length 4 --sequences 1": f"token id {VOCAB}",
    f"measure {GOOD} {TOKENS} --length 5 --sequences 2": "of 2 texts 0 are",
    f"reproduce figure19 --model {SHIPPED} --model {SHIPPED}": "given twice",
    f"reproduce figure19 --scale smoke --model {SHIPPED}": "leave one",
    f"view {SHIPPED} --head \u0660.\u0660": "such as 3.7",
    f"view {SHIPPED} --head 0.0 --head 0.00": "--head is given twice",
    f"view {SHIPPED} --head 9.0": "layer 9",
    f"measure {GOOD} --text {{files}}/other.jsonl": "name the column",
    "mesure gpt2": "did you mean 'measure'",
    f"measure {SHIPPED} --lenght 5": "--length",
    "train softmax --recipe dem": "did you mean 'demo'?",
    "train softmax --recipe paper-60m": "your own",
    "train softmax --out {files}": "a run",
    "reproduce ''": "experiment",
    "reproduce table99": "'table09'",
    f"view {GOOD} --prompt the": "at least 2",
    f"explain {SHIPPED} --bos always": "--bos",
    f"measure {SHIPPED} --head 0.0": "--table",
    f"{MEASURE} --save x.png": ".safetensors",
    f"{MEASURE} --out x.json": ".html",
    f"{MEASURE} --save {{files}}/tokens.json": "this command reads",
    f"view {SHIPPED} --out {{files}}/a.txt": "does not end in",
    f"cache {SHIPPED} --save {{files}}/tokens.json": "--force",
    f"measure {GOOD} --prompt 'a b' --text {{files}}/a.txt": "--text and --prompt are given together",
    "mend sinkinterp/text-softmax --out run --set lr=1e-4": "lr=... has no effect without --steps",
    "mend sinkinterp/text-softmax --out run --set untl=0": "until",
    f"mend {GOOD} --out run --remedy none": "no such option: --remedy; see",
    f"{MEASURE} --table sinks --layer 9": "--layer is a whole number from 0 to",
    f"{MEASURE} --table positions --position 9": "has positions 0 to 3",
    f"{MEASURE} --table norms --head 0.0": "--head chooses rows of --table sinks, writes, angles; leave --head out",
    f"cache {SHIPPED} --tolerance -1": "--tolerance is a finite number above 0 and at most 1; got -1.0",
}
LINES = [*dict.fromkeys((*HANGS, *NUMBERS, *SET, *FILES, *MODELS, *NAMES, *OUTPUTS, *CONFLICTS, *SAYS))]


@pytest.fixture(scope="module")
def contents(files):
    """What stands in the folder of files: a list of one set, as the last line left it."""
    return [_contents(files)]


@pytest.fixture
def call(tmp_path, monkeypatch, files, contents):
    """Runs a command line in an empty folder; returns exit code, standard error and every path it left or changed."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))

    def run(line: str):
        result = CliRunner().invoke(app, _words(line.format(files=files)))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        before = contents.pop()
        contents.append(_contents(files))
        left = [str(path) for path in tmp_path.rglob("*") if path != here]
        return result.exit_code, result.stderr, left, contents[0] - before

    return run


def _contents(folder: Path) -> set[tuple[str, int, int]]:
    paths = (os.path.join(parent, name) for parent, *names in os.walk(folder) for name in (*names[0], *names[1]))
    return {(path, (about := os.lstat(path)).st_size, about.st_mtime_ns) for path in paths}


def _words(line: str) -> list[str]:
    """The words of a line, quotes apart; a shell would do the same."""
    parts = line.split("'")
    return [word for i, part in enumerate(parts) for word in ([part] if i % 2 else part.split(" ")) if i % 2 or word]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_bad_line_is_one_line_and_exit_code_2_and_nothing_written(call, line):
    code, errors, left, changed = call(line)
    assert (code, left, changed) == (2, [], set()), errors
    *works, error = errors.splitlines()
    assert error.startswith("error: ") and not any("error" in work for work in works), errors
    assert SAYS.get(line, "").lower() in error.lower()
    assert {*re.findall(r"(?<!\S)--[a-z][\w-]*", re.sub("`[^`]*`", "", error))} <= {*options_of(line), *line.split()}, (
        error
    )


def options_of(line):
    """The options of the command that a line names."""
    command = get_command(app).commands.get(line.split()[0])
    return [
        "--help", "--force", "--upgrade", *(name for param in getattr(command, "params", ()) for name in param.opts),
    ]  # fmt: skip


FINE = {  # lines that look odd and are right
    f"measure {SHIPPED} --sequences 2": "T=16",  # a toy at the length of its task
    f"{MEASURE} --save 'a\nb.json'": "wrote a\\nb.json",
    f"measure {GOOD} --prompt 'the cat sat on the cat'": "Sink_1",
    f"measure {GOOD} --prompt 'the \x1b[31mcat\n\tsat' --out out.html": "wrote out.html",
    f"measure {GOOD} --text {{files}}/a.txt --length 2 --sequences 1 --first-only": "Sink_1",
    f"measure {GOOD} --drawn random --seed {2**63 - 1} --length 4 --sequences 1 --first-only": f"seed {2**63 - 1}",
    f"view {GOOD} --prompt 'caf\xe9 \u4e16\u754c the cat' --out new/folder/page.html": "wrote new/folder/page.html",
    "train softmax --set steps=2 --set model.n_layers=2 --device cpu --out run": "trained: run",
    "reproduce table03 --scale smoke --dry-run": "runs",
}


@pytest.mark.parametrize("line", FINE, ids=range(len(FINE)))
def test_an_odd_line_that_is_right_gives_the_right_result(files, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, _words(line.format(files=files)))
    assert result.exit_code == 0 and FINE[line] in " ".join(result.output.split()), result.output
