"""Perfetto traces of rocprofv3."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.readers.rocprof import perfetto
from tests.readers.rocprof.test_csv import problems, run_of
from tests.readers.rocprof.test_databases import events
from tests.support.command_line import Run
from tests.support.traces import cnn_steps
from traceana import open as open_trace
from traceana.errors import NotATraceError
from traceana.readers import read
from traceana.readers.source import silent


@pytest.mark.parametrize("form", ["interned", "plain", "compressed"])
def test_a_trace_and_the_csv_of_a_run_are_equal(tmp_path: Path, form: str) -> None:
    of_csv = open_trace(run_of(tmp_path / "csv"))
    written = perfetto.run(interned=form != "plain")
    path = tmp_path / "run.pftrace"
    path.write_bytes(written.content(compressed=form == "compressed"))
    trace = open_trace(path)
    assert (trace.meta.producer, trace.meta.truncated) == ("AMD rocprofv3", False)
    work = [
        one.tables.activities.drop("call", "range").with_columns(
            one.tables.names["name"].gather(one.tables.activities["name_id"])
        )
        for one in (of_csv, trace)
    ]
    # The trace has the products of the sizes only, and no registers.
    lacks = {"registers", *(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")}
    for one, other in zip(*(frame.drop("name_id").to_dicts() for frame in work), strict=True):
        differing = {key for key in one if one[key] != other[key]}
        assert differing <= ({"bytes"} if one["kind"] == "memcpy" else lacks)
    assert trace.tables.activities["bytes"].to_list() == [None] * 3 + [4096] * 2
    for table in ("calls", "ranges"):
        assert events(of_csv, table) == events(trace, table)
    assert problems(trace) == [("no_launch", 1)]
    assert trace.tables.ledger.filter(pl.col("reason") == "counter")["count"].to_list() == [1]


def test_a_trace_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    whole = perfetto.run().content()
    for cut in (3, 60, len(whole) // 3):
        (tmp_path / "a.pftrace").write_bytes(whole[:-cut])
        trace = read(tmp_path / "a.pftrace", silent)
        assert trace.meta.truncated
        assert ("truncated", 1) in problems(trace)


def test_packets_that_cannot_be_decoded_are_problems(tmp_path: Path) -> None:
    trace = perfetto.run()
    # A field of a wire type that does not exist.
    trace.packets[5] += b"\x0f"
    found = read(perfetto.pftrace(tmp_path / "a.pftrace", trace), silent)
    assert ("malformed", 1) in problems(found)


def test_numbers_of_names_begin_again_where_a_packet_says_so(tmp_path: Path) -> None:
    one, other = perfetto.run(), perfetto.run()
    one.packets += other.packets
    trace = read(perfetto.pftrace(tmp_path / "a.pftrace", one), silent)
    # The same events twice.
    assert (
        trace.tables.ledger.filter(pl.col("reason") == "duplicate")["count"].sum() == 3 + 2 + 6 + 2
    )
    assert trace.tables.names.height == 4


def test_traces_of_others_are_refused(tmp_path: Path) -> None:
    trace = perfetto.Perfetto()
    trace.slice("blink", "Layout", 1, 10, 20, {})
    with pytest.raises(
        NotATraceError,
        match="without operators of PyTorch; it has 1 blink events",
    ):
        open_trace(perfetto.pftrace(tmp_path / "chrome.pftrace", trace))


def test_what_export_writes_is_not_a_pftrace(tmp_path: Path) -> None:
    written = cnn_steps().export(tmp_path / "run.perfetto.json")
    with pytest.raises(NotATraceError, match="is an export of traceana"):
        open_trace(written)


def test_commands_show_a_trace(tmp_path: Path, run: Run) -> None:
    path = perfetto.pftrace(tmp_path / "run.pftrace", perfetto.run())
    for command in ("report", "kernels", "transfers", "idle", "info", "advise"):
        done = run(command, path)
        assert done.exit_code == 0, (command, done.stderr)
