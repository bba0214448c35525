"""Move a sink: the first and the fifth token exchange their position embeddings. python examples/swap_p1.py [MODEL]"""

import sys

import sinkinterp as si
from sinkinterp.data.tokens import repeated_token

name = sys.argv[1] if len(sys.argv) > 1 else "sinkinterp/demo-softmax"
subject = si.load(name)
token_set = repeated_token(subject.shape.vocab, length=min(64, subject.shape.n_ctx or 64), sequences=100)

edits = {"as it is": [], "p1 <-> p5": [si.SwapPositions(0, 4)], "control: p5 <-> p6": [si.SwapPositions(4, 5)]}
print(f"{name}: share of heads with a sink, epsilon 0.3, [95% interval]")
for label, edit in edits.items():
    report = si.measure(subject, token_set, edits=edit, positions=(0, 4))
    print(f"{label:20} on token 1: {report.sink_rate(0)}   on token 5: {report.sink_rate(4)}")
print(report.protocol.line())
