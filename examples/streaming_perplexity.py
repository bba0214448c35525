"""What does a rolling cache lose without its sink? Streaming perplexity of a model with a sink and of its K-bias twin.

python examples/streaming_perplexity.py [MODEL...]   (models that share the tokenizer of sinkinterp/text-softmax)
"""

import json
import sys

import torch

import sinkinterp as si
from sinkinterp.applications.eviction import streaming_table
from sinkinterp.backends.named_models import SHIPPED

tokens = torch.tensor(json.loads((SHIPPED / "text-docstrings.json").read_text()))  # of yours: `sequence pos`, BOS first
for name in sys.argv[1:] or ("sinkinterp/text-softmax", "sinkinterp/text-k_bias"):
    table = streaming_table(si.load(name), tokens, window=32, sinks=(0, 1, 4))
    print(table.note)
    for row in table.texts():
        print(f"  sinks + recent {row['cache']:6} perplexity {row['perplexity after']}, added loss {row['added loss']}")
