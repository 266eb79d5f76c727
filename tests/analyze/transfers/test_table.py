"""The table of transfers for incomplete traces."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.support.traces import TraceBuilder
from traceana.analyze.transfers import columns_by, transfers
from traceana.report.pages.overview import overview
from traceana.table import names_of
from traceana.vocabulary.option_words import TransfersBy as By

NAMED = {"name": "Tesla V100-SXM2-16GB", "vendor": "NVIDIA", "compute_capability": "7.0"}


def test_bytes_that_some_copies_lack_are_no_sum() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned")
    builder.copy("HtoD", 10, 10, source_memory="pinned")
    result = transfers(builder.build())
    (row,) = result.frame.to_dicts()
    assert [row[key] for key in ("bytes", "mean_bytes", "bytes_per_s")] == [None] * 3
    assert row["small"] is False
    assert "bytes" not in result.totals
    assert "copy size not recorded: 1 of 2 copies" in result.notes[0]


def test_copies_of_one_operator_are_one_row_whatever_number_emit_nvtx_gave_it() -> None:
    builder = TraceBuilder()
    for number in range(3):
        text = f"aten::copy_, op_id = {number}"
        builder.row("ranges", text=text, start=number * 10, duration=10)
        builder.copy("HtoD", number * 10, 10, bytes=100, range=number)
    found = transfers(builder.build(), "range").frame
    assert found.select("range", "count").rows() == [("aten::copy_", 3)]


def test_copies_of_no_time_have_no_throughput() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 0, bytes=100, source_memory="pinned")
    builder.copy("HtoD", 10, 10, bytes=100, source_memory="pinned")
    builder.copy("DtoH", 30, 0, bytes=100, destination_memory="pinned")
    result = transfers(builder.build())
    rates = result.frame.select("direction", "bytes_per_s", "median_bytes_per_s").rows()
    assert rates == [("HtoD", 2e10, 1e10), ("DtoH", None, None)]
    assert any("copies of 0 ns: 2 of 3" in note for note in result.notes)


def test_devices_that_differ_have_no_common_peak() -> None:
    builder = TraceBuilder()
    builder.row("devices", device=0, **NAMED)
    builder.row(
        "devices", device=1, **{**NAMED, "name": "NVIDIA A100", "compute_capability": "8.0"}
    )
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned", device=0)
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned", device=1)
    builder.copy("DtoH", 0, 10, bytes=100, destination_memory="pinned", device=1)
    rows = transfers(builder.build()).frame.select("direction", "link").rows()
    assert rows == [("HtoD", None), ("DtoH", "PCIe 4 x16")]


@pytest.mark.parametrize(
    ("device", "note"),
    [
        ({}, "link peak unknown: device name not recorded"),
        ({"name": "GPU of tomorrow", "vendor": "NVIDIA"}, "link peak unknown: GPU of tomorrow"),
        (NAMED, "datasheet unidirectional peak"),
    ],
)
def test_notes_on_the_link_peak(device: dict[str, str], note: str) -> None:
    builder = TraceBuilder()
    builder.row("devices", device=0, **device)
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned")
    notes = transfers(builder.build()).notes
    assert [note in one for one in notes].count(True) == 1


def test_unknown_calls_have_a_note() -> None:
    builder = TraceBuilder()
    call = builder.row("calls", name="cudaMemcpy", start=0, duration=1)
    builder.copy("HtoD", 0, 10, bytes=1, source_memory="pinned", call=call)
    builder.copy("HtoD", 20, 10, bytes=1, source_memory="pinned")
    result = transfers(builder.build())
    columns = ("blocking", "synchronous", "staged", "asynchronous", "count")
    assert result.frame.select(columns).rows() == [("yes", 1, 0, 0, 2)]
    assert any("1 of 2 copies, no call recorded" in note for note in result.notes)


def test_calls_of_both_kinds_are_mixed() -> None:
    builder = TraceBuilder()
    for name in ("cudaMemcpy", "cudaMemcpyAsync"):
        call = builder.row("calls", name=name, start=0, duration=1)
        builder.copy("HtoD", 0, 10, bytes=1, source_memory="pinned", call=call)
    assert transfers(builder.build()).frame["blocking"].to_list() == ["mixed"]


def test_what_asked_may_be_a_layer_or_a_role() -> None:
    builder = TraceBuilder()
    conv = builder.layer("features.0", "Conv2d")
    data = builder.layer("data", role="data")
    builder.copy("HtoD", 0, 30, bytes=1, layer=data)
    builder.copy("DtoD", 30, 20, bytes=1, layer=conv)
    builder.copy("DtoD", 60, 10, bytes=1)
    rows = transfers(builder.build(), "layer").frame.select("layer", "time_ns").rows()
    assert rows == [("(data)", 30), ("features.0", 20), ("(outside all layers)", 10)]


@pytest.mark.parametrize("by", get_args(By))
def test_every_table_has_the_same_columns_with_and_without_copies(by: By) -> None:
    builder = TraceBuilder()
    builder.kernel("k", 0, 10)
    empty = transfers(builder.build(), by)
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned")
    full = transfers(builder.build(), by)
    assert full.frame.columns == names_of(columns_by(by))
    assert full.frame.columns == empty.frame.columns
    assert empty.frame.is_empty()
    assert empty.notes == ("no copies in the trace or the selection",)
    assert empty.totals == {"count": 0, "time_ns": 0, "exposed_ns": 0}


def test_the_report_shows_the_same_table() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 10, bytes=100, source_memory="pinned")
    trace = builder.build()
    assert overview(trace).transfers.frame.equals(transfers(trace).frame)


def test_a_share_of_a_step_is_at_most_1_where_the_host_runs_ahead() -> None:
    """Steps of 100 ns on the host launch copies of 1000 ns, two at a time."""
    b = TraceBuilder()
    for number in range(10):
        b.step(number, 100 * number, 100)
        for stream in (1, 2):
            b.copy("HtoD", 1000 * number + 10, 1000, step=number, stream=stream, bytes=8)
    (row,) = transfers(b.build()).frame.to_dicts()
    # The first step begins 10 ns before its copies.
    assert row["step_share"] == pytest.approx(10_000 / 10_010)
    assert row["step_ns"] == 2000
    by_step = transfers(b.build(), by="step").frame["step_share"].to_list()
    assert by_step == pytest.approx([1000 / 1010, *[1.0] * 9])


def test_one_direction_may_copy_for_longer_than_32_bits_of_nanoseconds() -> None:
    b = TraceBuilder()
    b.step(0, 0, 5_000_000_000)
    b.copy("DtoH", 0, 1_000_000_000, step=0, bytes=8)
    b.copy("HtoD", 1_000_000_000, 3_000_000_000, step=0, bytes=8)
    found = transfers(b.build()).frame.select("direction", "step_share").rows()
    assert found == [("HtoD", 0.6), ("DtoH", 0.2)]
