import json
import sys
from dataclasses import replace
from functools import cache
from math import isnan
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backends.zoo import model_of
from corpora import byte_tokenizer
from pages.shipped import chapters
from refusals import refused
from runs.choices import accuracy_by_hand
from sinkinterp._experiments.book.__main__ import draw_again
from sinkinterp._experiments.book.chapter import Chapter, write_numbers
from sinkinterp._experiments.shared import cases, fine_tuning
from sinkinterp._experiments.shared.cases import open_case
from sinkinterp._experiments.shared.study import NUMBERS, measured

import sinkinterp as si
from experiments.book import models as book_models, verdicts
from experiments.shared.corpora import long_texts
from sinkinterp._experiments import experiment_names, load_module, summary_of
from sinkinterp.applications import position_swap
from sinkinterp.applications.position_swap import paper_targets
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.backends.encoder import Silence
from sinkinterp.checks import InputError
from sinkinterp.cli import reproducing
from sinkinterp.data import sources
from sinkinterp.data.choices import Bos, Scale
from sinkinterp.data.progress import silent
from sinkinterp.data.tokens import random_tokens, repeated_token
from sinkinterp.lm.model import build
from sinkinterp.runs import trained as trained_runs
from sinkinterp.runs.experiment import TRAINED, Scope, load_experiment
from sinkinterp.runs.workers import Here
from sinkinterp.table import REASON, STATE
from sinkinterp.train.recipe import demo_recipe

pytestmark = pytest.mark.timeout(600)  # the first test waits for all experiments
TABLE07, CIRCUIT, TWINS = "table07_position_swap", "gpt2_circuit", "twins"
SOFTMAX = "sinkinterp/demo-softmax"


@pytest.fixture(scope="module", autouse=True)
def few():
    """67 sequences in place of 512, 16 in place of 256 while models train, 67 chats in place of 2,000.

    Mended models are read at a quarter of their length. The docstrings are read once.
    """
    docstrings = cache(sources.read_record)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "read_record", lambda file, of: docstrings(file))
        patch.setattr(cases, "OUR_SEQUENCES", 67)
        patch.setattr("sinkinterp.runs.trained.EVALUATION_SEQUENCES", 16)
        read = fine_tuning.read_chats
        patch.setattr(fine_tuning, "read_chats", lambda data: (read(data)[0][:67], read(data)[1]))
        for size, few in {"LONG": 128, "LONG_SEQUENCES": 2, "SEQUENCES": 5}.items():
            patch.setattr(load_module("mended_models"), size, few)
        yield


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """The folder of a tiny random GPT-2 without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    model_of("gpt2").save_pretrained(folder)
    return str(folder)


def accuracy_without_harness(source, task, documents):
    share = accuracy_by_hand(source, 5)
    error = (share * (1 - share) / 4) ** 0.5
    return {"acc": share, "acc_norm": share, "acc_stderr": error, "acc_norm_stderr": error}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Every experiment's table at scale smoke.

    All models are trained, and the first of each task is evaluated for the others. The first and last model of a study
    are measured; every number of the others is 0.5.
    """
    scope = Scope(Scale.SMOKE, seeds=1, workers=Here(), cache=tmp_path_factory.mktemp("cache"))
    names, rows, evaluations = experiment_names(), {}, {}
    recipes = [load_experiment(name).recipes(scope) for name in names]
    chosen = {recipe.key() for each in recipes if each for recipe in (each[0], each[-1])}

    def measured_once(recipe, sequences, cache=None, more=None):  # several studies share a row
        asked = recipe.key(), sequences, more
        if asked not in rows and more is None and recipe.key() not in chosen:
            curve = [
                (row["valid_loss"], row["alpha_1"]) for row in trained_runs.trained(recipe, cache).history().records()
            ]
            rows[asked] = {STATE: TRAINED} | dict.fromkeys(NUMBERS, 0.5), curve
        if asked not in rows:
            rows[asked] = measured(recipe, sequences, cache, more)
        return rows[asked]

    def evaluated_once(task, objective, evaluation_on=trained_runs.evaluation_on):
        evaluate = evaluation_on(task, objective)
        return lambda model: evaluations.get(task.title) or evaluations.setdefault(task.title, evaluate(model))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[measured.__module__], "measured", measured_once)
        patch.setattr(trained_runs, "evaluation_on", evaluated_once)
        figure10 = load_module("figure10_downstream")
        patch.setattr(figure10, "accuracy", accuracy_without_harness)  # tests/runs/test_downstream.py compares the two
        return {name: load_experiment(name).table(scope) for name in names}


@pytest.fixture
def call(call):
    """Runs the command; returns exit code, output, and the files that it left."""
    return lambda *words: (*call(*words), sorted(str(path) for path in Path().rglob("*.*")))


def book_of(folder, name):
    """The files of a book with one chapter."""
    return sorted(f"{folder}/{file}" for file in ("index.html", "plotly.min.js", f"{name}.html", f"{name}.json"))


def cuts(table):
    return {row["cut"]: row for row in table.records()}


def test_every_experiment_runs_at_smoke_scale_and_draws(smoke):
    for name, table in smoke.items():
        experiment = load_experiment(name)
        assert table.title == experiment.claim and table.note and table.records(), name
        assert len(experiment.draw(table).data) > 0 and len(experiment.digest(table).frame), name
        assert {Scale.SMOKE} < set(experiment.scales), name


def test_all_runs_what_can_run_and_names_what_it_leaves_out(call, monkeypatch):
    names = ["text_twins", "gpt2_circuit", "propositions"]
    monkeypatch.setattr("sinkinterp.cli.reproducing.experiment_names", lambda: names)
    code, output, files = call("reproduce", "all", "--scale", "demo", "--seeds", 1, "--out", "book")
    assert code == 0 and files == book_of("book", "propositions") and "left out" not in output
    code, output, files = call("reproduce", "all", "--seeds", 1, "--out", "book", "--force")
    assert code == 0 and files == book_of("book", "propositions")
    assert "left out: text_twins: it trains for hours" in output
    assert "left out: gpt2_circuit: its models are not here" in output
    monkeypatch.setattr("sinkinterp.cli.reproducing.experiment_names", lambda: ["mended_models"])
    code, output, files = call("reproduce", "all", "--scale", "real", "--dry-run")
    assert code == 0 and "left out: mended_models: it trains genuine models for hours" in output


def test_a_book_is_drawn_again_from_its_numbers(call):
    call("reproduce", "propositions", "--scale", "demo", "--seeds", 1, "--out", "book")
    page, numbers = Path("book/propositions.html"), Path("book/propositions.json")
    before, plain = page.read_text(), json.loads(numbers.read_text())
    page.unlink()
    stale = [verdict | {"outcome": "fails"} for verdict in plain["verdicts"]]
    write_numbers(Path("book"), Chapter.from_dict(plain | {"verdicts": stale}))
    draw_again(Path("book"))
    assert json.loads(numbers.read_text()) == plain
    assert sorted(str(path) for path in Path().rglob("*.*")) == book_of("book", "propositions")
    assert page.read_text() == before and 'id="figure-propositions"' in Path("book/index.html").read_text()


WRONG_CHAPTERS = {
    "rows of something else": lambda plain: plain | {"rows": [{"x": 1.0}]},
    "rows of different columns": lambda plain: plain | {"rows": [{"x": 1.0}, {"y": 1.0}]},
    "no rows": lambda plain: plain | {"rows": None},
    "another outcome": lambda plain: plain | {"verdicts": [{"claim": "", "outcome": "great", "reason": ""}]},
    "another name": lambda plain: plain | {"name": "../propositions"},
    "a surplus field": lambda plain: plain | {"more": 1},
}


def test_a_book_with_a_wrong_chapter_is_left_as_it_is(call):
    call("reproduce", "table07", "propositions", "--scale", "smoke", "--seeds", 1, "--out", "book")
    wrong = Path("book/table07_position_swap.json")
    plain = json.loads(wrong.read_text())
    for name, change in WRONG_CHAPTERS.items():
        wrong.write_text(json.dumps(change(plain)))
        before = {path: path.read_bytes() for path in Path("book").iterdir()}
        with pytest.raises(InputError) as error:
            draw_again(Path("book"))
        assert str(error.value).startswith(f"{wrong} "), name
        assert {path: path.read_bytes() for path in Path("book").iterdir()} == before, name


def test_every_experiment_has_a_verdict_on_every_rule(smoke):
    for name, table in smoke.items():
        verdicts = load_experiment(name).verdicts(table)
        assert verdicts and all(verdict.claim and verdict.reason for verdict in verdicts), name
        assert len({verdict.claim for verdict in verdicts}) == len(verdicts), name


def test_every_experiment_says_in_one_line_what_it_is():
    summaries = list(map(summary_of, experiment_names()))
    assert all(30 < len(summary) <= 120 for summary in summaries) and len(set(summaries)) == len(summaries)


@pytest.mark.parametrize("given", ["repeated", "random", "natural"])
def test_the_sink_goes_where_p1_goes(smoke, given):
    rows = smoke[TABLE07].where(input=given)
    assert rows.where(edit="none").numbers("Sink_1") > [0.9]
    swapped, replaced, control = (rows.where(edit=edit) for edit in ("p1 <-> p_t", "p1 <- p_t", "p_t <-> p_t+1"))
    assert swapped.frame["t"].tolist() == replaced.frame["t"].tolist() == control.frame["t"].tolist() == [5, 10, 13]
    assert max(swapped.numbers("Sink_1")) < 0.1 and min(swapped.numbers("Sink_t")) > 0.9
    assert max(replaced.numbers("Sink_1")) < 0.35 and max(replaced.numbers("Sink_t")) < 0.1
    assert set(control.numbers("Sink_1")) == set(rows.where(edit="none").numbers("Sink_1"))
    assert max(control.numbers("Sink_t")) == 0


@pytest.mark.parametrize(
    ("length", "from_one"),
    [(64, [5, 10, 15, 20, 25, 30]), (33, [5, 10, 15, 20, 25, 30]), (32, [5, 10, 15, 20, 25, 29]), (13, [5, 10])],
)
def test_targets_are_the_papers_and_seen_by_four_queries(length, from_one):
    assert [t + 1 for t in paper_targets(length)] == from_one


def test_a_model_of_transformers_without_tokenizer_is_measured_as_in_the_paper(gpt2, monkeypatch):
    module = load_module(TABLE07)
    monkeypatch.setattr(position_swap, "TARGETS", (5, 30))
    table = module.EXPERIMENT.table(Scope(Scale.SMOKE, models=[gpt2]))
    assert {row["input"] for row in table.records()} == {"random", "repeated"} and "n=100, T=64, BOS none" in table.note
    assert [row["t"] for row in table.where(input="random", edit="p1 <- p_t").records()] == [5, 30]


def test_text_begins_with_bos_where_the_tokenizer_has_one(tmp_path, monkeypatch):
    byte_tokenizer("<s>").save_pretrained(tmp_path)
    build(replace(si.VARIANTS["llama"], vocab=257)).save_pretrained(tmp_path)
    monkeypatch.setattr(
        "sinkinterp.measurement.measure.embedded_texts", lambda *_: ["a sink is a first token", "short"] * 3
    )
    case = open_case(str(tmp_path))
    assert case.bos is Bos.ALWAYS and open_case(SOFTMAX).bos is Bos.NEVER
    assert case.natural_tokens((3, 11), case.bos).tokens[:, 0].tolist() == [256] * 3
    assert 256 not in case.natural_tokens((3, 11), Bos.NEVER).tokens


def test_the_twins_differ_in_their_sinks_at_equal_loss(smoke):
    rows = {row["model"]: row for row in smoke[TWINS].records()}
    assert rows["softmax"]["Sink_1"] > 0.9 > 0.1 > rows["sigmoid"]["Sink_1"] and rows["k_bias"]["Sink_*"] > 0.9
    assert max(row["loss"] for row in rows.values()) - min(row["loss"] for row in rows.values()) < 0.01
    assert rows["k_bias"]["paper Sink_*"] == 0.7334


def test_a_cut_that_a_model_cannot_have_is_empty_and_says_why(smoke):
    rows = cuts(smoke[CIRCUIT])
    reasons = {name: row["empty because"] for name, row in rows.items() if row["empty because"]}
    later = "no block after the first attends"
    assert reasons == {
        "b_Q = 0": "layer 0 has no such bias to zero", "control: b_K = 0": "layer 0 has no such bias to zero",
        "swap p1's EPE": later, "control: swap raw p1": later, "no first MLP": later,
    }  # fmt: skip
    assert all((row["left"] is None) == (name in reasons) for name, row in rows.items())


def test_without_positions_nothing_is_left_but_uniform_attention(smoke):
    rows = cuts(smoke[CIRCUIT])
    assert rows["no positions"]["left"] == pytest.approx(rows["null: uniform attention"]["left"], abs=0.03)
    assert rows["control: no first token"]["left"] == pytest.approx(1, abs=0.03)


def test_the_cuts_of_a_gpt2_are_what_they_say(gpt2):
    """Against the same model with its parameters changed by hand."""
    module = load_module(CIRCUIT)
    rows = cuts(module.measure(open_case(gpt2), silent))
    assert rows["control: b_K = 0"]["left low"] == pytest.approx(1, abs=1e-5) == rows["control: b_K = 0"]["left high"]
    assert rows["b_Q = 0"]["left high"] < 0.999 and not any(row["empty because"] for row in rows.values())
    tokens = random_tokens(97, 64, 25).tokens

    def alpha(change):
        model = model_of("gpt2")
        with torch.no_grad():
            change(model.transformer)
        return si.measure(si.load(model), tokens, positions=(0,)).alpha().mean().item()

    def without_query_bias(model):
        for block in model.h:
            block.attn.c_attn.bias[:48] = 0

    by_hand = {
        "none": lambda model: None,
        "b_Q = 0": without_query_bias,
        "drop p1": lambda model: model.wpe.weight[0].zero_(),
        "no positions": lambda model: model.wpe.weight.zero_(),
        "no first MLP": lambda model: [p.zero_() for p in model.h[0].mlp.c_proj.parameters()],
    }
    found = {name: rows[name]["alpha_1"] for name in by_hand}
    assert found == pytest.approx({name: alpha(change) for name, change in by_hand.items()}, abs=1e-6)


def test_columns_are_those_in_which_the_first_token_is_largest():
    circuit = load_module(CIRCUIT)
    first = torch.zeros(2, 3, 11)
    first[:, 1, 4], first[:, 1, 7], first[:, 1, 2] = -9, 5, 3
    first[:, 0, 0], first[0, 1, 9], first[:, 2] = 8, 5, 100  # smaller; in one sequence only; where nothing attends
    report = SimpleNamespace(attention_layers=(0, 1), extra=lambda metric: {circuit.FIRST_RESIDUAL: first}[metric])
    assert circuit._largest(report) == (1, (4, 7, 2))


def test_a_recipe_is_trained_once_and_measured_under_the_name_of_its_variant(tmp_path):
    reports = []
    recipes = [demo_recipe("k_bias", seed, steps=2) for seed in (3, 5)]

    def progress(work):
        return lambda done, total: reports.append((work, done, total))

    scope = Scope(Scale.DEMO, models=recipes, seeds=6, progress=progress, cache=tmp_path)
    for _ in range(2):
        table = load_experiment(TWINS).table(scope)
    assert [(row["model"], row["seed"]) for row in table.records()] == [("k_bias", 3), ("k_bias", 5)]
    assert reports.count(("training k_bias, seed 3", 2, 2)) == 1
    assert table.note.count("n=67") == 1  # of both models, said once


def test_the_command_writes_the_table_that_it_prints(call):
    code, output, files = call("reproduce", "table07", "--scale", "smoke")
    rows = json.loads(Path(f"figures/book/{TABLE07}.json").read_text())["rows"]
    assert code == 0 and files == book_of("figures/book", TABLE07)
    swapped = next(row for row in rows if row["edit"] == "p1 <-> p_t" and row["input"] == "repeated")
    assert (
        f"{100 * swapped['Sink_t']:.1f}" in output
        and len(output.splitlines()) <= 40
        and "n=67, T=16" in output
        and swapped["model"] == SOFTMAX
    )


def test_an_atlas_has_a_row_for_each_model_that_is_named(call):
    code, _, files = call(
        *("reproduce", "atlas_of_models", "--model", SOFTMAX, "--model", "sinkinterp/demo-k_bias", "--out", "here")
    )
    assert code == 0 and files == book_of("here", "atlas_of_models")
    rows = json.loads(Path("here/atlas_of_models.json").read_text())["rows"]
    sinks = {row["model"]: row["Sink_1 without BOS"] for row in rows}
    assert sinks[SOFTMAX] > 0.9 and sinks["sinkinterp/demo-k_bias"] < 0.1


def test_the_module_is_the_command(capsys):
    from runpy import run_module

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr("sys.argv", ["experiments", "nonsense"])
        run_module("experiments", run_name="__main__")
    assert end.value.code == 2 and "no experiment begins with 'nonsense'" in capsys.readouterr().err


def test_an_installation_without_experiments_says_so(call, tmp_path, monkeypatch):
    monkeypatch.setattr("sinkinterp._experiments.FOLDER", tmp_path / "site-packages" / "experiments")
    code, output, _ = call("reproduce", "table07")
    assert code == 2 and "no experiment" in output
    refused(lambda: experiment_names())


def test_inputs_are_measured_with_and_without_bos(smoke):
    rows = smoke["table01_inputs"]
    model = si.load(rows.records()[0]["model"])
    tokens = repeated_token(model.shape.vocab, 64, 67).tokens
    repeated = rows.where(input="repeated", BOS="none")
    assert repeated.numbers("alpha_1") == pytest.approx([si.measure(model, tokens).alpha().mean().item()], abs=1e-6)
    assert repeated.numbers("null Sink_1") == [0] and repeated.frame["paper GPT2-XL"].tolist() == [0.6228]
    assert [row["input"] for row in rows.records()] == ["natural", "random", "repeated"] * 2
    assert len(set(rows.frame["BOS"].tolist())) == 2


def test_the_scale_is_real_where_its_models_were_made(tmp_path, monkeypatch):
    experiment = load_experiment("table01_inputs")
    monkeypatch.setenv("SINKINTERP_CACHE", str(tmp_path))
    assert experiment.default_scale() is Scale.SMOKE
    (tmp_path / "models" / "smollm2-135m-instruct").mkdir(parents=True)
    assert experiment.default_scale() is Scale.REAL
    assert load_experiment("table04_attention_biases").default_scale() is Scale.DEMO


def test_every_copy_of_a_repeated_token_has_the_same_entries(smoke):
    """Gu et al. 2025, appendix B.1: with rotary positions all hidden states are the same."""
    rows = smoke["massive_activations"].where(input="repeated")
    case = open_case(rows.records()[0]["model"])
    tokens = case.token_sets(case.size(), Bos.NEVER)["repeated"].tokens
    x = case.subject.run(tokens, reads={"x": RESIDUAL.read(lambda x: x)})["x"][:, rows.records()[0]["block"]]
    torch.testing.assert_close(x, x[:, :1].expand_as(x), atol=1e-4, rtol=1e-3)
    dims = rows.frame["dimension"].tolist()
    assert len(dims) == 3 and rows.numbers("first token") == pytest.approx(x[:, 0, dims].mean(0).tolist(), abs=1e-5)
    assert rows.numbers("others |x|") == pytest.approx(x[:, 1:, dims].abs().mean((0, 1)).tolist(), abs=1e-5)


def test_a_patch_that_a_model_cannot_have_is_an_empty_row(smoke):
    rows = {row["edit"]: row for row in smoke["normalisation_patch"].where(layers="all").records()}
    assert rows["b_K = 0"]["Sink_1"] is None and "no such bias" in rows["b_K = 0"][REASON]
    assert rows["none"]["loss change"] == 0 and rows["none"]["Sink_1"] > 0.9
    alpha = [rows[name]["alpha_1"] for name in ("sink logit 5", "softmax-off-by-one", "none")]
    assert alpha == sorted(alpha) and alpha[2] - alpha[1] > 0.1
    assert rows["sink logit 5"]["Sink_*"] > 0.9 and rows["first column dropped"]["Sink_1"] == 0


def test_a_patch_of_the_mean_or_of_another_input_is_smaller_than_what_it_replaces(smoke):
    removed = {row["edit"]: row for row in smoke["removing_massive"].records()}
    change = {name: abs(row["alpha_1"] - removed["none"]["alpha_1"]) for name, row in removed.items()}
    assert change["massive entries to their mean"] < 0.1 * change["massive entries to zero"]
    patched = {row["edit"]: row for row in smoke["patching_massive"].records()}
    assert next(iter(patched)) == "none" and len(patched) == 6 and "alpha_10" in patched["none"]  # and five patches


def test_the_figures_of_a_model_are_what_its_report_says(smoke):
    case = open_case(smoke["figure19_heads"].records()[0]["model"])
    token_set = case.tokens(case.size(), bos=case.start)
    report = si.measure(case.subject, token_set, positions=(0,))
    heads, norms, lengths = (smoke[name] for name in ("figure19_heads", "figure02_norms_angles", "figure03_thresholds"))
    assert heads.numbers("alpha_1") == pytest.approx(report.alpha().mean(0).flatten().tolist(), abs=1e-6)
    first = norms.where(tokens="first token")
    assert first.numbers("residual norm") == pytest.approx(report.residual_norms[..., 0].mean(0).tolist(), rel=1e-5)
    assert isnan(first.frame["key norm"].tolist()[-1])  # no layer reads the last block
    assert sorted(set(lengths.frame["T"].tolist())) == [16, 32, 64, 128]  # the model's context


def test_lengths_are_beginnings_of_the_same_texts(smoke):
    rows = smoke["figure03_thresholds"].where(T=16, epsilon=0.1)
    case = open_case(rows.records()[0]["model"])
    report = si.measure(case.subject, case.tokens(case.size(length=128), bos=case.start).tokens[:, :16])
    assert rows.numbers("Sink_1") == pytest.approx([report.sink_rate(0, 0.1).mean])


def test_norm_ratios_stand_for_every_architecture(smoke):
    rows = smoke["figure07_norm_ratios"]
    ratio = {name: max(rows.where(model=name).numbers("ratio")) for name in rows.frame["model"].tolist()}
    assert ratio["sinkinterp/text-softmax-48k"] > 5 > 1.5 > ratio["sinkinterp/text-k_bias"]


def test_all_caches_agree_until_tokens_are_evicted(smoke):
    rows = smoke["streaming"]
    assert rows.frame["cache"].tolist() == ["all", "0 + 32", "1 + 31", "2 + 30", "4 + 28", "8 + 24"]
    assert rows.numbers("perplexity before") == pytest.approx([rows.numbers("perplexity before")[0]] * 6)


def test_texts_that_are_too_short_to_stream_are_joined(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("\n\n".join(f"The harbour of town {i} was built by {i} monks." for i in range(9)))
    case = open_case("sinkinterp/text-softmax-48k", text=file)
    tokens, source = long_texts(case, (1, 45), joined=7, bos=case.start, progress=silent)
    assert tokens.shape == (1, 45) and source == "mine.txt, each joined from the first 7 tokens of several texts"


@pytest.mark.parametrize("of", [verdicts, book_models])
def test_the_lists_of_verdicts_and_claims_are_those_of_the_book(of):
    assert of.FILE.read_text(encoding="utf-8") == of.page()


def test_the_book_judges_by_the_rules_of_today():
    for chapter in chapters():
        today = load_experiment(chapter.name).verdicts(chapter.table, chapter.scale)
        assert [(v.claim, v.outcome) for v in chapter.verdicts] == [(v.claim, v.outcome) for v in today], chapter.name


def test_the_command_of_a_chapter_names_every_option_that_changes_its_numbers():
    named = {"models": ["local/whisper-tiny.en"], "encoder": Silence()}
    scope = Scope(Scale.REAL, **named, seeds=2, text=Path("my texts.jsonl"))
    assert reproducing._command("table07", scope, "silence") == (
        "sinkinterp reproduce table07 --scale real --seeds 2 --text 'my texts.jsonl' --model local/whisper-tiny.en "
        "--encoder silence"
    )
    assert "--encoder" not in reproducing._command("table07", scope, None)
