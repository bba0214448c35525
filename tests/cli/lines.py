"""A command line for every option of every command, and the options that a command has."""

import shlex

from typer.main import get_command

from sinkinterp.cli.main import app

COMMANDS = get_command(app).commands
OURS, TEXTUAL, TWIN = "sinkinterp/demo-softmax", "sinkinterp/text-softmax", "sinkinterp/text-sigmoid"
DRAWN = "--drawn random --seed 3 --length 11 --sequences 3"
LOADING = "--dtype float32 --device-map cpu"
BACKEND = f"{LOADING} --backend nnsight --beyond-context"
PROMPTS = "--clean 'Return the first item.' --corrupted 'Return the last item.'"
RUNS = {
    "measure": (
        f"measure {OURS} {DRAWN} {LOADING} --first-only --save a.csv --out a.html --force",
        f"measure {TEXTUAL} --text rows.jsonl --column said --length 7 --sequences 2 --bos always --epsilon 0.2 --full",
        f"measure {OURS} --tokens ids.json --length 5 --backend nnsight --edit 'SwapPositions(0, 4)' --format json",
        f"measure {TEXTUAL} --prompt 'a text of words' --preset paper --table angles --layer 1 --top 2",
        f"measure {TEXTUAL} --prompt 'a text of words' --table sinks --head 0.0",
        f"measure {TEXTUAL} --prompt 'a text of words' --table positions --position 2 --format csv",
        "measure bart --drawn random --length 7 --sequences 2 --encoder off --first-only",
        "measure llama --drawn random --length 140 --sequences 2 --beyond-context --first-only",
    ),
    "compare": (
        f"compare {OURS} sinkinterp/demo-sigmoid {DRAWN} {LOADING} --first-only --save a.json --out a.html --force",
        f"compare {TEXTUAL} {TWIN} --prompt 'a text of words' --edit 'RemoveColumn()' --epsilon 0.2 --format csv",
        f"compare {TEXTUAL} {TWIN} --text rows.jsonl --column said --length 7 --sequences 2 --preset paper --bos never",
        f"compare {OURS} --tokens ids.json --length 5 --edit 'SwapPositions(0, 4)' --backend nnsight",
        "compare bart --edit 'RemoveColumn()' --drawn random --length 7 --sequences 2 --encoder off",
        "compare llama --edit 'RemoveColumn()' --drawn random --length 140 --sequences 2 --beyond-context",
    ),
    "view": (
        f"view {TEXTUAL} --prompt 'a text of words' --bos never --head 0.0 {LOADING} --out a.html --force --no-open",
        f"view {TEXTUAL} --text rows.jsonl --column said --length 7 --layer 1 --edit 'RemoveColumn()' --out b.html",
        "view llama --prompt 'a text' --backend nnsight --beyond-context --length 7 --out c.html",
        "view bart --encoder off --prompt 'word3 word4 word5' --out d.html",
        f"view {OURS} --tokens ids.json --out e.html",
    ),
    "explain": (
        f"explain {OURS} {DRAWN} --head 0.0 {LOADING} --full --save a.json --out a.html --force",
        f"explain {TEXTUAL} --prompt 'a text of words' --answer ' the' --instead ' a' --format json",
        f"explain {TEXTUAL} --text rows.jsonl --column said --length 7 --sequences 2 --bos never",
        f"explain {TEXTUAL} --place --prompt '{'a text of words ' * 12}' --save a.json --out a.html --force",
        f"explain {OURS} --tokens ids.json --length 5",
    ),
    "patch": (
        f"patch llama {PROMPTS} --sink --site heads --head 0.0 {BACKEND} --out a.html --force",
        f"patch {TEXTUAL} {PROMPTS} --first-order",
        f"patch {TEXTUAL} {PROMPTS} --answer ' the' --instead ' a' --site heads --direct --layer 1 --full --save a.csv",
        f"patch {TEXTUAL} --into {TWIN} --prompt 'a text of words' --position 0 --format json",
        f"patch {TEXTUAL} {PROMPTS} --site paths --to 1.0.k",
    ),
    "check": (f"check {OURS} --format csv",),
    "mend": (
        f"mend {TEXTUAL} --out run --text paragraphs.txt --length 24 --seed 1 --device cpu --format json",
        f"mend {TEXTUAL} --out other --with sink_logit --weights none --penalty 2 --steps 1 --text paragraphs.txt"
        " --length 24 --set batch=2",
    ),
    "cache": (
        f"cache {OURS} {DRAWN} {LOADING} --tolerance 0.2 --bits 4 --full --save a.json --out a.html --force",
        f"cache {TEXTUAL} --prompt 'a text of many words that is cached' --format json",
        f"cache {TEXTUAL} --text rows.jsonl --column said --length 7 --sequences 2 --bos never",
        f"cache {OURS} --tokens ids.json --length 5",
    ),
    "mask": (
        f"mask {OURS} {DRAWN} {LOADING} --times 5 --full --save a.json --out a.html --force",
        f"mask {TEXTUAL} --text rows.jsonl --column said --length 7 --sequences 2 --bos never --format json",
        f"mask {OURS} --tokens ids.json --length 5 --heads",
    ),
    "train": (
        "train sigmoid --recipe demo --set steps=2 --seed 1 --device cpu --out run",
        "train softmax --recipe text-repeats --text paragraphs.txt --dry-run",
    ),
    "demo": ("demo --seed 1 --format json --out a.html --force",),
    "reproduce": (
        "reproduce table07 --scale smoke --seeds 1 --dry-run --out book",
        f"reproduce figure19 --model {OURS} --device-map cpu --format json --save a.csv --out book --force",
        "reproduce figure09 --scale real --text paragraphs.txt --dry-run",
        "reproduce table03 --scale demo --set steps=2 --dry-run",
        "reproduce figure19 --model bart --encoder off --dry-run",
    ),
    "list": ("list variants --format json",),
    "serve": (f"serve llama --bos never --port 0 {BACKEND} --no-open", "serve bart --encoder off --no-open"),
}
REFUSED = {  # options that need what is not here, or that these models lack: the line, and what its error says
    "reproduce table07 --scale smoke --ray nowhere:1 --out book": "ray",
    f"explain {OURS} {DRAWN} --encoder off": "encoder",
    f"cache {OURS} {DRAWN} --encoder off": "encoder",
    f"mask {OURS} {DRAWN} --encoder off": "encoder",
    f"patch {TEXTUAL} {PROMPTS} --encoder off": "encoder",
    f"measure {TEXTUAL} --prompt 'a text of words' --table norms --top 2": "leave --top out",
}


def options_of(command: str) -> set[str]:
    """The options of a command, without --help."""
    params = COMMANDS[command].params
    options = {name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")}
    return options - {"--help"}


def given_in(line: str) -> set[str]:
    """The options that a line gives."""
    return {word for word in shlex.split(line) if word.startswith("--")}
