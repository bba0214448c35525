"""Does the first token's embedding make the sink? Patch it between a model with a sink and its twin without one.

Both twins learned one task to one loss, by softmax and by sigmoid attention; block 0 reads token plus position.
python examples/patch_twin.py [MODEL] [TWIN]
"""

import sys

import sinkinterp as si
from sinkinterp.interventions import ChangeResidual
from sinkinterp.measurement.patching import patch
from sinkinterp.measurement.sweep import loss
from sinkinterp.metrics.estimates import estimate
from sinkinterp.runs.inputs import Inputs

names = sys.argv[1:3] or ["sinkinterp/demo-softmax", "sinkinterp/demo-sigmoid"]
model, twin = map(si.load, names)
tokens = Inputs(length=16, sequences=200).token_set(model, names[0]).tokens
sites = {
    "first token into block 0": ChangeResidual(layers=[0], positions=[0]),
    "all tokens into block 0": ChangeResidual(layers=[0]),
    "all tokens out of the last": ChangeResidual(layers=[model.shape.n_layers]),
}

for subject, source in ((model, twin), (twin, model)):
    runs = {"as it is": []} | {label: [patch(site, source, tokens)] for label, site in sites.items()}
    print(f"{subject.name}, patched from {source.name}:")
    for label, edits in runs.items():
        report = si.measure(subject, tokens, edits=edits, positions=(0,), instruments=[si.measurement.instruments.LOSS])
        print(f"  {label:28} Sink_1 {report.sink_rate()}   loss {estimate(loss(report))}")
