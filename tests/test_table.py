import json
import math

import numpy
import pandas
import pytest
import torch
from refusals import refused

from sinkinterp.table import Table

ROWS = (
    {"model": "a", "rate": 0.5, "rate low": 0.25, "rate high": 0.75, "n": 3, "null": None},
    {"model": "b", "rate": 250.0, "rate low": 1e-4, "rate high": 1e6, "n": 1000, "null": 0.0},
    {"model": "a", "rate": 0.0, "rate low": None, "rate high": None, "n": 5, "null": 0.125},
)
TABLE = Table.of("rates", "n=3", ROWS)


@pytest.mark.parametrize("row", [{"x": 1}, {"x": 1, "y": 2, "z": 3}, {"x": 1, "z": 2}, {}])
def test_rows_with_different_columns_are_refused(row):
    rows = {"x": 1, "y": 2}, {"x": 3, "y": 4}, row
    refused(lambda: Table.of("rates", "", rows), "'rates'")


def test_columns_keep_the_order_of_the_first_row():
    table = Table.of("", "", ({"y": 1, "x": 2}, {"x": 3, "y": 4}))
    assert table.frame.columns.tolist() == ["y", "x"]
    assert table.frame["x"].tolist() == [2, 3]


def test_a_table_without_rows_has_no_columns_and_no_text():
    assert Table.of("", "", ()).frame.columns.tolist() == []
    assert Table.of("", "", ()).texts() == [] == Table.of("", "", ()).records()


def test_a_quantity_and_its_bounds_share_one_cell():
    assert TABLE.texts() == [
        {"model": "a", "rate": "0.500 [0.250, 0.750]", "n": "3", "null": ""},
        {"model": "b", "rate": "250 [0.0001, 1e+06]", "n": "1000", "null": "0"},
        {"model": "a", "rate": "0", "n": "5", "null": "0.125"},
    ]


def test_a_column_that_merely_ends_in_low_keeps_its_cell():
    assert Table.of("", "", ({"tide low": 1.0, "x": 2},)).texts() == [{"tide low": "1.000", "x": "2"}]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.001, "0.001"), (99.9999, "100.000"), (100.0, "100"), (0.00099, "0.00099"), (-0.5, "-0.500"), (1234.5, "1,230")],
)
def test_ordinary_numbers_have_three_decimals_and_others_three_digits(number, text):
    assert Table.of("", "", ({"x": number},)).texts() == [{"x": text}]


def test_where_keeps_the_rows_that_equal_all_that_is_given():
    assert TABLE.where(model="a").records() == [ROWS[0], ROWS[2]]
    assert TABLE.where(model="a", n=5).records() == [ROWS[2]]
    assert TABLE.where(null=None).records() == [ROWS[0]]
    assert TABLE.where(model="c").records() == []
    assert (TABLE.where(n=3).title, TABLE.where(n=3).note) == ("rates", "n=3")


def test_a_layer_or_head_that_no_row_has_is_refused_with_those_that_there_are():
    table = Table.of("", "", ({"layer": 0, "head": 2}, {"layer": 3, "head": None}))
    refused(lambda: table.where(layer=9), "no row has layer 9; choose from 0, 3")
    refused(lambda: table.where(layer="0"), "no row has layer '0'")
    assert len(table.where(layer=0, head=None).frame) == 0 and len(table.where(layer=3, head=None).frame) == 1


def test_numbers_are_floats_and_missing_ones_nan():
    missing, *others = TABLE.numbers("null")
    assert math.isnan(missing)
    assert others == [0.0, 0.125]
    assert all(type(number) is float for number in TABLE.numbers("n"))


def test_a_column_is_text_if_any_cell_is_text():
    mixed = Table.of("", "", ({"x": None, "y": 1}, {"x": "w", "y": None}))
    assert mixed.is_text("x")
    assert not mixed.is_text("y")


def test_a_dict_of_a_table_is_a_copy():
    plain = TABLE.to_dict()
    assert plain == {"title": "rates", "note": "n=3", "rows": list(ROWS)}
    plain["rows"][0]["n"] = 7
    assert TABLE.records()[0]["n"] == 3


def test_a_frame_is_pandas_own_and_says_so_where_a_column_is_not_there():
    assert type(TABLE.frame) is pandas.DataFrame and TABLE.frame.columns.tolist() == [*ROWS[0]]
    assert TABLE.frame["rate"].tolist() == [0.5, 250, 0] and TABLE.frame.iloc[-1]["n"] == 5
    with pytest.raises(KeyError, match="ratee"):
        TABLE.frame["ratee"]
    for wrong in (lambda: TABLE.numbers("ratee"), lambda: TABLE.where(ratee=1), lambda: TABLE.largest("ratee")):
        with pytest.raises(KeyError, match="no column 'ratee'; there are model, rate"):
            wrong()
    with pytest.raises(TypeError):
        TABLE["n"]
    with pytest.raises(AttributeError):
        TABLE.alpha_1  # noqa: B018


def test_a_column_of_whole_numbers_keeps_them_beside_a_missing_one():
    table = Table.of("", "", ({"layer": None, "x": None, "w": None}, {"layer": 3, "x": 1.5, "w": "a"}))
    assert table.frame.dtypes.astype(str).tolist()[:2] == ["Int64", "float64"]
    assert table.records() == [{"layer": None, "x": None, "w": None}, {"layer": 3, "x": 1.5, "w": "a"}]
    assert [type(cell) for cell in table.records()[1].values()] == [int, float, str]
    assert table.texts()[1] == {"layer": "3", "x": "1.500", "w": "a"}
    assert Table.of("", "", ({"x": None},)).numbers("x") == pytest.approx([math.nan], nan_ok=True)


@pytest.mark.parametrize("cell", [numpy.float32(0.5), numpy.int64(3), torch.tensor(0.25), torch.tensor(7)])
def test_a_cell_of_numpy_or_torch_becomes_a_number_of_python(cell):
    (row,) = Table.of("", "", ({"x": cell},)).records()
    assert row == {"x": cell.item()} and type(row["x"]) is type(cell.item())


def test_the_largest_come_first_equal_ones_in_their_order_and_missing_ones_last():
    cells = [("a", 1.0), ("b", None), ("c", 3.0), ("d", 1.0), ("e", -2.0)]
    table = Table.of("t", "n", [{"w": word, "x": x} for word, x in cells], lambda table: table.title)
    assert "".join(table.largest("x").frame["w"]) == "cadeb" and "".join(table.largest("x", 2).frame["w"]) == "ca"
    assert table.largest("x", 2).plot() == "t"


def test_tables_are_equal_by_title_note_and_cells():
    assert Table.of("rates", "n=3", ROWS, lambda table: None) == TABLE != Table.of("rates", "n=4", ROWS)
    assert TABLE.where(model="a") != TABLE and Table.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


@pytest.mark.parametrize("control", ["\n", "\r", "\t", "\x1b[31m", "\x07", "\x00", "\x9b", "\u202e", "\u2028"])
def test_what_is_printed_holds_no_control_character_of_a_cell_a_column_or_a_title(control):
    table = Table.of(f"title{control}", f"note{control}", ({f"word{control}": f"a{control}b", "n": 1},))
    assert all(c.isprintable() or c == "\n" for c in str(table))
    assert len(str(table).strip().split("\n")) == 7
    assert table.numbers("n") == [1] and table.to_dict()["rows"][0][f"word{control}"] == f"a{control}b"
