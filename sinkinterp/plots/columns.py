"""Names of columns that a table and several figures, or a measurement and a figure, share.

A column that one figure alone reads stands in the figure's own file. Either way the function that makes the table
imports the name from `plots`, so that a name is changed in one place and the type checker finds its users.
"""

MODEL = "model"
SEED = "seed"
LAYER = "layer"
HEAD = "head"
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
NULL = "null"
VALUE_RATIO = "value ratio"
KEY_RATIO = "key ratio"

SCORE = "score"
COSINE = "cosine"
NORM_PRODUCT = "norm product"


def published(quantity: str) -> str:
    """The column with the value that the paper reports."""
    return f"paper {quantity}"
