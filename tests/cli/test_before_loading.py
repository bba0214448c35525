"""What is wrong with the options of a command is said before a model is loaded, which takes seconds."""

import shlex

import pytest

from sinkinterp.backends import load
from sinkinterp.cli.main import app

FILES = {
    "texts.csv": "a,b\n1,2\n",
    "blank.txt": " \n",
    "plain.txt": "Hello there.\n",
    "bad.json": "{]",
    "texts.json": '["a"]',
}
OF_TEXT = {
    "--text nosuch.txt": "there is no file nosuch.txt",
    "--text texts.csv": "name the column",
    "--text blank.txt": "holds no text",
}
OF_IDS = {"--tokens bad.json": "cannot read bad.json", "--tokens texts.json": "cannot read texts.json"}
OF_BACKEND = {"--backend foo": "choose from huggingface, nnsight"}
COMMANDS = {
    "measure": OF_TEXT | OF_IDS | OF_BACKEND,
    "explain": OF_TEXT,
    "view": OF_TEXT | OF_BACKEND,
    "cache": OF_TEXT | OF_IDS,
    "mask": OF_TEXT | OF_IDS,
    "serve": OF_BACKEND,
}
WRONG = {
    **{f"{command} M {given}": said for command, of_it in COMMANDS.items() for given, said in of_it.items()},
    "measure M --chat no.jsonl": "there is no file",
    "measure M --chat plain.txt": "is not a chat",
    "measure M --encoder silence": "has no encoder",
    "view M --head foo": "such as 3.7",
    "view M --head 99.9": "99",
    "explain M --head 0.7": "7",
    "patch M --clean a --corrupted b --site heads --head 99.9": "99",
    "measure M --length 4000": "context of 128; use --length 128",
    "view M --length 4000 --text hello": "context of 128; use --length 128",
    "domains M plain.txt --length 4000": "context of 128; use --length 128",
    "mend M --out out --length 4000": "context of 128; use --length 128",
    "cache M --length 2": "use --length 4, or more",
    "compare M nosuch/model/there": "there is no folder nosuch/model/there",
    "compare M nosuch": "cannot load nosuch",
    "measure nosuch/model/there": "there is no folder nosuch/model/there",
    "measure figures/": "there is no folder figures/",
    "explain M --answer Paris": "together",
    "patch M --clean a --corrupted b --answer x": "together",
    "measure M --save numbers.foo": "is not saved as .foo",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_option_is_refused_before_the_model_is_loaded(line, tmp_path, monkeypatch, capsys):
    def loaded(*given):
        pytest.fail(f"{line} loads the model first")

    monkeypatch.setattr(load, "load_model", loaded)
    monkeypatch.chdir(tmp_path)
    for name, inside in FILES.items():
        (tmp_path / name).write_text(inside)
    with pytest.raises(SystemExit) as stop:
        app(shlex.split(line.replace(" M", " sinkinterp/text-softmax")))
    assert stop.value.code == 2 and WRONG[line] in " ".join(capsys.readouterr().err.split())


def test_texts_beyond_the_context_have_a_way_out_that_the_command_line_has_too(tmp_path, capsys):
    load.load("sinkinterp/text-softmax").model.to_llama().save_pretrained(tmp_path)
    line = ["measure", str(tmp_path), "--drawn", "repeat", "--length", "200", "--sequences", "1"]
    with pytest.raises(SystemExit):
        app(line)
    said = " ".join(capsys.readouterr().err.split())
    assert "load it with --beyond-context to read on" in said and "beyond_context" not in said
    with pytest.raises(SystemExit):
        app([*line, "--beyond-context", "--first-only"])
    assert "is no limit" in " ".join(capsys.readouterr().out.split())
