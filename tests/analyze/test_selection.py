"""The options ``--step``, ``--device``, ``--sort`` and ``--limit``."""

from __future__ import annotations

import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.classes import breakdown
from traceana.analyze.kernels import kernels
from traceana.errors import NoSuchSelectionError
from traceana.report.page import Table
from traceana.report.pages.layers import layers
from traceana.result import arrange
from traceana.timeline.steps import select, steps


def test_selected_steps_keep_their_numbers_and_their_work() -> None:
    whole = cnn_steps()
    some = select(whole, steps=[3, 2])
    assert steps(some).frame.select("step", "work_ns").rows() == [(2, 4400), (3, 4400)]
    assert breakdown(some).totals["time_ns"] == 2 * 4400
    assert some.meta.properties["selected_steps"] == (2, 3)
    assert "selected_steps" not in whole.meta.properties
    assert breakdown(select(some, steps=[3])).totals["time_ns"] == 4400


def test_a_device_is_selected_by_its_number() -> None:
    builder = TraceBuilder()
    builder.kernel("k", 0, 5)
    builder.kernel("k", 0, 7, device=3)
    trace = select(builder.build(), devices=[3])
    assert trace.tables.activities["duration"].to_list() == [7]
    assert trace.meta.properties["selected_devices"] == (3,)


def test_a_device_without_work_gives_an_empty_result_with_a_note() -> None:
    builder = TraceBuilder()
    builder.row("devices", device=1, name="idle GPU")
    builder.kernel("k", 0, 5)
    result = kernels(select(builder.build(), devices=[1]))
    assert result.notes == ("no activities in the selected steps, devices and ranks",)


def test_what_is_not_there_cannot_be_selected() -> None:
    with pytest.raises(NoSuchSelectionError, match="no step 9; steps: 1 to 3"):
        select(cnn_steps(), steps=[2, 9])
    with pytest.raises(NoSuchSelectionError, match="has no device cpu; devices: 0"):
        select(cnn_steps(), devices=[-1])
    with pytest.raises(NoSuchSelectionError, match="has no steps"):
        select(TraceBuilder().build(), steps=[1])


def test_rows_are_sorted_and_cut_and_the_totals_stay_of_all() -> None:
    result = kernels(cnn_steps())
    arranged = arrange(result, sort="calls", limit=2)
    assert arranged.frame["name"].to_list() == ["scudnn", "winograd"]
    assert arranged.totals == {"calls": 21, "time_ns": 12_900}
    assert arranged.hidden == 4
    assert arranged.hidden_totals == {"calls": 12, "time_ns": 2_100}
    assert arrange(result).hidden == 0


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("time", "scudnn"),
        ("time_ns", "scudnn"),
        ("time:asc", "nchwToNhwc"),
        ("mean:desc", "scudnn"),
        ("name", "adam"),
        ("name:desc", "winograd"),
        ("algorithm", "scudnn"),  # nulls last
    ],
)
def test_a_column_is_sorted_as_its_kind_is_read(sort: str, first: str) -> None:
    assert arrange(kernels(cnn_steps()), sort=sort).frame["name"][0] == first


def test_an_unknown_column_or_order_is_an_error() -> None:
    with pytest.raises(NoSuchSelectionError, match="cannot sort by bandwidth; columns: name, "):
        arrange(kernels(cnn_steps()), sort="bandwidth")
    for typed, meant in (("tiem", "time"), ("time_sn", "time_ns"), ("algoritm", "algorithm")):
        with pytest.raises(NoSuchSelectionError, match=r"\)$") as error:
            arrange(kernels(cnn_steps()), sort=typed)
        assert str(error.value) == f"cannot sort by {typed} (did you mean {meant}?)"
    with pytest.raises(NoSuchSelectionError, match="invalid sort order up"):
        arrange(kernels(cnn_steps()), sort="time:up")


def test_bars_are_relative_to_the_largest_of_all_rows() -> None:
    def lengths(limit: int | None) -> list[float]:
        page = layers(cnn_steps()).page(sort="share:asc", limit=limit)
        (table,) = (one for one in page.blocks if isinstance(one, Table) and one.bars)
        return table.bars_of("share")

    assert max(lengths(None)) == 1
    assert lengths(2) == lengths(None)[:2]
    assert max(lengths(2)) < 1
