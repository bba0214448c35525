"""Section 7.2 and Figure 7 (left): a model with norms after its branches has a sink too, and is long before them."""

from dataclasses import replace
from functools import partial

from sinkinterp.table import ALPHA_1, MODEL, RESIDUAL_RATIO

from .shared.before_norms import BEFORE, read
from .shared.rules import above, has_sink, setup, times
from .shared.study import Trainings, architecture, by_model, study

PRE, POST = "pre_norm", "post_norm"
_STUDY = study(
    claim="Where the norms stand does not matter: with norms after the branches the sink is still there, and the first "
    "token is long before them.",
    arms=(architecture("softmax", PRE, sink=18.18, loss=3.73), architecture(POST, sink=13.54)),
    rules=(
        setup(has_sink(PRE)),
        has_sink(POST, baseline=PRE),
        above(
            "with post-norm the first token is at least twice as long before the norms as after them",
            BEFORE,
            {MODEL: POST},
            {MODEL: POST},
            other_column=RESIDUAL_RATIO,
            bound=times(2.0),
        ),
    ),
    note=f"{RESIDUAL_RATIO}: the first token's norm over the others', the largest over blocks; {BEFORE}: the same "
    "where a norm reads it",
)
assert isinstance(_STUDY.rows, Trainings)
EXPERIMENT = replace(
    _STUDY, rows=replace(_STUDY.rows, more=read), draw=partial(by_model, quantities=(ALPHA_1, RESIDUAL_RATIO, BEFORE))
)
