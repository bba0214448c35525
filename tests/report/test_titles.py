"""A title is a finding that reads the numbers, or names what is shown, or asks."""

import ast
import math
import re
from pathlib import Path

import pytest
import torch
from refusals import refused
from transformers import GPT2Config, GPT2LMHeadModel

import sinkinterp as si
from sinkinterp.applications.eviction import first_token_losses, heads_table, streaming_table
from sinkinterp.applications.outliers import mask
from sinkinterp.applications.position_swap import swap_table
from sinkinterp.applications.quantising import cache_table
from sinkinterp.measurement.activation_patching import activation_patching
from sinkinterp.measurement.explaining import explain
from sinkinterp.measurement.place_or_token import place_or_token
from sinkinterp.measurement.sweep import sweep
from sinkinterp.metrics import instruments
from sinkinterp.metrics.importance import PATTERNS
from sinkinterp.pages.report import colored_tokens, measurement_page
from sinkinterp.report.report import VIEWS
from sinkinterp.report.summary import compare

VOCAB = 61
ROOT = Path(si.__file__).parents[1]
SHOWN = ("Table.of", "Table", "Section", "themed", "page")  # functions whose first argument is a title
VERBS = re.compile(
    r"\b(is|are|was|has|have|does|do|makes?|move[sd]?|follows?|go(es)?|comes?|removes?|needs?|takes?|loses?|ends?|looks?"
    r"|carr(y|ies)|gives?|writes?|holds?|costs?|sinks in|only|never|always|no)\b"
)

ASKS = re.compile(r"(^|: )(where|what|which|how|why) |\?$", re.IGNORECASE)
READS_NUMBERS = {  # each is seen to be another one for other numbers, below
    "The largest number is {}, of {}. Point at a token for its number."
}
SHOWN_AS_CLAIMS = "CLAIM"  # of an experiment: `reproduce` and the book print "The claim:" before it


def values_by_name(tree):
    """The expressions that a file gives to each of its names."""
    values = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                values.setdefault(ast.unparse(target), []).append(node.value)
    return values


def texts_of(node, values):
    """The texts that an expression may have, with {} for what is known when it runs."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            texts = [""]
            for part in parts:
                texts = [text + more for text in texts for more in texts_of(part, values) or ["{}"]]
            return texts
        case ast.FormattedValue(value=inner):
            return texts_of(inner, values)
        case ast.IfExp(body=body, orelse=other):
            return texts_of(body, values) + texts_of(other, values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [a + b for a in texts_of(left, values) or ["{}"] for b in texts_of(right, values) or ["{}"]]
        case ast.Name(id=name) if name in values and name != SHOWN_AS_CLAIMS:
            rest = {other: given for other, given in values.items() if other != name}
            return [text for value in values[name] for text in texts_of(value, rest)]
    return []


def titles_in_code():
    for file in sorted([*ROOT.glob("sinkinterp/**/*.py"), *ROOT.glob("experiments/**/*.py")]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        values = values_by_name(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                named = [word.value for word in node.keywords if word.arg in ("title", "heading", "lead")]
                for title in [*named, *(node.args[:1] if ast.unparse(node.func) in SHOWN else ())]:
                    for text in texts_of(title, values):
                        yield file, text


def is_claim(text):
    return bool(VERBS.search(text)) and not ASKS.search(text)


def test_a_title_names_what_is_shown_or_asks_or_reads_numbers():
    titles = [*titles_in_code()]
    assert len(titles) > 100 and {text for _, text in titles} > READS_NUMBERS
    assert [found for found in titles if is_claim(found[1]) and found[1] not in READS_NUMBERS] == []


@pytest.fixture(scope="module")
def flat():
    """A model with learned positions and small random weights: attention is uniform, and there is no sink."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=12, n_layer=3, n_head=2, initializer_range=0.002)
    return si.load(GPT2LMHeadModel(config).eval())


TOKENS = torch.randint(VOCAB, (5, 23), generator=torch.Generator().manual_seed(1))
NO_SINK = "no sink to speak of"
TITLES = {
    "swap": (lambda model: swap_table(model, TOKENS, [4, 9]).title, "there is no sink to follow p1"),
    "verdict": (lambda model: si.measure(model, TOKENS).summary().sentence, NO_SINK),
    "report": (lambda model: measurement_page(si.measure(model, TOKENS), 0.3), NO_SINK),
    "view": (lambda model: si.view(model, TOKENS[:1], open_browser=False).html, NO_SINK),
    "explain": (lambda model: explain(model, TOKENS).sentence, "not above uniform attention"),
    "cache": (lambda model: first_token_losses(model, TOKENS, (6, 11)).answer(), "Keep no first tokens"),
    "reproduce": (lambda model: si.reproduce("table07", "sinkinterp/demo-sigmoid").title, "The claim: "),
}


@pytest.mark.parametrize("name", TITLES)
def test_what_is_said_of_a_model_without_a_sink_is_true_of_it(name, flat):
    shown, words = TITLES[name]
    assert words in shown(flat)


def test_the_lead_of_shaded_tokens_names_the_largest_number_and_each_token_takes_one():
    html = colored_tokens(["a", "b"], torch.tensor([1.0, -3.0])).html
    assert "The largest number is -3, of &#39;b&#39;" in html and html.count(" 70.0%") == 1 and 'title="1"' in html
    for values in ([1.0], [[1.0], [2.0]], [1.0, math.nan], ["1", "2"]):
        refused(lambda values=values: colored_tokens(["a", "b"], values), "finite numbers")


TEXTS = [
    f"Return the number of {what} that the list holds, or None if it is empty and has no items."
    for what in ("items", "words", "rows", "names", "keys")
]
EVERY = [*instruments.INSTRUMENTS.values(), (PATTERNS,)]
TABLES = {
    "report": lambda model, ids: [view.table(measured(model, ids), 0.3, str) for view in VIEWS],
    "explanation": lambda model, ids: explain(model, ids).tables(),
    "cache": lambda model, ids: [first_token_losses(model, ids, (6, 11)).table(), heads_table(model, ids, 7)],
    "rounded cache": lambda model, ids: [cache_table(model, ids, (4,)), streaming_table(model, ids, window=11)],
    "mask": lambda model, ids: [mask(model, ids).table()],
    "patching": lambda model, ids: [activation_patching(model, ids[:2], ids[2:4], progress=False)],
    "sweep": lambda model, ids: [sweep(model, ids, [si.SwapPositions(0, 4)], progress=False)],
    "place": lambda model, ids: [place_or_token(model, ids, positions=[5])],
    "change": lambda model, ids: [compare(measured(model, ids), si.measure(model, ids[:, :11], instruments=EVERY))],
}


def measured(model, ids):
    return si.measure(model, ids, instruments=EVERY)


def titles_of(tables, name):
    """The titles of tables and of their figures, the model's name left out."""
    figures = (table.plot().layout.title.text for table in tables if table.draw is not None and len(table.frame))
    return {
        title.replace(name, "").replace(name.rpartition("/")[2], "") for title in (*(t.title for t in tables), *figures)
    }


@pytest.fixture(scope="module")
def twins():
    """Two models of one vocabulary: with a sink and without."""
    return [si.load(f"sinkinterp/text-{name}") for name in ("softmax", "sigmoid")]


@pytest.mark.parametrize("name", TABLES)
def test_a_title_that_claims_something_of_a_sink_is_another_one_without_it(name, twins):
    ids = twins[0].tokens(TEXTS, length=23, bos="always").tokens
    with_sink, without = (titles_of(TABLES[name](model, ids), model.name) for model in twins)
    assert {title for title in with_sink if is_claim(title)}.isdisjoint(without)
