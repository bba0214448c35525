"""The causes of sinks in genuine models: parts of scores, cuts, and the path of the massive activation."""

from collections.abc import Sequence
from functools import partial

from sinkinterp.report.explanation import DIRECTLY, IN_STREAM
from sinkinterp.report.readings import short_name
from sinkinterp.runs.experiment import Rule
from sinkinterp.table import Table

from .shared.cases import on_models
from .shared.explanations import CHECK, NUMBER, WHAT, draw, removed, rows_of
from .shared.genuine import text_models
from .shared.rules import setup

CLAIM = "A few parts of the residual make a head look at the first token: cutting them removes its sink."
MODELS = text_models(has=())
EXACT = 1e-4  # of the largest of a score and its parts


def _is_exact(table: Table) -> tuple[bool | None, str]:
    errors = table.where(**{WHAT: CHECK}).numbers(NUMBER)
    return max(errors) <= EXACT, f"largest relative errors: {', '.join(f'{error:.1e}' for error in errors)}"


def _is_enough(table: Table, way: str) -> tuple[bool | None, str]:
    found = removed(table, way)
    shares_of = {f"{short_name(model.partition(',')[0])} {head}": shares for (model, head), shares in found.items()}
    words = (f"{of}: {', '.join(f'{round(x, 2) + 0:.0%}' for x in shares)}" for of, shares in shares_of.items())
    shown = "; ".join(words)
    return bool(found) and all(x[0] >= 0.8 and max(x[1:], default=0) <= 0.1 for x in found.values()), shown


RULES: Sequence[Rule] = (
    setup(Rule("the parts add up to the score within 1e-4 in every head", _is_exact)),
    *(
        Rule(
            f"cutting the named parts {way} removes at least 80% in every head, and random ones at most 10%",
            partial(_is_enough, way=way),
        )
        for way in (IN_STREAM, DIRECTLY)
    ),
)

EXPERIMENT = on_models(CLAIM, MODELS, rows_of, draw, RULES)
