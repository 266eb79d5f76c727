"""Reads the counters that ``nvprof --metrics`` and ``--events`` print, as text or CSV.

nvprof prints one value for all launches of a kernel, their mean, not one for each launch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.readers.kernel_names import demangle
from traceana.readers.printed.tables import find_tables, joined, printed_lines, split_csv
from traceana.readers.printed.text import NVPROF_METRICS_TITLES, plain_text
from traceana.readers.printed.titles import titles
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

_COLUMNS: Final = titles("nvprof metrics")
_DEVICE: Final = re.compile(r'(?:Device ")?(.*) \((\d+)\)"?')
_KERNEL: Final = "Kernel: "
_ROW: Final = re.compile(r"(\d+)\s{2,}(\w+)\s{2,}(.*\S)")
_NUMBER: Final = re.compile(r"(-?\d+(?:[.,]\d+)?(?:e[+-]?\d{1,3})?)(%)?")
_LEVEL: Final = re.compile(r"[A-Z][a-z]+ \(\d+\)|<OVERFLOW>")
"""The value of a utilization, ``Low (2)``, and of a counter that ran over."""
_END: Final = re.compile(r"(?:==\d+== |={8} )(?:Profiling result|Metric result|Event result|API)")
_MOST_LAUNCHES: Final = 1 << 40
_LARGEST: Final = 1 << 53
_MOST_UNREAD: Final = 50
_Values = dict[str, Any]


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of printed metrics: counters only, a row per kernel and device.

    Raises ``NotATraceError`` where none was measured, ``NotFoundError``.
    """
    source = ByteSource(path, progress)
    content = plain_text(b"".join(source.blocks()))
    lines = printed_lines(content)["line"].str.strip_chars_end(" ")
    measured = _Measurements()
    for table in find_tables(lines.filter(lines != ""), f"^(?:{NVPROF_METRICS_TITLES})"):
        titles = split_csv(table.header) if "," in table.header else []
        if titles and not {"Kernel", "Invocations"} <= {*titles}:
            continue
        for line in table.rows:
            if _END.match(line):
                break
            if titles:
                measured.take_csv_row(line, titles)
            else:
                measured.take_line(line)
    if not measured.kernels:
        raise NotATraceError(
            f"{path} is output of nvprof without measured kernels: check the metrics and the "
            "kernel filter"
        )
    ledger = Ledger()
    ledger.add("malformed", measured.malformed, table="counters", kept=True, detail="rows cut")
    ledger.add(
        "lost_field", measured.lost, table="counters", kept=True, detail="values without a number"
    )
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    ledger.add("truncated", int(source.truncated), table="-", kept=True)
    rows = []
    for (device, name), values in measured.kernels.items():
        numbers = {
            column: value if column.endswith("percent") else round(value)
            for column, value in values.items()
        }
        if "dram_read_bytes" in numbers and "dram_write_bytes" in numbers:
            numbers["dram_bytes"] = numbers["dram_read_bytes"] + numbers["dram_write_bytes"]
        rows.append(dict.fromkeys(COUNTERS) | {"device": device, "name": name} | numbers)
    frame = pl.DataFrame(rows, schema={**COUNTERS}, orient="row")
    plain = demangle(frame["name"].unique())
    plain.count_failures(ledger)
    counters = frame.with_columns(pl.col("name").replace(plain.names))
    unread = [name for name in measured.metrics if name not in _COLUMNS]
    properties: dict[str, Any] = {"metric_rows": measured.rows}
    if unread:
        properties["metrics_not_read"] = unread[:_MOST_UNREAD]
    meta = TraceMeta(
        source=str(path),
        format="nvprof",
        producer="NVIDIA nvprof",
        truncated=source.truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=counters.height,
        properties=properties,
    )
    names = counters.select(pl.col("name").unique(maintain_order=True))
    devices = pl.DataFrame(
        [(number, name, "NVIDIA") for number, name in sorted(measured.devices.items())],
        {"device": pl.Int32, "name": pl.String, "vendor": pl.String},
        orient="row",
    )
    return Trace(
        meta,
        Tables(
            {"counters": counters, "names": names, "devices": devices, "ledger": ledger.frame()}
        ),
    )


class _Measurements:
    """The values of kernels by device and name, the devices, and the metrics, in order."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[int | None, str], _Values] = {}
        self.devices: dict[int, str] = {}
        self.metrics: dict[str, None] = {}
        self.rows = self.malformed = self.lost = 0
        self._device: int | None = None
        self._kernel = ""

    def take_csv_row(self, line: str, titles: list[str]) -> None:
        """Add the value in a row of CSV, which has device and kernel too."""
        cells = split_csv(line) or [line if line.startswith("Device ") else ""]
        if (device := _DEVICE.fullmatch(cells[0])) is None:
            return
        self._begin_device(device)
        row = joined(cells, len(titles), titles.index("Kernel"))
        values = dict(zip(titles, row or [], strict=False))
        self._kernel = values.get("Kernel", "")
        metric = values.get("Metric Name") or values.get("Event Name") or ""
        self._add(metric, values.get("Invocations", ""), values.get("Avg", ""))

    def take_line(self, line: str) -> None:
        """Take a line of a table in columns: a device, a kernel, or the value of a metric."""
        if line.startswith("Device ") and (device := _DEVICE.fullmatch(line)):
            self._begin_device(device)
        elif line.startswith(_KERNEL):
            self._kernel = line.removeprefix(_KERNEL).strip()
        elif row := _ROW.fullmatch(line):
            invocations, metric, rest = row.groups()
            # A metric has a description before least, most and mean; an event has none.
            cells = re.split(r"\s{2,}", rest)
            numbers = [cell for cell in cells if _NUMBER.match(cell) or _LEVEL.fullmatch(cell)]
            if len(numbers) >= 3 and self._kernel:
                self._add(metric, invocations, mean=numbers[2])
            else:
                self.malformed += 1

    def _begin_device(self, device: re.Match[str]) -> None:
        number = int(device[2])
        self._device = number if number < 1 << 31 else None
        if self._device is not None:
            self.devices[self._device] = device[1]

    def _add(self, metric: str, invocations: str, mean: str) -> None:
        """Add the value of a metric for the launches of the kernel."""
        if not (invocations.isdecimal() and len(invocations) <= 12 and metric):
            self.malformed += 1
            return
        self.rows += 1
        self.metrics[metric] = None
        columns = self.kernels.setdefault((self._device, self._kernel), {})
        launches = min(int(invocations), _MOST_LAUNCHES)
        columns["launches"] = max(columns.get("launches", 0), launches)
        if metric not in _COLUMNS:
            return
        column, factor = _COLUMNS[metric]
        printed = _NUMBER.fullmatch(mean.strip())
        value = float(printed[1].replace(",", ".")) * int(factor) if printed else -1.0
        if 0 <= value < _LARGEST:
            columns.setdefault(column, value)
        else:
            self.lost += 1
