"""Tables of what instruments measured are shown where their metrics were measured, in one order everywhere."""

from dataclasses import replace
from pathlib import Path

from tables.test_massive_entries import PAIRED, WITH
from tables.test_tables import REPORT

from sinkinterp import tables
from sinkinterp.metrics.loss import NEXT_TOKEN_LOSS
from sinkinterp.tables import EXHIBITS, exhibits_of


def test_exhibits_are_those_whose_metric_was_measured():
    assert list(exhibits_of(replace(REPORT, extras={}))) == []
    only_loss = replace(REPORT, extras={"loss": REPORT.extra(NEXT_TOKEN_LOSS)})
    assert [exhibit.metric for exhibit in exhibits_of(only_loss)] == [NEXT_TOKEN_LOSS]
    assert {exhibit.metric.name for exhibit in EXHIBITS} <= REPORT.extras.keys() | PAIRED.extras.keys()


def test_every_exhibit_makes_a_table_that_is_shown_somewhere():
    report = replace(REPORT, extras=REPORT.extras | PAIRED.extras | WITH.extras)
    for exhibit in exhibits_of(report):
        table = exhibit.table(report, 0.3, str)
        assert table.rows and table.note.startswith("toy: n=3, T=11")
        assert exhibit.in_terminal or exhibit.in_json or exhibit.on_page
        if exhibit.figure is not None:
            assert exhibit.on_page and exhibit.figure(table).data


def test_the_json_file_holds_the_tables_of_exhibits_between_the_general_ones():
    titles = [table["title"] for table in tables.tables_as_json(REPORT)["tables"]]
    assert titles[4:-1] == [
        "Angle or length? Queries and the first key per head",
        "What do heads write?",
        "Massive activations by block",
        "Loss by position",
    ]


def test_no_function_is_named_as_a_module_of_its_package():
    modules = {path.stem for path in Path(tables.__file__).parent.glob("*.py")}
    assert not modules & set(tables.__all__)
