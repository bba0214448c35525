"""A title is a finding that reads the numbers, or names what is shown, or asks."""

import ast
import re
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import sinkinterp as si
from sinkinterp.applications.eviction import first_token_losses
from sinkinterp.applications.position_swap import swap_table
from sinkinterp.measurement.explaining import explain
from sinkinterp.pages.report import measurement_page
from sinkinterp.report.heads import heads_above

VOCAB = 61
ROOT = Path(si.__file__).parents[1]
SHOWN = ("Table.of", "Table", "Section", "themed", "page", "cards_page")  # functions whose first argument is a title
VERBS = re.compile(
    r"\b(is|are|was|has|have|does|do|makes?|move[sd]?|follows?|go(es)?|comes?|removes?|needs?|takes?|loses?|ends?|looks?"
    r"|carr(y|ies)|gives?|writes?|holds?|costs?|sinks in|only|never|always|no)\b"
)

ASKS = re.compile(r"^(Where|What|Which|How|Why) |\?$")


def constant_titles():
    for file in sorted([*ROOT.glob("sinkinterp/**/*.py"), *ROOT.glob("experiments/**/*.py")]):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = [word.value for word in node.keywords if word.arg in ("title", "heading")]
            titles = [*named, *(node.args[:1] if ast.unparse(node.func) in SHOWN else ())]
            for title in titles:
                if isinstance(title, ast.Constant) and isinstance(title.value, str):
                    yield file, title.value


def test_a_constant_title_names_what_is_shown_or_asks():
    titles = [*constant_titles()]
    assert len(titles) > 60
    assert [found for found in titles if VERBS.search(found[1]) and not ASKS.search(found[1])] == []


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
    "heads": (lambda model: heads_above(si.measure(model, TOKENS)).title, "0 of 6 heads give"),
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
