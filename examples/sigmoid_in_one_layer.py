"""The price of softmax: the loss with sigmoid attention, not normalised, in one layer at a time.

python examples/sigmoid_in_one_layer.py [MODEL] [PAGE.html]
"""

import sys
from pathlib import Path

import plotly.graph_objects as go

import sinkinterp as si
from sinkinterp.attention.kernels import Sigmoid
from sinkinterp.measurement.sweep import loss
from sinkinterp.runs.inputs import Inputs

name = sys.argv[1] if len(sys.argv) > 1 else "sinkinterp/demo-softmax"
page = Path(sys.argv[2] if len(sys.argv) > 2 else "figures/sigmoid_in_one_layer.html")
subject = si.load(name)
token_set = Inputs(length=min(64, subject.shape.n_ctx or 64), sequences=100).token_set(subject, name)

layers = subject.shape.attention_layers
edits = [si.PatchNormalization(Sigmoid(), layers=[layer]) for layer in layers]
table = si.sweep(subject, token_set, edits, metric=loss)
for row in table.texts():
    print(f"{row['edit']:45} loss {row['value']}  change {row['change']}")
print(table.note)

change, low, high = (table.numbers(column)[1:] for column in ("change", "change low", "change high"))
figure = go.Figure(go.Bar(x=[f"layer {layer}" for layer in layers], y=change))
figure.update_traces(
    error_y={
        "array": [b - a for a, b in zip(change, high, strict=True)],
        "arrayminus": [a - b for a, b in zip(change, low, strict=True)],
    }
)
figure.update_layout(title=f"{name}: sigmoid attention in one layer", yaxis_title="change of the loss (nats)")
page.parent.mkdir(parents=True, exist_ok=True)
figure.write_html(page)
