import math

import pandas
import pytest
from refusals import refused

from sinkinterp.checks import InputError
from sinkinterp.table import Table

ROWS = (
    {"model": "a", "rate": 0.5, "rate low": 0.25, "rate high": 0.75, "n": 3, "null": None},
    {"model": "b", "rate": 250.0, "rate low": 1e-4, "rate high": 1e6, "n": 1000, "null": 0.0},
    {"model": "a", "rate": 0.0, "rate low": None, "rate high": None, "n": 5, "null": 0.125},
)
TABLE = Table("rates", "n=3", ROWS)


@pytest.mark.parametrize("row", [{"x": 1}, {"x": 1, "y": 2, "z": 3}, {"x": 1, "z": 2}, {}])
def test_rows_with_different_columns_are_refused(row):
    rows = {"x": 1, "y": 2}, {"x": 3, "y": 4}, row
    refused(lambda: Table("rates", "", rows), "the rows of 'rates' have different columns")


def test_columns_keep_the_order_of_the_first_row():
    table = Table("", "", ({"y": 1, "x": 2}, {"x": 3, "y": 4}))
    assert table.columns == ("y", "x")
    assert table.column("x") == [2, 3]


def test_a_table_without_rows_has_no_columns_and_no_text():
    assert Table("", "", ()).columns == ()
    assert Table("", "", ()).display_rows() == ()


def test_a_quantity_and_its_bounds_share_one_cell():
    assert TABLE.display_rows() == (
        {"model": "a", "rate": "0.500 [0.250, 0.750]", "n": "3", "null": ""},
        {"model": "b", "rate": "250 [0.0001, 1e+06]", "n": "1000", "null": "0"},
        {"model": "a", "rate": "0", "n": "5", "null": "0.125"},
    )


def test_a_column_that_merely_ends_in_low_keeps_its_cell():
    assert Table("", "", ({"tide low": 1.0, "x": 2},)).display_rows() == ({"tide low": "1.000", "x": "2"},)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.001, "0.001"), (99.9999, "100.000"), (100.0, "100"), (0.00099, "0.00099"), (-0.5, "-0.500"), (1234.5, "1,230")],
)
def test_ordinary_numbers_have_three_decimals_and_others_three_digits(number, text):
    assert Table("", "", ({"x": number},)).display_rows() == ({"x": text},)


def test_where_keeps_the_rows_that_equal_all_that_is_given():
    assert TABLE.where(model="a").rows == (ROWS[0], ROWS[2])
    assert TABLE.where(model="a", n=5).rows == (ROWS[2],)
    assert TABLE.where(null=None).rows == (ROWS[0],)
    assert TABLE.where(model="c").rows == ()
    assert (TABLE.where(n=3).title, TABLE.where(n=3).note) == ("rates", "n=3")


def test_numbers_are_floats_and_missing_ones_nan():
    missing, *others = TABLE.numbers("null")
    assert math.isnan(missing)
    assert others == [0.0, 0.125]
    assert all(type(number) is float for number in TABLE.numbers("n"))


def test_a_column_is_text_if_any_cell_is_text():
    mixed = Table("", "", ({"x": None, "y": 1}, {"x": "w", "y": None}))
    assert mixed.is_text("x")
    assert not mixed.is_text("y")


def test_a_dict_of_a_table_is_a_copy():
    plain = TABLE.to_dict()
    assert plain == {"title": "rates", "note": "n=3", "rows": list(ROWS)}
    plain["rows"][0]["n"] = 7
    assert TABLE.rows[0]["n"] == 3


def test_a_table_has_the_rows_columns_and_slices_of_a_list_of_rows():
    assert len(TABLE) == 3 and [*TABLE] == [*ROWS] and (TABLE[0], TABLE[-1]) == (ROWS[0], ROWS[2])
    assert TABLE["n"] == [3, 1000, 5] and TABLE[1:].rows == ROWS[1:] and TABLE[::-1].rows == ROWS[::-1]
    assert TABLE.head(2).rows == ROWS[:2] and TABLE.head().rows == ROWS and TABLE.head(0).rows == ()
    assert bool(Table("empty", "", ()))
    for number in (3, -4):
        with pytest.raises(IndexError):
            TABLE[number]
    for wrong in ("ratee", None, 1.0, True, ("n", 0)):
        with pytest.raises(InputError):
            TABLE[wrong]
    refused(lambda: TABLE.head(-1))


def test_pandas_makes_of_a_table_what_to_pandas_does_and_reads_its_csv_back(tmp_path):
    pandas.testing.assert_frame_equal(pandas.DataFrame(TABLE), TABLE.as_written(), check_frame_type=False)
    assert TABLE.to_csv(tmp_path / "x.csv") is None and (tmp_path / "x.csv").read_text() == TABLE.to_csv()
    back = pandas.read_csv(tmp_path / "x.csv")
    pandas.testing.assert_frame_equal(back, TABLE.as_written(), check_dtype=False, check_frame_type=False)


@pytest.mark.parametrize("control", ["\n", "\r", "\t", "\x1b[31m", "\x07", "\x00", "\x9b", "\u202e", "\u2028"])
def test_what_is_printed_holds_no_control_character_of_a_cell_a_column_or_a_title(control):
    table = Table(f"title{control}", f"note{control}", ({f"word{control}": f"a{control}b", "n": 1},))
    assert all(c.isprintable() or c == "\n" for c in str(table))
    assert len(str(table).strip().split("\n")) == 7
    assert table["n"] == [1] and table.to_dict()["rows"][0][f"word{control}"] == f"a{control}b"
