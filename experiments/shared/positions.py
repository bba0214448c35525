"""Models with a table of learned positions."""

import torch

from sinkinterp.interventions.changes import RemovePosition

from .cases import Case


def check_positions(case: Case) -> None:
    """Raises InputError for a model without a table of learned positions."""
    case.subject.run(torch.zeros(1, 2, dtype=torch.long), edits=[RemovePosition([0])])
