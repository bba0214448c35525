"""Figure 5 (left and middle): with prefix language modeling one token of the prefix is the sink, and is long."""

from collections.abc import Mapping
from dataclasses import replace

from sinkinterp import table as col
from sinkinterp.attention.masks import Causal, Prefix
from sinkinterp.attention.sites import RESIDUAL
from sinkinterp.data.choices import Scale
from sinkinterp.data.tokens import TokenSet
from sinkinterp.lm.variants import attn
from sinkinterp.measurement.measure import measure
from sinkinterp.metrics.metric import Metric
from sinkinterp.metrics.residuals import is_massive, norm_ratio
from sinkinterp.runs.experiment import Decision, Outcome, Rule
from sinkinterp.runs.trained import SINK_LENGTH, Run
from sinkinterp.table import Cell, Table
from sinkinterp.train.recipe import PrefixLM, Recipe

from .shared.rules import in_most_seeds, number, sink_at
from .shared.study import FOLLOWERS, Arm, Trainings, device_of, setting, study

LONGEST, RATIO, MASSIVE = "longest position", "its residual ratio", "massive tokens"
TWICE = 2.0
IS_MASSIVE = Metric("is_massive", RESIDUAL, lambda x: is_massive(x).any(2).float())


def _arm(length: int) -> Arm:
    """The base with a prefix whose tokens see each other; the loss begins after it."""

    def change(recipe: Recipe) -> Recipe:
        model = attn(recipe.model, mask=Causal() | Prefix(length))
        return replace(recipe, model=model, objective=PrefixLM(length))

    return setting(f"prefix {length}", change)


def read(run: Run, held_out: TokenSet) -> Mapping[str, Cell]:
    """The position with the longest residual over the other tokens', over all blocks, and how many are massive.

    As for the strongest position, it is one of those that a quarter of the queries sees: the last token of toys, which
    predicts nothing, is long whatever the prefix.
    """
    tokens = replace(held_out, tokens=held_out.tokens[:, :SINK_LENGTH])
    report = measure(run.subject(device=device_of(run.recipe)), tokens, positions=(0,), instruments=[(IS_MASSIVE,)])
    length = tokens.tokens.shape[1]
    seen = range(length - length // FOLLOWERS + 1)
    ratios = [norm_ratio(report.residual_norms, p).mean(0).max().item() for p in seen]
    longest = max(range(len(ratios)), key=ratios.__getitem__)
    massive = report.extra(IS_MASSIVE).amax(1).sum(1).mean().item()
    return {LONGEST: longest + 1, RATIO: ratios[longest], MASSIVE: massive}


def _is_long(length: int) -> Rule:
    """In at least four of five seeds the sink token is the longest, twice as long as the mean of the others."""
    model = f"prefix {length}"

    def decide(runs: Table) -> Decision:
        rows = runs.where(**{col.MODEL: model}).records()
        if LONGEST not in runs.frame:
            return Outcome.NOT_ASKED, "rows made before 2026-11-29 have no lengths"
        agree = sum(row[LONGEST] == row[col.STRONGEST] and number(row[RATIO]) >= TWICE for row in rows)
        places = ", ".join(f"{row[LONGEST]} ({number(row[RATIO]):.1f}), sink {row[col.STRONGEST]}" for row in rows)
        return in_most_seeds(agree, len(rows)), f"{agree} of {len(rows)} seeds; longest (ratio): {places}"

    claim = f"the sink token of {model} has the longest residual, at least twice the others'"
    return Rule(claim, decide, (model,), lambda runs: runs.where(**{col.MODEL: model}).records())


LENGTHS = (1, 2, 3, 4, 5)
_STUDY = study(
    claim="With a prefix the sink comes as well; it stands among the tokens of the prefix, not always on the first, "
    "and is long.",
    arms=tuple(map(_arm, LENGTHS)),
    note=f"the paper also has a prefix of 10; sequences of toys have 16 tokens; {LONGEST}: that with the largest norm "
    f"of the residual over the mean of the others', in any block, mean over sequences, if a quarter of the "
    f"queries sees it; {MASSIVE}: of a sequence, those with |x| > 100 and at least 1,000 x the median",
    rules=(
        # behind the first place, where the sink stands without a prefix
        *(sink_at(f"prefix {length}", tuple(range(min(2, length), length + 1))) for length in LENGTHS),
        *map(_is_long, LENGTHS),
    ),
    editions={Scale.TEXT: ("prefix 2", "prefix 5")},
)
assert isinstance(_STUDY.rows, Trainings)
EXPERIMENT = replace(_STUDY, rows=replace(_STUDY.rows, more=read))
