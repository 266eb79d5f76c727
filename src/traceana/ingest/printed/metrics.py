"""Reads the counters that ``nvprof --metrics`` and ``--events`` print, as text or CSV.

nvprof prints one value for all launches of a kernel, their mean, not one for each launch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.ingest.kernel_names import demangle
from traceana.ingest.printed.tables import joined, printed_lines, split_csv
from traceana.ingest.printed.text import NVPROF_METRICS_TITLES, plain_text
from traceana.ingest.source import ByteSource, Progress
from traceana.trace import Ledger, Tables, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

COLUMNS: Final = {
    # metric: column of `counters`, what its unit is worth there
    **{
        f"flop_count_{short}_{operation}": (f"fp{bits}_{operation}", 1)
        for short, bits in (("dp", 64), ("sp", 32))
        for operation in ("add", "mul", "fma")
    },
    "flop_count_dp": ("fp64_flops", 1),
    "flop_count_sp": ("fp32_flops", 1),
    "flop_count_hp": ("fp16_flops", 1),
    "dram_read_bytes": ("dram_read_bytes", 1),
    "dram_write_bytes": ("dram_write_bytes", 1),
    "dram_read_transactions": ("dram_read_bytes", 32),
    "dram_write_transactions": ("dram_write_bytes", 32),
    "achieved_occupancy": ("achieved_occupancy_percent", 100),
    "sm_efficiency": ("sm_efficiency_percent", 1),
}
"""A transaction of DRAM is a sector of 32 bytes."""
_DEVICE: Final = re.compile(r'Device "(.*) \((\d+)\)"')
_OF_CSV: Final = re.compile(r"(.*) \((\d+)\)")
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
    found = _Found()
    for line in _lines(content):
        found.take(line)
    if not found.kernels:
        raise NotATraceError(
            f"{path} is output of nvprof without measured kernels: check the metrics and the "
            "kernel filter"
        )
    ledger = Ledger()
    ledger.add("malformed", found.malformed, table="counters", kept=True, detail="rows cut")
    ledger.add(
        "lost_field", found.lost, table="counters", kept=True, detail="values without a number"
    )
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    ledger.add("truncated", int(source.truncated), table="-", kept=True)
    rows = [_row(*key, values) for key, values in found.kernels.items()]
    frame = pl.DataFrame(rows, schema={**COUNTERS}, orient="row")
    plain = demangle(frame["name"].unique())
    plain.count_failures(ledger)
    counters = frame.with_columns(pl.col("name").replace(plain.names))
    unread = [name for name in found.metrics if name not in COLUMNS]
    properties: dict[str, Any] = {"metric_rows": found.rows}
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
        [(number, name, "NVIDIA") for number, name in sorted(found.devices.items())],
        {"device": pl.Int32, "name": pl.String, "vendor": pl.String},
        orient="row",
    )
    return Trace(
        meta,
        Tables(
            {"counters": counters, "names": names, "devices": devices, "ledger": ledger.frame()}
        ),
    )


def _lines(content: bytes) -> list[str]:
    lines = printed_lines(content)["line"].str.strip_chars_end(" ")
    return [line for line in lines.to_list() if line]


class _Found:
    """The kernels of the tables so far; ``kernels`` has the values by device and name."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[int | None, str], _Values] = {}
        self.devices: dict[int, str] = {}
        self.metrics: dict[str, None] = {}
        self.rows = self.malformed = self.lost = 0
        self._titles: list[str] = []
        self._in_table = False
        self._device: int | None = None
        self._kernel = ""

    def take(self, line: str) -> None:
        """Take the next line of the text."""
        if re.match(NVPROF_METRICS_TITLES, line):
            self._titles = split_csv(line) if "," in line else []
            self._in_table = not self._titles or {"Kernel", "Invocations"} <= {*self._titles}
        elif not self._in_table or _END.match(line):
            self._in_table = self._in_table and not _END.match(line)
        elif self._titles:
            self._csv(line)
        elif match := _DEVICE.fullmatch(line):
            self._device = self._numbered(match)
        elif line.startswith(_KERNEL):
            self._kernel = line.removeprefix(_KERNEL).strip()
        elif match := _ROW.fullmatch(line):
            cells = re.split(r"\s{2,}", match[3])
            # A metric has a description before least, most and mean; an event has none.
            numbers = [c for c in cells if _NUMBER.match(c) or _LEVEL.fullmatch(c)]
            if len(numbers) < 3 or not self._kernel:
                self.malformed += 1
            else:
                self._add(match[1], match[2], numbers[2])

    def _numbered(self, match: re.Match[str]) -> int | None:
        number = int(match[2])
        if number >= 1 << 31:
            return None
        self.devices[number] = match[1]
        return number

    def _csv(self, line: str) -> None:
        at = self._titles.index("Kernel")
        cells = split_csv(line)
        if cells and (match := _OF_CSV.fullmatch(cells[0])):
            whole = (
                joined(cells, len(self._titles), at) if len(cells) >= len(self._titles) else None
            )
            if whole is None:
                self.malformed += 1
                return
            row = dict(zip(self._titles, whole, strict=True))
            self._device, self._kernel = self._numbered(match), row["Kernel"]
            name = row.get("Metric Name") or row.get("Event Name") or ""
            self._add(row.get("Invocations", ""), name, row.get("Avg", ""))

    def _add(self, invocations: str, metric: str, mean: str) -> None:
        if not invocations.isdecimal() or len(invocations) > 12 or not metric:
            self.malformed += 1
            return
        self.rows += 1
        self.metrics[metric] = None
        values = self.kernels.setdefault((self._device, self._kernel), {})
        values["launches"] = max(values.get("launches", 0), min(int(invocations), _MOST_LAUNCHES))
        if metric in COLUMNS:
            column, factor = COLUMNS[metric]
            number = _NUMBER.fullmatch(mean.strip())
            value = None if number is None else float(number[1].replace(",", ".")) * factor
            if value is None or not 0 <= value < _LARGEST:
                self.lost += 1
            else:
                values.setdefault(column, value)


def _row(device: int | None, name: str, values: _Values) -> _Values:
    """Return the columns of ``counters`` of one kernel."""
    numbers = {
        column: value if column.endswith("percent") else round(value)
        for column, value in values.items()
    }
    sides = [numbers.get(f"dram_{side}_bytes") for side in ("read", "write")]
    if None not in sides:
        numbers["dram_bytes"] = sum(side for side in sides if side is not None)
    return dict.fromkeys(COUNTERS) | {"device": device, "name": name} | numbers
