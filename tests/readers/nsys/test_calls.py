"""Runtime and driver calls of nsys exports."""

from __future__ import annotations

from pathlib import Path

from tests.readers.nsys.writing import RUNTIME, STRINGS, call, export, ledger_of, trace_of


def test_the_runtime_loses_its_symbol_version_and_the_driver_keeps_its_suffix(
    tmp_path: Path,
) -> None:
    strings = [
        *STRINGS,
        {"id": 10, "value": "cudaMemcpyAsync_ptsz_v7000"},
        {"id": 11, "value": "cuGetProcAddress_v2"},
        {"id": 12, "value": "cudaStreamGetCaptureInfo_v2_v11030"},
        {"id": 13, "value": "mine_v3020"},
    ]
    rows = [call(i, i + 1, nameId=i, correlationId=i) for i in (3, 6, 10, 11, 12, 13)]
    trace = trace_of(export(tmp_path / "a.sqlite", {RUNTIME: rows, "StringIds": strings}))
    assert trace.tables.calls["name"].to_list() == [
        "cudaLaunchKernel",
        "cuMemcpyHtoDAsync_v2",
        "cudaMemcpyAsync_ptsz",
        "cuGetProcAddress_v2",
        "cudaStreamGetCaptureInfo_v2",
        "mine_v3020",
    ]


def test_backtrace_rows_repeat_a_call_and_are_no_calls(tmp_path: Path) -> None:
    rows = [call(9, 21, eventClass=67), call(10, 20), call(30, 40, eventClass=1, correlationId=0)]
    trace = trace_of(export(tmp_path / "a.sqlite", {RUNTIME: rows}))
    assert trace.tables.calls.select("start", "duration", "correlation").rows() == [
        (0, 10, 100),
        (20, 10, None),
    ]
    detail = f"{RUNTIME}: CUDA backtrace rows"
    assert ledger_of(trace)["unknown_category", detail] == 1


def test_the_driver_table_of_the_first_exports_is_read_too(tmp_path: Path) -> None:
    rows = [call(50, 60, nameId=6, correlationId=9)]
    tables = {RUNTIME: [call(10, 20)], "CUPTI_ACTIVITY_KIND_DRIVER": rows}
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert trace.tables.calls["name"].to_list() == ["cudaLaunchKernel", "cuMemcpyHtoDAsync_v2"]


def test_a_call_without_a_name_is_kept_and_counted(tmp_path: Path) -> None:
    trace = trace_of(export(tmp_path / "a.sqlite", {RUNTIME: [call(10, 20, nameId=999)]}))
    assert trace.tables.calls["name"].to_list() == [None]
    assert ledger_of(trace) == {("unnamed", RUNTIME): 1}
