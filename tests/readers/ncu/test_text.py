"""The pages that Nsight Compute prints as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import manifest
from traceana.errors import CorruptError
from traceana.readers import read
from traceana.readers.source import silent

PAGE = """\
==PROF== Profiling "k" - 1: 0%....50%....100% - 8 passes
loss:  0.4999
==PROF== Disconnected from process 4711
[4711] python3.8@127.0.0.1
  void k<float>(float const*, float*), 2024-Jul-27 20:38:35, Context 1, Stream 7

    NVTX Start/End Ranges:
      <default domain>
        <0,step>
    Section: Command line profiler metrics
    ---------------------------------- --------- -----------
    gpu__time_duration.sum               usecond        3.42
    dram__bytes.sum                        Kbyte       12.50
    launch__block_size                                 1,024
    ---------------------------------- --------- -----------

  other(int) (128, 1, 2)x(64, 2, 1), Context 1, Stream 13, Device 1, CC 8.6
    Section: GPU Speed Of Light Throughput
    ---------------------- ----------- ------------
    Metric Name            Metric Unit Metric Value
    ---------------------- ----------- ------------
    gpu__time_duration.sum     usecond        12.35
    dram__bytes.sum              Kbyte         1.00
    launch__block_size                          128
    ---------------------- ----------- ------------
    INF   This kernel grid is too small.
    Duration  of  nothing
"""


def test_a_header_of_csv_that_the_page_continues_is_in_the_ledger(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(f'"ID","Process ID","Kernel Name","Section Name"---- ----\n{PAGE}')
    trace = read(file, silent)
    assert trace.tables.counters.height == 2
    assert trace.tables.ledger.select("reason", "count").rows() == [("damaged", 1)]


def test_launches_have_their_metrics(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(PAGE)
    trace = read(file, silent)
    columns = ("name", "process", "context", "stream", "device", "duration", "dram_bytes")
    assert trace.tables.counters.select(columns).rows() == [
        ("void k<float>(float const*, float*)", 4711, 1, 7, None, 3420, 12_500),
        ("other(int)", 4711, 1, 13, 1, 12_350, 1000),
    ]
    assert trace.tables.counters.select("grid_x", "grid_z", "block_x", "block_y").rows() == [
        (None, None, None, None),
        (128, 2, 64, 2),
    ]
    assert trace.tables.ledger.is_empty()


def test_lines_of_the_program_within_a_table_end_it_not(tmp_path: Path) -> None:
    whole, mixed = tmp_path / "a.txt", tmp_path / "b.txt"
    whole.write_text(PAGE)
    mixed.write_text(
        PAGE.replace("\n    gpu__", "\nloss: 0.5\n    gpu__").replace("\n    dram", "\n\n    dram")
    )
    assert read(mixed, silent).tables.counters.equals(read(whole, silent).tables.counters)


def test_a_page_without_metrics_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n".join(PAGE.splitlines()[:10]) + "\n")
    with pytest.raises(CorruptError, match="no metrics"):
        read(file, silent)


@manifest.NEEDS_PRINTED
def test_published_pages_have_their_launches_and_durations() -> None:
    listed = manifest.printed("ncu")
    assert listed
    for row in listed:
        counters = read(manifest.PRINTED / row["file"], silent).tables.counters
        assert counters.height == int(row["gpu_calls"])
        assert counters["duration"].sum() == int(row["gpu_time_text_sum_ns"])
