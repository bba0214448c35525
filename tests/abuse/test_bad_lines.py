"""Command lines that are wrong: one line on standard error, exit code 2, nothing written; never a traceback."""

import itertools
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
from abuse import bad_files
from backends.zoo import VOCAB
from typer.testing import CliRunner

from sinkinterp.cli.main import app
from sinkinterp.train.recipe import Recipe

GOOD, SHIPPED, TOKENS = "{files}/good", "sinkinterp/demo-softmax", "--tokens {files}/tokens.json"
MEASURE = f"measure {GOOD} {TOKENS} --length 4 --sequences 2"

NOT_WHOLE = ("-5", "1.5", "x", "''", "inf", "nan", "1e400", "1e3", "٣x", str(2**64), f"-{2**65}", "9" * 5000)
OTHER_COUNTS = (  # one parser reads all whole numbers
    f"measure {SHIPPED} --sequences",
    f"domains {GOOD} {{files}}/a.txt --length",
    f"domains {GOOD} {{files}}/a.txt --sequences",
    f"view {SHIPPED} --length",
    "reproduce table03 --scale smoke --seeds",
)
SEEDS = (f"measure {SHIPPED} --drawn random --seed", "demo --seed", "train softmax --seed")
NOT_A_SHARE = ("nan", "-1", "0", "2", "inf", "-inf", "x", "''", "1e-400")
NUMBERS = [
    *(f"measure {SHIPPED} --length {text}" for text in ("0", "1", "17", *NOT_WHOLE)),
    *(f"{start} {text}" for start, text in itertools.product(OTHER_COUNTS, ("0", "-5", "x", "9" * 5000))),
    *(f"{start} {text}" for start, text in itertools.product(SEEDS, ("-5", "1.5", "x", str(2**64)))),
    *(f"{MEASURE} --epsilon {text}" for text in NOT_A_SHARE),
    f"domains {GOOD} x --epsilon nan",
    *(f"view {SHIPPED} --edit 'SwapPositions({text})'" for text in ("-1, 2", "0, x", "0, 1.5", f"0, {2**70}", "0, 99")),
    *(f"view {SHIPPED} --head {text}" for text in ("x.y", "0.0.0", "-1.0", "''", f"0.{2**70}", "0.1.")),
    f"measure {SHIPPED} --drawn random --length 17",
    f"measure {SHIPPED} --drawn random --length 2147483647",
    f"measure {SHIPPED} --drawn random --length 16 --sequences 2147483647",
    f"measure {SHIPPED} --sequences 2147483647",
    f"{MEASURE} --length 5 --sequences 2",
]

SET = [  # what settings hold is tested in `test_recipe`
    *(
        f"train softmax --set {text}"
        for text in (
            *("''", "=", "steps", "steps=", "=7", "'steps = '", "a.b.c=1", ".=1", "nonsense=1", "kind=Fit"),
            *(
                "steps=x",
                "bf16=maybe",
                f"seed={2**70}",
                "model.n_layers=10000000",
                "model.d_model=1e9",
                "model.n_heads=3",
            ),
        )
    ),
    "train softmax --set steps=7 --set steps=8",
    "train t5 --set model.position.count=1",
    "train window --set model.attention.mask.right.width=0",
    *(
        f"finetune {GOOD} {{files}}/chats.jsonl --out run --set {text}"
        for text in ("length=-1", "length=0", "length=1", "length=inf", "steps=0", "lr=nan", "model=x", "batch=-1")
    ),
]

NO_FILES = ("empty-folder", "folder.txt", "absent.txt", "absent.jsonl", "absent/absent.csv", "link", "loop")
NO_TEXTS = (*bad_files.TEXTS.keys() - {"a.txt", "mixed.jsonl"}, *NO_FILES)
NO_TOKENS = (*bad_files.TOKENS, "nested.json", "number.json", "absent.json", "absent/absent.json")
FILES = [
    *(f"measure {GOOD} --length 4 --sequences 1 --text {{files}}/{name}" for name in sorted(NO_TEXTS)),
    *(f"measure {GOOD} --length 4 --sequences 1 --tokens {{files}}/{name}" for name in NO_TOKENS),
    *(
        f"measure {GOOD} --text {{files}}/{name}"
        for name in ("no-rows.jsonl", "no-rows.csv", "white.txt", "white.jsonl")
    ),
    f"measure {GOOD} --tokens {{files}}",
    f"measure {GOOD} --tokens ''",
    *(f"measure {GOOD} --text {text}" for text in ("''", "' '", "'my texts.jsonl'", "stanfordnlp/imdb", "notes.pdf")),
    *(f"measure {GOOD} --text {place}" for place in ("./texts", "texts/", "{files}/folder-of-links")),
    f"measure {GOOD} --text 'a b' --length 9",
    f"measure {GOOD} --text 'the cat sat' --sequences 2",
    *(
        f"view {GOOD} --text {{files}}/{name}"
        for name in ("empty.txt", "latin.txt", "bytes.txt", "folder.txt", "white.txt", "link", "loop")
    ),
    f"view {GOOD} --text ''",
    *(f"domains {GOOD} {{files}}/{name}" for name in ("a.txt", "empty.jsonl", "empty-folder", "latin.jsonl")),
    f"domains {GOOD} {{files}}/absent.jsonl {{files}}/empty.txt",
    f"domains {GOOD} {{files}}/a.txt {{files}}/a.txt",
    f"domains {GOOD}",
    f"domains {GOOD} ''",
    f"domains {SHIPPED} {{files}}/a.txt",
    *(
        f"finetune {GOOD} {{files}}/{name} --out run"
        for name in (*bad_files.CHATS, "absent.jsonl", "a.txt", "empty-folder")
    ),
    f"finetune {GOOD} '' --out run",
    f"finetune {SHIPPED} {{files}}/chats.jsonl --out run",
    *(
        f"train softmax --text {{files}}/{name}"
        for name in ("empty.txt", "absent.txt", "latin.txt", "nested.jsonl", "empty-folder", "white.jsonl", "loop")
    ),
    "train softmax --text ''",
    "train prefix_5 --set data.length=4 --out run",
    "train softmax --set batch=1e11 --out run",
    f"finetune {GOOD} {{files}}/chats.jsonl --set batch=1e11 --out run",
    f"mask {GOOD} --text {{files}}/a.txt --length 2 --sequences 2",
]

MODELS = [
    *(
        f"measure {{files}}/{name} {TOKENS} --length 4 --sequences 2"
        for name in (
            *(name.replace(" ", "-") for name in bad_files.CONFIG_CHANGES if name != "dtype nonsense"),
            *(*bad_files.DAMAGED, *bad_files.TENSORS, *(f"pipe-for-{file}" for file in bad_files.PIPED)),
            *("weights-cut", "weights-that-are-a-folder", "no-weights", "empty-folder", "none.gguf", "absent.gguf"),
            *("a.txt", "absent"),
        )
    ),
    *(f"measure {{files}}/{name} --text 'the cat sat'" for name in bad_files.TOKENIZERS),
    *(
        f"measure {model}"
        for model in (
            *("' '", "..", "/", "{files}/link", "local/absent", "sinkinterp/absent", "nonsense", "a/b/c"),
            *("'two words'", "'line\nbreak'", "'./line\nbreak'", "-", "http://x.y/z"),
        )
    ),
    *(f"{command} {model}" for command, model in itertools.product(("view", "check"), ("''", ".", "./absent"))),
]

NAMES = [
    *(f"train {name}" for name in ("''", "Softmax", "soft max", "'soft\nmax'", "heads_3")),
    *(f"train softmax --recipe {name}" for name in ("demoo", "''", "nonsense")),
    *(f"train softmax --device {name}" for name in ("''", "cuda:99", "cuda", "'cu\nda'")),
    *(f"reproduce {name}" for name in ("t", "nonsense", "table07 nonsense", "all all", "'a\nb'")),
    *(f"reproduce table07 --scale {name}" for name in ("nonsense", "''", "smokey")),
    *(f"reproduce table07 --model {name}" for name in ("''", "./absent", "sinkinterp/absent", f"{GOOD}")),
    "reproduce table07 --scale paper",
    "reproduce table03 --model gpt2",
    "reproduce table03 --scale real",
    "reproduce table03 --scale smoke --device-map cpu",
    "reproduce table07 --model sinkinterp/demo-softmax --encoder absent.wav",
    "reproduce table07 --encoder silence",
    *(f"families {name}" for name in ("gpt3", "''", "gpt2 nonsense")),
    *(f"list {name}" for name in ("variant", "''", "variants recipes")),
    *(f"{MEASURE} --backend {name}" for name in ("''", "hugingface", "' '")),
    *(f"{MEASURE} --dtype {name}" for name in ("x", "''", "float64", "int8", "torch.float")),
    *(f"{MEASURE} --device-map {name}" for name in ("cuda:99", "''", "nonsense", "cuda", "-1")),
    *(f"{MEASURE} --preset {name}" for name in ("papers", "''", "released")),
    *(f"measure {SHIPPED} --drawn {name}" for name in ("''", "randomly")),
    *(f"measure {SHIPPED} --bos {name}" for name in ("''", "perhaps", "True")),
    *(f"measure {SHIPPED} --encoder {name}" for name in ("silence", "''", "absent.wav", "{files}/none.wav", "off")),
    f"measure {GOOD} --text {{files}}/a.txt --column ''",
    f"measure {GOOD} --text {{files}}/other.jsonl --column nonsense",
]

OUTPUTS = [
    *(f"{MEASURE} --json {place}" for place in ("{files}/good", "''", "{files}/a.txt/out", "x" * 300, "..")),
    *(
        f"{start} {place}"
        for start, place in itertools.product(
            (
                *(f"{MEASURE} --html", f"{MEASURE} --save", f"view {SHIPPED} --out", "families gpt2 --markdown"),
                *(f"domains {GOOD} {{files}}/a.txt --json", "demo --out", "gallery --out", "reproduce table07 --out"),
                *("train softmax --out", f"finetune {GOOD} {{files}}/chats.jsonl --out"),
            ),
            ("''", "{files}/a.txt/out"),
        )
    ),
]

CONFLICTS = [
    f"measure {GOOD} --text {{files}}/a.txt --length 2 --sequences 1 --seed 3",
    f"measure {GOOD} --drawn random --length 4 --sequences 1 --column x",
    f"{MEASURE} --drawn random",
    f"measure {GOOD} --text {{files}}/a.txt --drawn repeat",
    f"{MEASURE} --length 3",
    f"{MEASURE} --bos never",
    f"measure {SHIPPED} --drawn random --length 8 --bos always",
    f"measure {GOOD} --text {{files}}/a.txt --length 2 --sequences 1 --column x",
    f"measure {GOOD} --text {{files}}/folder-of-texts --length 2 --sequences 1 --column x",
    f"domains {GOOD} {{files}}/a.txt --column x",
    f"{MEASURE} word",
    f"measure {SHIPPED} --drawn random --drawn repeat",
    f"measure {SHIPPED} --json a.json --json b.json",
    f"view {SHIPPED} --out a.html --out b.html",
    "train softmax --seed 1 --seed 2",
    "train softmax --seed 1 --set seed=2",
    "train softmax sigmoid",
    "finetune",
    f"finetune {GOOD}",
    f"finetune {GOOD} {{files}}/chats.jsonl",
    "view",
    "check a b",
    "demo now",
    "gallery now",
    "book nowhere",
    "book {files}",
    "book {files}/a.txt",
    "nonsense",
    "--nonsense",
    "-x",
    "trian softmax",
    "'mea\nsure' x",
    f"measure {SHIPPED} --nonsense",
    f"measure {SHIPPED} --length",
    f"measure {SHIPPED} --first-only=maybe",
    f"measure {SHIPPED} --json out.json --html out.json --drawn random --length 8",
    "view --edit",
    f"view {SHIPPED} --edit 'SwapPositions(1)'",
]

HANGS = [  # what nobody writes to, and what has no end
    f"measure {GOOD} --tokens {{files}}/pipe.json",
    *(f"measure {GOOD} --{option} {device}" for option in ("tokens", "text", "chat") for device in ("/dev/zero", "-")),
    f"measure {GOOD} --text {{files}}/pipe.jsonl",
    f"measure {{files}}/pipe.gguf {TOKENS}",
    f"measure {GOOD} {TOKENS} --encoder {{files}}/pipe.wav",
    f"view {GOOD} --text {{files}}/pipe.txt",
    f"domains {GOOD} {{files}}/a.txt {{files}}/pipe.txt",
    f"finetune {GOOD} {{files}}/pipe.jsonl --out run",
    "train softmax --text {files}/pipe.txt",
    "reproduce table03 --seeds 1000000 --dry-run",
    f"{MEASURE} --json -",
    f"{MEASURE} --html {{files}}/pipe.json",
    f"{MEASURE} --json {{files}}/pipe.json --force",
    f"{MEASURE} --save numbers.txt",
    "mask sinkinterp/text-softmax --sequences 1",
    f"view {GOOD} --text {{files}}/empty-folder",
]

SAYS = {  # lines whose error says what to type
    "measure": "missing argument 'model'; name one, as in `sinkinterp measure sinkinterp/text-softmax`",
    "reproduce": "missing argument 'names'; name one",
    "train": "missing argument 'variant'; name a variant",
    "measure gpt2": "give the name of a model on the Hub, with a network, or a local folder",
    "measure .": "holds no config.json",
    f"measure {SHIPPED.replace('soft', 'sof')}": "did you mean 'sinkinterp/demo-softmax'?",
    f"measure {SHIPPED} --text 'hello world'": "has no tokenizer, so it reads no text",
    "measure {files}/no-tokenizer": "give token ids: --tokens file.json",
    f"measure {{files}}/outside {TOKENS} --length 4": "take a family",
    f"measure {GOOD} --tokens {{files}}/tokens-beyond.json --length 4 --sequences 1": f"token id {VOCAB}",
    f"measure {GOOD} {TOKENS} --length 5 --sequences 2": "of 2 texts 2 are shorter",
    f"measure {GOOD} {TOKENS} --length 4 --sequences 3": "use --sequences 2",
    f"{MEASURE} --text {{files}}/a.txt": "give one",
    f"reproduce figure19 --model {SHIPPED} --model {SHIPPED}": "given twice",
    f"view {SHIPPED} --head \u0660.\u0660": "such as 3.7",
    "finetune nowhere {files}/chats.jsonl --out run": "give the name of a model",
    "measure ./[bold]x[/bold]": "[bold]x[/bold]",
    "mesure gpt2": "did you mean 'measure'",
    f"measure {SHIPPED} --lenght 5": "--length",
    "train sofmax": "did you mean 'softmax'?",
    "train softmax --recipe dem": "did you mean 'demo'?",
    "train softmax --recipe paper-60m": "a text of your own",
    "train softmax --device tpu": "there is no device 'tpu'",
    "reproduce ''": "it is empty",
    f"view {GOOD} --text the": "at least 2",
    f"cache {GOOD} --text 'the cat sat'": "use --length 4, or more",
    f"view {SHIPPED} --edit 'SwapPositions(3, 3)'": "two different positions",
}
STRANGERS = {  # what people type who have not read the help, and what the error says
    f"finetune {GOOD} {{files}}/folder.txt --out run": "files in the folder",
    f"finetune {{files}}/chats.jsonl {GOOD} --out run": "is a file, and no .gguf",
    f"finetune {GOOD} {{files}}/chats.jsonl --out {{files}}": "which is not of a run",
    "train softmax --out {files}": "which is not of a run",
    "train softmax --text /dev/null": "is a device or a pipe",
    f"measure {GOOD} --tokens {{files}}/tokens-none.json": "holds no token id",
    f"measure {GOOD} --text file:///etc/hosts": "is an address",
    f"measure {GOOD} --length ６４": "is not a whole number",
    f"view {GOOD} --text 'the cat' --device-map cuda:x": "there is no device cuda:x",
    f"domains {GOOD} {{files}}/a.txt {{files}}/short.txt --length 64": "a: ",
    "reproduce table01 --scale smoke --dry-run --text missing.txt": "there is no file missing.txt",
    f"patch {GOOD} --clean {{files}}/a.txt --corrupted 'the cat'": "give the prompt itself",
    f"patch {GOOD} --clean 'the cat' --corrupted 'the cat' --answer '' --instead ''": "a text of one token",
    "mask sinkinterp/demo-softmax --times 1": "above 1",
    "cache sinkinterp/demo-softmax --text 'a book of sinks'": "so it reads no text",
    "serve sinkinterp/none": "no checkpoint sinkinterp/none",
    "serve sinkinterp/demo-softmax --port 99999": "65535",
    "serve sinkinterp/demo-softmax --dtype none": "bfloat16",
    f"explain {SHIPPED} --bos always": "leave --bos out",
    "finetune {files}/good {files}/chats.jsonl --out run --set sha256=00": "leave them out of --set",
    "finetune {files}/good {files}/chats.jsonl --out run --set model=other": "leave them out of --set",
    f"reproduce figure19 --scale smoke --model {SHIPPED}": "leave one of them out",
    f"explain {SHIPPED} --head 0.1 --head 0.1": "--head is given twice",
    f"view {SHIPPED} --head 0.1 --head 0.01": "--head is given twice",
    f"patch {SHIPPED} --clean a --corrupted b --site heads --head 1.0 --head 1.0": "--head is given twice",
    **{
        f"{start} {name}": words
        for start, names, words in (
            (f"{MEASURE} --json", ("x.png", "x.safetensors", "x.csv"), "written as json"),
            (f"{MEASURE} --html", ("x.pdf", "x.json"), "written as html"),
            (f"view {GOOD} --text 'the cat' --out", ("x.jpg", "x.json"), "written as html, or as a picture"),
            (f"patch {GOOD} --clean 'the cat' --corrupted 'the mat' --out", ("x.txt",), "written as a table"),
            ("explain sinkinterp/demo-softmax --html", ("x.md",), "written as html"),
            ("cache sinkinterp/demo-softmax --json", ("x.html",), "written as json"),
            ("mask sinkinterp/demo-softmax --html", ("x.json",), "written as html"),
            ("demo --out", ("x.png",), "written as html"),
            ("story --out", ("x.pdf",), "written as html"),
            (f"domains {GOOD} {{files}}/a.txt --json", ("x.txt",), "written as json"),
        )
        for name in names
    },
}
SAYS |= STRANGERS
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
    assert errors.startswith("error: ") and errors.count("\n") == 1, errors
    assert SAYS.get(line, "").lower() in errors.lower()
    assert not names_python(line, errors), errors


def names_python(line, errors):
    """What an error says in Python's words: a call of the package, or an argument that is not a setting."""
    said, calls = errors.replace(line, ""), r"\b(?:si|subject|report)\.\w+"
    arguments = [] if "--set" in line else re.findall(r"(?<![\w.-])[a-z]\w*(?==[^=\s])", said)
    return [word for word in arguments if word not in {field.name for field in fields(Recipe)}] + re.findall(
        calls, said
    )


FINE = {  # lines that look odd and are right
    f"measure {SHIPPED} --sequences 2": "T=16",  # a toy at the length of its task
    f"{MEASURE} --json 'a\nb.json'": "wrote a\\nb.json",
    f"measure {GOOD} --text 'the cat sat on the cat'": "Sink_1",
    f"measure {GOOD} --text 'the \x1b[31mcat\n\tsat' --html out.html": "wrote out.html",
    f"measure {GOOD} --text {{files}}/a.txt --length 2 --sequences 1 --first-only": "Sink_1",
    f"measure {GOOD} --drawn random --seed {2**63 - 1} --length 4 --sequences 1 --first-only": f"seed {2**63 - 1}",
    f"view {GOOD} --text 'caf\xe9 \u4e16\u754c the cat' --out new/folder/page.html": "wrote new/folder/page.html",
    "train softmax --set steps=2e0 --set model.n_layers=2 --device cpu --out run": "trained: run",
    "reproduce table03 --scale smoke --dry-run": "runs",
}


@pytest.mark.parametrize("line", FINE, ids=range(len(FINE)))
def test_an_odd_line_that_is_right_gives_the_right_result(files, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(app, _words(line.format(files=files)))
    assert result.exit_code == 0 and FINE[line] in " ".join(result.stdout.split()), result.output
