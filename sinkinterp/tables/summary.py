"""Is there a sink?"""

from ..measurement.report import Report
from ..metrics.bootstrap import estimate, estimate_cells
from ..plots.columns import NULL, QUANTITY
from ..table import Cell, Table
from .note import protocol_note
from .quantities import Quantity, quantities, same_numbers


def sink_summary(report: Report, epsilon: float = 0.3) -> Table:
    """What shows a sink: sink rate, importance, and the first token's norms, each beside its null.

    A second null, of position bias, mask and learned sink logits alone, has its column where it differs.
    """
    is_biased = not same_numbers(report.bias_null, report.null)

    def row(quantity: Quantity) -> dict[str, Cell]:
        value = estimate_cells("value", estimate(quantity.values))
        bias_null = {"null of bias alone": quantity.bias_null} if is_biased else {}
        return {QUANTITY: quantity.name, **value, NULL: quantity.null, **bias_null}

    rows = tuple(row(quantity) for quantity in quantities(report, epsilon) if quantity.is_telling)
    return Table("Is there a sink on the first token?", protocol_note(report, epsilon), rows)
