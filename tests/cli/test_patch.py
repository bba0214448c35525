"""`sinkinterp patch` and `sinkinterp explain`, from the command line."""

import pytest
from cli.test_view import gpt2  # noqa: F401
from typer.testing import CliRunner

from sinkinterp.cli.main import app


def run(*words, command="patch"):
    result = CliRunner().invoke(app, [command, *map(str, words)])
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    "options, says",
    [
        ("--site residual", "ChangeResidual, clean into corrupted"),
        ("--site heads --head 1.1", "ChangeOutputs, clean into corrupted"),
        ("--site heads --first-order", "first order: wrong by"),
        ("--site heads --direct", "direct: written into the logits"),
        ("--site edges --head 1.1", "ChangePattern, clean into corrupted"),
        ("--site paths", "path from ChangeOutputs to the logits"),
        ("--site paths --to 1.1.k", "path from ChangeOutputs to ChangeKeys 1.1;"),
    ],
)
def test_the_map_is_printed_and_drawn(gpt2, tmp_path, options, says):  # noqa: F811
    page = tmp_path / "page.html"
    words = ("--clean", "the cat sat", "--corrupted", "the the sat", "--answer", "cat", "--instead", "sat")
    code, output = run(gpt2, *words, *options.split(), "--out", page)
    assert code == 0 and "logit difference: clean" in output and "restored" in output and says in output, output
    assert "Clean: the cat sat. Corrupted: the the sat." in page.read_text()


def test_prompts_and_answers_that_do_not_fit_are_one_line(gpt2, tmp_path):  # noqa: F811
    both, page = ("--clean", "the cat", "--corrupted", "the cat sat"), tmp_path / "page.html"
    for words, message in (
        (both, "of one length in tokens; here (1, 2) and (1, 3)"),
        ((*both[:2], "--corrupted", "the sat", "--answer", "cat"), "give --answer and --instead together"),
        ((*both, "--site", "edges"), "name them, such as --head 3.7"),
        ((*both, "--head", "1.1"), "--head goes with --site heads or --site edges"),
        ((*both, "--to", "1.1.k"), "add --site paths"),
        ((*both, "--site", "paths", "--to", "1.1"), "such as 3.7.k; got '1.1'"),
        ((*both, "--site", "paths", "--to", "x.k"), "--to takes a layer and a head"),
        ((*both, "--site", "paths", "--first-order"), "--first-order estimates no paths"),
        ((*both, "--site", "paths", "--direct"), "--direct goes with --site heads"),
        ((*both[:2], "--corrupted", "the sat", "--answer", "a b", "--instead", "cat"), "is 2 tokens of"),
    ):
        code, output = run(gpt2, *words, "--out", page)
        assert code == 2 and message in output and not page.exists(), output


def test_a_sink_is_explained_in_a_sentence_and_on_a_page(tmp_path):
    page = tmp_path / "page.html"
    code, output = run("sinkinterp/demo-softmax", "--sequences", 16, "--length", 16, "--html", page, command="explain")
    assert code == 0 and "Head 0.0 gives the first token 0.7" in output and "from the keys' position (" in output
    assert "position cut: 0." in page.read_text() and "Which pairs of parts make the score?" in page.read_text()


def test_a_head_is_explained_with_what_it_writes_into_an_answer(gpt2):  # noqa: F811
    words = ("--text", "the cat sat", "--head", "1.1", "--answer", "cat", "--instead", "sat", "--full")
    code, output = run(gpt2, *words, command="explain")
    assert code == 0 and "itself into the logit of 'cat' less 'sat'" in output and "into the answer" in output, output
