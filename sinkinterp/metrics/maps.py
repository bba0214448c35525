"""Attention maps: the patterns themselves. For short sequences."""

from ..attention.call import AttentionCall
from ..attention.shapes import Pattern
from .importance import proxy
from .metric import CallMetric


def pattern(call: AttentionCall) -> Pattern:
    """Every head's pattern, proxy scores where rows do not sum to one; the slot's column first."""
    return proxy(call).pattern()


PATTERNS = CallMetric("patterns", pattern)
METRICS = (PATTERNS,)
