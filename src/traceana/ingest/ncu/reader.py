"""Reads tables of Nsight Compute (``ncu --csv``) into the table of counters."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import CorruptError
from traceana.ingest.detect import NCU_HEADER
from traceana.ingest.names import demangle
from traceana.ingest.ncu.checks import (
    count_advice,
    count_contradictions,
    count_missing,
    count_unread,
    together,
)
from traceana.ingest.ncu.metrics import combined, factor, has_decimal_comma, known, number
from traceana.ingest.ncu.rows import Rows, complete_rows, end_of_table, is_whole
from traceana.ingest.ncu.text import cells as text_cells
from traceana.ingest.source import ByteSource, Progress
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

_NUMBERS: Final = {
    # column of `counters`: of the file
    "launch": "ID",
    "process": "Process ID",
    "device": "Device",
    "context": "Context",
    "stream": "Stream",
}

_SIZES: Final = {"grid": "Grid Size", "block": "Block Size"}
_THREE: Final = r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)"
_MOST_UNREAD: Final = 50
_INCOMPLETE: Final = "rows without all cells, or with zero bytes"
_BROKEN_HEADER: Final = "zero bytes in the header"
_NOT_UTF8: Final = "rows with text that is not UTF-8"
_SEPARATOR: Final = b'","'
_ROW: Final = re.compile(rb'"\d+","')
_ID: Final = "ID"
_NAME: Final = "Kernel Name"
_METRIC: Final = ("Metric Name", "Metric Unit", "Metric Value")
_NVTX: Final = ":PL_Type:"
"""In the titles of the columns that ``--nvtx`` adds."""
_FACTS: Final = frozenset(
    (
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Kernel Time",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
        "Section Name",
    )
)


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of the output of ``ncu --csv``, page ``raw`` or ``details``, or of its text.

    It holds counters only: Nsight Compute replays each kernel several times, serialized, without
    timestamps. ``meta.events`` counts launches. Values have the printed digits;
    ``--print-units base`` prints all of them. Raises ``CorruptError`` and ``UnreadableError``.
    """
    source = ByteSource(path, progress)
    content = b"".join(source.blocks())
    if NCU_HEADER.search(content):
        rows, cells = table_rows(path, content)
    else:
        rows, cells = Rows(b"", 0, False, 0), text_cells(content)
        if cells.is_empty():
            raise _without_table(path, ValueError("no metrics"))
    ledger = Ledger()
    launches, found, unread = by_launch(
        cells, ledger, complete=not (rows.malformed or rows.truncated)
    )
    values = launches.with_columns(combined(found))
    numbers = [
        pl.col(source).cast(COUNTERS[column], strict=False).alias(column)
        for column, source in _NUMBERS.items()
        if source in launches.columns
    ]
    names = launches[_NAME]
    plain = demangle(names.drop_nulls().unique())
    table = values.select(
        *numbers,
        names.replace(plain.names).alias("name"),
        *(size for what in _SIZES for size in _three(what, launches.columns)),
        *(column for column in COUNTERS if column in values.columns),
    )
    plain.count_failures(ledger)
    for column, title in (*_NUMBERS.items(), *((f"{what}_x", _SIZES[what]) for what in _SIZES)):
        if title in launches.columns and column != "launch":
            count_unread(launches[title], table[column], title, ledger)
    whole = table.filter(pl.col("launch").is_not_null() & pl.col("name").is_not_null())
    ledger.add("malformed", table.height - whole.height, table="counters")
    # On the page `details`, a row is a metric of a launch.
    lost_launches = 0 if _METRIC[2] in cells.columns else rows.malformed
    kept = lost_launches == 0
    ledger.add("malformed", rows.malformed, table="counters", kept=kept, detail=_INCOMPLETE)
    ledger.add("damaged", rows.not_utf8, table="counters", kept=True, detail=_NOT_UTF8)
    broken_header = int(b"\0" in rows.table[: rows.table.find(b"\n")])
    ledger.add("damaged", broken_header, table="counters", kept=True, detail=_BROKEN_HEADER)
    ledger.add("damaged", int(source.damaged), table="-", kept=True)
    truncated = source.truncated or rows.truncated
    ledger.add("truncated", int(truncated), table="counters", kept=True)
    meta = TraceMeta(
        source=str(path),
        format="ncu",
        producer="NVIDIA Nsight Compute",
        truncated=truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=table.height + lost_launches,
        properties={"metrics_not_read": unread[:_MOST_UNREAD]} if unread else {},
    )
    measured = whole.select(pl.col("name").unique(maintain_order=True))
    return Trace(meta, {"counters": whole, "names": measured, "ledger": ledger.frame()})


def _three(what: str, present: list[str]) -> list[pl.Expr]:
    if _SIZES[what] not in present:
        return []
    return [
        pl.col(_SIZES[what])
        .str.extract(_THREE, group)
        .cast(pl.Int32, strict=False)
        .alias(f"{what}_{axis}")
        for group, axis in enumerate("xyz", 1)
    ]


def table_rows(path: Path, content: bytes) -> tuple[Rows, pl.DataFrame]:
    """Return the rows of the table in ``content`` and their cells as text.

    Lines before and after the table are left out. Rows before the header are malformed. Raises
    ``CorruptError`` without a table.
    """
    start = NCU_HEADER.search(content)
    begin = start.start() if start else len(content)
    # With the end of its last line, which a truncated table lacks.
    table = content[begin : end_of_table(content) + 1]
    lost = _rows_before(content[:begin], table)
    try:
        cells = _cells(table)
        if is_whole(table, cells):
            return Rows(table, malformed=lost, truncated=False, not_utf8=0), cells
    except pl.exceptions.PolarsError:
        pass
    try:
        rows = complete_rows(table)
        cells = _cells(rows.table)
    except (csv.Error, StopIteration, pl.exceptions.PolarsError) as error:
        raise _without_table(path, error) from error
    return msgspec.structs.replace(rows, malformed=rows.malformed + lost), cells


def _rows_before(content: bytes, table: bytes) -> int:
    """Return how many rows of a launch are in ``content``, which comes before ``table``.

    The program may print other tables there.
    """
    cells = table[: table.find(b"\n")].count(_SEPARATOR)
    lines = (line for line in content.splitlines() if _ROW.match(line))
    return sum(line.count(_SEPARATOR) > cells // 2 for line in lines)


def _cells(table: bytes) -> pl.DataFrame:
    return pl.read_csv(
        io.BytesIO(table), infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy"
    )


def _without_table(path: Path, error: Exception) -> CorruptError:
    what = (str(error) or "no header").splitlines()[0]
    return CorruptError(
        f"{path} has no readable Nsight Compute table ({what}): "
        "write it again with 'ncu --import REPORT --csv --page raw'"
    )


def by_launch(
    cells: pl.DataFrame, ledger: Ledger, *, complete: bool
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    """Return (launches, metrics of each column of ``counters``, metrics without a column).

    Launches have facts as text and known metrics in base units as float64. The page
    ``details`` has a row per metric, the page ``raw`` a column per metric and a first row of units.
    """
    if all(column in cells.columns for column in _METRIC):
        return _details(cells, ledger, complete=complete)
    return _raw(cells, ledger)


def _raw(
    cells: pl.DataFrame, ledger: Ledger
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    named = [c for c in cells.columns if c not in _FACTS and _NVTX not in c]
    row = cells.filter(pl.col(_ID).fill_null("") == "").head(1)
    units = {name: (row[name][0] if row.height else None) or "" for name in named}
    # Without a row of units, no value can be read.
    factors = {name: factor(units[name]) if row.height else None for name in named}
    found = known(name for name in named if factors[name] is not None)
    used = {name for names in found.values() for name in names}
    # A column without a unit may be text.
    numbers = [name for name in named if units[name] and factors[name] is not None]
    comma = any(has_decimal_comma(cells[name]) for name in numbers)
    values = [number(pl.col(name), decimal_comma=comma) * factors[name] for name in sorted(used)]
    rows = cells.filter(pl.col(_ID).fill_null("") != "")
    launches = rows.with_columns(values)
    for name in sorted(name for names in known(named).values() for name in names):
        values_read = launches[name] if name in used else pl.repeat(None, rows.height, eager=True)
        count_unread(rows[name], values_read, name, ledger)
    return launches, found, [name for name in named if name not in used]


def _details(
    cells: pl.DataFrame, ledger: Ledger, *, complete: bool
) -> tuple[pl.DataFrame, dict[str, list[str]], list[str]]:
    name, unit, value = (pl.col(column) for column in _METRIC)
    units = cells.select(unit.fill_null("").unique()).to_series().to_list()
    factors = {text: factor(text) for text in units}
    has_unit = cells.filter(unit.replace_strict(factors, default=None).is_not_null(), unit != "")
    comma = has_decimal_comma(has_unit[_METRIC[2]])
    scaled = cells.with_columns(
        number(value, decimal_comma=comma)
        * unit.fill_null("").replace_strict(factors, default=None, return_dtype=pl.Float64)
    )
    # The advice of Nsight Compute's rules has rows without a metric.
    named = cells.select(name.drop_nulls().unique(maintain_order=True)).to_series().to_list()
    found = known(named)
    used = {name for names in found.values() for name in names}
    keys = [column for column in ("Process ID", _ID) if column in cells.columns]
    facts = [pl.col(c).first() for c in cells.columns if c in _FACTS and c not in keys]
    values = [
        value.filter(name == metric).drop_nulls().first().alias(metric) for metric in sorted(used)
    ]
    launches = scaled.group_by(keys, maintain_order=True).agg(*facts, *values)
    is_used = cells[_METRIC[0]].is_in(sorted(used))
    count_unread(
        cells.filter(is_used)[_METRIC[2]], scaled.filter(is_used)[_METRIC[2]], _METRIC[2], ledger
    )
    count_advice(cells, _METRIC[0], _METRIC[2], ledger)
    rows, launch = together(scaled, keys, launches.height)
    metrics = [(rows[_METRIC[0]] == metric).fill_null(False) for metric in sorted(used)]
    repeated = [c for c in (*_NUMBERS.values(), *_SIZES.values(), _NAME) if c in cells.columns]
    facts_again = [column for column in repeated if column not in keys]
    count_contradictions(rows, launch, facts_again, _METRIC[2], metrics, ledger)
    if complete:
        count_missing(launch, metrics, ledger)
    return launches, found, [metric for metric in named if metric and metric not in used]
