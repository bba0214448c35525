"""Who makes a sink, who does not, and at what loss: every architecture, in one chart."""

from dataclasses import replace

from sinkinterp.lm.variants import BASE, distinct, variants
from sinkinterp.runs.rules import sink_or_none
from sinkinterp.runs.study import architecture, study
from sinkinterp.runs.training_figures import sink_against_loss

ELSEWHERE = ("llama", "heads_8", "gated_elements", "gated_values", "clipped", "differential")  # the last in `remedies`
NAMES = tuple(name for name in distinct(variants(BASE)) if name not in ELSEWHERE)
_STUDY = study(
    claim="Which architectures make a sink? No claim says that one should.",
    arms=tuple(architecture(name) for name in NAMES),
    rules=tuple(sink_or_none(name, baseline="softmax") for name in NAMES),
)
EXPERIMENT = replace(_STUDY, draw=sink_against_loss)
