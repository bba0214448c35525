"""Figure 5 (right): with few training data the model overfits, and the sink does not come."""

from sinkinterp.report.columns import LOSS
from sinkinterp.runs.catalogue import Scale
from sinkinterp.runs.rules import HasNoSink, HasSink, Higher
from sinkinterp.runs.study import Edition, study

from .shared.amounts import ALL, NOTE, PAPERS, PAPERS_ALL, TOYS

FEW, PAPERS_FEW = ("100 sequences", "1000 sequences"), ("50M tokens", "100M tokens")
EXPERIMENT = study(
    claim="With few different training sequences the model overfits and has no sink, at the same number of steps.",
    arms=TOYS,
    rules=(
        HasSink(ALL),
        *(HasNoSink(few) for few in FEW),
        *(Higher(ALL, than=few, at_equal_loss=False) for few in FEW),
        *(Higher(few, than=ALL, quantity=LOSS, at_equal_loss=False) for few in FEW),
    ),
    note="overfitting is part of the claim, so losses differ; the whole run sees 51,200 sequences once each; losses "
    "are of held-out sequences, and figure28_overfitting has those of training beside them",
    scales=(Scale.SMOKE, Scale.DEMO, Scale.PAPER),
    paper=Edition(
        PAPERS,
        (
            HasSink(PAPERS_ALL),
            *(HasNoSink(few) for few in PAPERS_FEW),
            *(Higher(PAPERS_ALL, than=few, at_equal_loss=False) for few in PAPERS_FEW),
            *(Higher(few, than=PAPERS_ALL, quantity=LOSS, at_equal_loss=False) for few in PAPERS_FEW),
        ),
        NOTE,
    ),
)
