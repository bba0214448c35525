"""Who makes a sink, who does not, and at what loss: every architecture, in one chart."""

import plotly.graph_objects as go

from sinkinterp.lm.variants import BASE, distinct, variants
from sinkinterp.plots import arms
from sinkinterp.runs.arm import architecture
from sinkinterp.runs.seed_rules import HasSink
from sinkinterp.runs.study import Study
from sinkinterp.table import Table


class Atlas(Study):
    """A study that is drawn as one chart of sink against loss."""

    def draw(self, table: Table) -> go.Figure:
        return arms.sink_against_loss(table)


NAMES = tuple(name for name in distinct(variants(BASE)) if name not in ("llama", "heads_8"))
STUDY = Atlas(
    claim="Which architectures make a sink? Each rule says that one does, so `fails` means none.",
    arms=tuple(architecture(name) for name in NAMES),
    rules=tuple(HasSink(name, baseline="softmax") for name in NAMES),
)
