"""Names of columns that a table and several figures, or a measurement and a figure, share.

A column that only one figure reads is in the figure's own file. The function that makes the table imports the name,
so a name is changed in one place and the type checker finds its users.
"""

from ..attention import maps

MODEL = "model"
SEED = "seed"
LAYER = "layer"
HEAD = "head"
KV_HEAD = "kv_head"  # of keys and values; several query heads share one
BLOCK = "block"
POSITION = "position"
QUANTITY = "quantity"
EPSILON = "epsilon"
LENGTH = "T"
EDIT = "edit"
INPUT = "input"
TARGET = "t"  # the position that p1 is replaced by or swapped with, from 1

SINK_1 = "Sink_1"
SINK_T = "Sink_t"
SINK_RATE = "sink rate"
ALPHA_1 = "alpha_1"
VALUE_RATIO = "value ratio"
KEY_RATIO = "key ratio"
EXCESS = "alpha_1 over null"  # alpha_1 less its null
RESIDUAL_RATIO = "residual ratio"
SLOT_RATE = "Sink_*"
ALPHA_SLOT = "alpha_*"
NULL_SLOT = "null alpha_*"
ALPHA_HEAD = "alpha_1 of the strongest head"
NULL_HEAD = "its null"
LOSS = "loss"
STATE = "state"  # of a training: whether it ended well
STRONGEST = "strongest position"  # from 1
ALPHA_THERE = "alpha there"  # at the strongest position
NULL_THERE = "null there"
ONSET = "onset step"

COSINE = maps.COSINE.name
NORM_PRODUCT = maps.NORM_PRODUCT.name
