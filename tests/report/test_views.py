"""What is shown of a report: everything that was measured, in one order everywhere."""

from dataclasses import replace

import pytest
from report.test_massive_entries import PAIRED, WITH
from report.test_tables import REPORT

from sinkinterp.errors import InputError
from sinkinterp.metrics.metric import NEXT_TOKEN_LOSS
from sinkinterp.metrics.residuals import MASSIVE_ENTRIES
from sinkinterp.report.views import NAMED, VIEWS, tables_as_json, view_of, views_of

EVERYTHING = replace(REPORT, extras=REPORT.extras | PAIRED.extras | WITH.extras)


def test_views_are_those_whose_metrics_were_measured():
    assert not any(view.needs for view in views_of(replace(REPORT, extras={})))
    only_loss = replace(REPORT, extras={"loss": REPORT.extra(NEXT_TOKEN_LOSS)})
    assert [view.needs for view in views_of(only_loss) if view.needs] == [(NEXT_TOKEN_LOSS,)]


def test_every_view_makes_a_table_that_is_shown_somewhere():
    for view in views_of(EVERYTHING):
        assert view.in_terminal or view.in_json or view.heading or view.name
        if view.name != "lengths":  # whose sequences differ in length
            table = view.table(EVERYTHING, 0.3, str)
            assert table.rows and "n=3, T=11" in table.note
            assert not view.name or table.plot().data
    assert len(NAMED) == sum(view.name != "" for view in VIEWS)  # no name stands twice


def test_a_report_of_some_positions_has_the_views_that_these_positions_make():
    columns = ("importance", "raw_importance", "null", "bias_null")
    for positions in ((0,), (0, 2)):
        some = {name: getattr(EVERYTHING, name)[..., list(positions)] for name in columns}
        report = replace(EVERYTHING, positions=positions, **some)
        shown = [view for view in views_of(report) if view.name != "lengths"]
        assert all(view.table(report, 0.3, str).rows for view in shown)
        assert {MASSIVE_ENTRIES, NEXT_TOKEN_LOSS} <= {metric for view in shown for metric in view.needs}


def test_a_view_that_needs_another_instrument_names_it():
    needed = {"angles": "GEOMETRY", "massive": "MASSIVE", "attention": "MAPS"}
    for name, instrument in needed.items():
        with pytest.raises(InputError, match=f"instruments.{instrument}$"):
            view_of(replace(REPORT, extras={}), name)


def test_the_json_file_holds_general_tables_before_those_of_instruments():
    titles = [table["title"] for table in tables_as_json(REPORT)["tables"]]
    assert titles[4:] == [
        "Residual norms by block", "Angle or length? Queries and the first key per head", "What do heads write?",
        "Massive activations by block", "Loss by position",
    ]  # fmt: skip
