"""What does a rolling cache lose without its sink? Streaming perplexity of a model with a sink and of its twin without.

python examples/streaming_perplexity.py [MODEL...]
"""

import sys

import sinkinterp as si
from sinkinterp.demo import recipe
from sinkinterp.eviction import streaming_table
from sinkinterp.study import held_out_probe

tokens = held_out_probe(recipe("softmax").data, 512).tokens  # for a model of yours: its own tokens, and a wider window
for name in sys.argv[1:] or ("sinkinterp/demo-softmax", "sinkinterp/demo-sigmoid"):
    table = streaming_table(si.load(name), tokens, window=6, sinks=(0, 1, 2))
    print(table.note)
    for row in table.words():
        print(f"  sinks + recent {row['cache']:6} perplexity {row['perplexity after']}, added loss {row['added loss']}")
