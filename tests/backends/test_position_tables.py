import pytest
import torch
from torch import nn

from sinkinterp.backends.anatomy.modules import positions_replaced

FIRST = 2  # the row of the first position


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5)])
def test_a_table_returns_the_rows_of_other_positions_counted_from_its_first(shape):
    table = nn.Embedding(13, 7)
    asked = FIRST + torch.arange(5).expand(shape)
    positions = torch.tensor([[0, 1, 2, 3, 4], [4, 1, 2, 3, 0], [0, 6, 7, 8, 9]])
    with positions_replaced([table], positions):
        assert table(asked).equal(table.weight[FIRST + positions])
    with positions_replaced([table], positions[1:2]):
        assert table(asked).equal(table.weight[FIRST + positions[1:2]])
    assert table(asked).equal(table.weight[asked]) and not (table._forward_hooks or table._forward_pre_hooks)
