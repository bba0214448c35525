"""Names for the shapes of tensors that several packages share. Axes: batch (sequences), head, query, key, pos."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Residual = Float[Tensor, "batch pos d_model"]
Queries = Float[Tensor, "batch head query d_head"]
Keys = Float[Tensor, "batch kv_head key d_head"]
Values = Float[Tensor, "batch kv_head key d_value"]
Scores = Float[Tensor, "batch head query key"]
Pattern = Float[Tensor, "batch head query column"]  # a column is a key, or the slot, which comes first
Rows = Float[Tensor, "batch head query"]
HeadOutput = Float[Tensor, "batch head query d_value"]
Allowed = Bool[Tensor, "#batch #head query key"]
KeyIndex = Int[Tensor, " some_key"]
SomePairs = Float[Tensor, "batch head some_query some_key"]  # one number for each pair of some queries and some keys
SomeAllowed = Bool[Tensor, "#batch #head some_query some_key"]
KeyMass = Float[Tensor, "batch head some_key"]
